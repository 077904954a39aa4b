"""Clustered data as a spec: samples and held-out points of one run share their means."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import mixtures
from jaxkkt.numerics.compiling import quick_jit
from jaxkkt.numerics.requirements import require_positive, require_whole
from jaxkkt.specs.data.distributions import Distribution
from jaxkkt.specs.fields import Number, described


class Clusters(Distribution):
    """N(mu_q, sigma^2 I) around `clusters` means of norm sqrt(d), each cluster of one label.

    The means are uniform on the sphere or orthogonal (`means`); with a `correlation` they share a
    direction, <mu_q, mu_q'> = correlation d where they are orthogonal. A measurement that asks for
    `truth` gets the means, and the cluster of every point: `mixtures.Truth`.
    Frei, Vardi, Bartlett, Srebro (2023), Section 2; Example 1 has the three settings
    sphere and sigma = 1, orthogonal and sigma = 1/sqrt(d), and few correlated clusters.

    With `ambient` = 1e7, say, the points are those of R^1e7 in coordinates of the span of all means
    and points (`spans`), and d is its dimension: give `samples` and `tests`, and leave d out. The
    weights that go with them are `initializations.Spanned` of the same `ambient`: others are
    larger, as of so many inputs. Raises ValueError for another d, by `alpha` too.
    """

    clusters: int = described("clusters", "clusters", default=10)
    sigma: Number = described("noise of a coordinate; means have norm sqrt(d)", default=1.0)
    means: str = described("how the means lie", default="sphere")
    correlation: Number = described("share of d that two means have in common", default=0.0)
    balance: float = described(
        "share of the clusters labelled 1, to whole clusters of each label", default=0.5
    )
    tests: int = described("held-out points", "points", default=2000)
    ambient: Number | None = described(
        "d of the points, where it is not that of arrays", default=None
    )

    def __post_init__(self) -> None:
        if self.ambient is not None and self.samples is not None and self.d is None:
            object.__setattr__(self, "d", self._spanned)
        super().__post_init__()
        require_positive(sigma=self.sigma)
        require_whole("clusters", self.clusters, 2)
        require_whole("tests", self.tests, 2)
        if self.ambient is not None:
            require_positive(ambient=self.ambient)
            if self.d != self._spanned:
                raise ValueError(
                    f"in their span {self.samples} samples have d = {self._spanned}, got {self.d}: "
                    "give `samples`, and leave d and alpha out"
                )
            if not isinstance(self.ambient, jax.core.Tracer) and not self.ambient >= self.d:
                raise ValueError(f"ambient must be at least {self.d}, got {self.ambient}")
        if not isinstance(self.means, str) or self.means not in mixtures.ARRANGEMENTS:
            raise ValueError(
                f"means lie as one of {mixtures.ARRANGEMENTS}, got {self.means!r}: for means of "
                "your own derive a jk.data.Distribution that has a `draw_truth`"
            )
        if self.means == "orthogonal" and self.d is not None and self.clusters >= self.d:
            raise ValueError(
                f"{self.clusters} orthogonal means need d > {self.clusters}, got d = {self.d}"
            )
        if not isinstance(self.correlation, jax.core.Tracer) and not 0 <= self.correlation < 1:
            raise ValueError(f"correlation must be in [0, 1), got {self.correlation}")
        if not 0 <= self.balance <= 1:
            raise ValueError(f"balance is a share of the clusters, got {self.balance}")

    @property
    def _spanned(self) -> int:
        """The dimension of the span of all means and points."""
        return self.clusters + 1 + self.samples + self.tests

    def replace(self, **changes: Any) -> Any:
        if self.ambient is not None and changes.get("ambient", self.ambient) is not None:
            sizes = (changes.get(n, getattr(self, n)) for n in ("clusters", "samples", "tests"))
            changes = {"d": 1 + sum(sizes), **changes}
        return super().replace(**changes)

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return self._drawn(key, key, samples, dim)[0][:2]

    def draw_test(self, key: PRNGKeyArray, data_key: PRNGKeyArray, dim: int) -> tuple[Array, Array]:
        return self._drawn(key, data_key, self.tests, dim, fresh=True)[0][:2]

    def draw_truth(self, seed: int) -> mixtures.Truth:
        keys = self.data_key(seed), self.test_key(seed)
        return jax.tree.map(
            np.asarray, jax.device_get(_truth(self.sizeless(), *keys, self.samples, self.d))
        )

    def _drawn(
        self, key: Array, data_key: Array, samples: int, dim: int, fresh: bool = False
    ) -> tuple[Any, Any, Any]:
        """Points with labels and clusters; the means, drawn by the run's own key; their labels."""
        means_key = jax.random.split(data_key)[0]
        means = mixtures.means(
            means_key, self.clusters, dim, self.means, self.correlation, self.ambient
        )
        labels = mixtures.labels(self.clusters, self.balance)
        # Fresh points come after the samples, whose number is what is left of the columns.
        first = dim - samples if fresh else self.clusters + 1
        noise_key = jax.random.split(key)[1]
        drawn = mixtures.sample(noise_key, means, labels, self.sigma, samples, self.ambient, first)
        return drawn, means, labels


@partial(quick_jit, static_argnums=(3, 4))
def _truth(spec: Clusters, data_key: Array, test_key: Array, samples: int, dim: int) -> Any:
    (_, _, cluster), means, labels = spec._drawn(data_key, data_key, samples, dim)
    (_, _, test_cluster), _, _ = spec._drawn(test_key, data_key, spec.tests, dim, fresh=True)
    sigma = jax.numpy.asarray(spec.sigma, means.dtype)
    d = jax.numpy.asarray(dim if spec.ambient is None else spec.ambient, means.dtype)
    return mixtures.Truth(means, labels, sigma, cluster, test_cluster, d)
