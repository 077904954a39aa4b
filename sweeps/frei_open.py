"""What Frei, Vardi, Bartlett, Srebro (2023) leave open: many clusters, and data without clusters.

Two parts. "many": test error and flip sizes for more and more clusters, far beyond the number at
which the data are linearly separable, with 1-nearest-neighbour, a linear classifier and the best
classifier there is beside them. "separable": labels are the sides of a hyperplane, with or without
a gap at it; the test error of trained networks and of the KKT points polished from them, less that
of the linear max-margin classifier on the same points, seed by seed.
"""

import sys
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.networks import PRECISION
from jaxkkt.specs.fields import described

from .frei_open_claims import TESTS, compared, compared_drawn, many, many_drawn, table

# Heights drawn for a point, of which the first outside the gap is taken.
DRAWS = 64
# Numbers of samples that polishing is compiled for.
SIZES = (64, 256)
CONSTANT = 30.0
# The residual in `max_margin`, 1 / sqrt(1 + |w|^2), of a margin of 1e-5 of the longest point.
INSEPARABLE = 1e-5
# How far, of 1, margins and |w|^2 may be from those of the hyperplane that is looked for.
NEAREST = 1e-3


class HalfSpaces(jk.data.Distribution):
    """Points on the two sides of a hyperplane through 0, whose normal w* a run's points share.

    x is uniform on the sphere of radius sqrt(d), or N(0, I); y = sign <w*, x>. Points with
    |<w*, x>| < gap are dropped, or pushed outward to |<w*, x>| = gap (`edge`).
    """

    surface: str = described("how the points lie", default="sphere")
    gap: jk.Number = described("least |<w*, x>|; its standard deviation is 1", default=0.0)
    edge: str = described("what happens to points within the gap", default="drop")
    tests: int = described("held-out points", "points", default=TESTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("surface", ("sphere", "gaussian")), ("edge", ("drop", "push"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {known}, got {getattr(self, name)!r}")
        if isinstance(self.gap, jax.core.Tracer):
            return
        largest = np.inf if self.d is None or self.surface == "gaussian" else np.sqrt(self.d)
        if not 0 <= self.gap < largest:
            raise ValueError(f"gap must be at least 0 and below {largest:g}, got {self.gap}")

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return self._drawn(key, key, samples, dim)

    def draw_test(self, key: PRNGKeyArray, data_key: PRNGKeyArray, dim: int) -> tuple[Array, Array]:
        return self._drawn(key, data_key, self.tests, dim)

    def _drawn(self, key: Array, data_key: Array, samples: int, dim: int) -> tuple[Array, Array]:
        normal = jax.random.normal(jax.random.split(data_key)[0], (dim,))
        normal = normal / jnp.linalg.norm(normal)
        height_key, key = jax.random.split(jax.random.split(key)[1])
        height = self._heights(height_key, samples, dim)
        x = jax.random.normal(key, (samples, dim))
        x = x - jnp.dot(x, normal, precision=PRECISION)[:, None] * normal[None]
        if self.surface == "sphere":
            rest = jnp.sqrt(dim - height**2) / jnp.linalg.norm(x, axis=1)
            x = x * rest[:, None]
        return x + height[:, None] * normal[None], jnp.sign(height)

    def _heights(self, key: Array, samples: int, dim: int) -> Array:
        """<w*, x>, with both signs: where all are of one, that of the first point changes."""
        normal_key, rest_key = jax.random.split(key)
        drawn = jax.random.normal(normal_key, (DRAWS if self.edge == "drop" else 1, samples))
        if self.surface == "sphere":
            rest = jax.random.chisquare(rest_key, float(dim - 1), drawn.shape)
            drawn = drawn * jnp.sqrt(dim / (drawn**2 + rest))
        gap = jnp.asarray(self.gap, drawn.dtype)
        first = jnp.argmax(jnp.abs(drawn) >= gap, axis=0)
        found = drawn[first, jnp.arange(samples)]
        side = jnp.where(found > 0, 1.0, -1.0)
        side = side.at[0].multiply(jnp.where(jnp.all(side == side[0]), -1.0, 1.0))
        return side * jnp.maximum(jnp.abs(found), gap)


class Beside(jk.Measurement):
    """Training error, whether a hyperplane separates the samples, and the best classifier's error.

    The best classifier knows the means and sigma.
    """

    on_host = True

    def measure(
        self, params: jk.Params, data: jk.Dataset, test: jk.Dataset, truth: jk.mixtures.Truth
    ) -> dict[str, float]:
        margins = jk.networks.margins(*jax.tree.map(jnp.asarray, (params, *data)))
        points, labels = (np.asarray(a) for a in test)
        return {
            "train_error": float(jnp.mean(margins <= 0)),
            "best_error": float(np.mean(best(points, truth) != labels)),
        }


class Linear(jk.Measurement):
    """Test errors of the linear max-margin classifier and of 1-nearest-neighbour.

    Where no hyperplane separates the samples (`separable` is 0) the linear one is scikit-learn's
    soft-margin SVC with C = 1.
    """

    on_host = True

    def measure(self, data: jk.Dataset, test: jk.Dataset) -> dict[str, float]:
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC

        x, y, points, labels = (np.asarray(a) for a in (*data, *test))
        plane = max_margin(x, y)
        if plane is None:
            linear = SVC(kernel="linear", C=1.0).fit(x, y).predict(points)
        else:
            linear = np.sign(points @ plane[0] + plane[1])
        neighbour = KNeighborsClassifier(1).fit(x, y).predict(points)
        return {
            "separable": float(plane is not None),
            "linear_error": float(np.mean(linear != labels)),
            "neighbour_error": float(np.mean(neighbour != labels)),
        }


def max_margin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float] | None:
    """The hyperplane w . x + b of least |w| with y (w . x + b) >= 1; None where there is none.

    A least-distance problem, by non-negative least squares (Lawson and Hanson 1974, Section 23.4).
    scikit-learn's SVC takes minutes with the C that this needs where the margin is narrow. b counts
    as a weight of a constant input `CONSTANT` times as large as the points.
    """
    from scipy.optimize import nnls

    longest = float(np.max(np.linalg.norm(x, axis=1))) or 1.0
    points = np.asarray(x, float) / longest  # the solver's tolerance is of numbers of size 1
    rows = y[:, None] * np.concatenate([points, np.full((len(x), 1), CONSTANT)], axis=1)
    system = np.concatenate([rows.T, np.ones((1, len(x)))])
    target = np.zeros(len(system))
    target[-1] = 1
    found = nnls(system, target)[0]
    rest = system @ found - target
    if np.linalg.norm(rest) < INSEPARABLE:
        return None
    weights, multipliers = -rest[:-1] / rest[-1], -found / rest[-1]
    margins = rows @ weights
    # None with margins of 1 is shorter where |w|^2 is the sum of the multipliers.
    off = 1 - np.min(margins), abs(multipliers @ (margins - 1)) / (weights @ weights)
    if not max(off) <= NEAREST:
        raise RuntimeError(
            "SciPy's non-negative least squares ended before its solution: a margin is "
            f"{off[0]:.1e} below 1, and |w|^2 {off[1]:.1e} from the least"
        )
    return weights[:-1] / longest, float(weights[-1] * CONSTANT)


def best(points: np.ndarray, truth: jk.mixtures.Truth) -> np.ndarray:
    """The more likely label of each point, by the mixture that it was drawn from."""
    from scipy.special import logsumexp

    squares = np.sum((points[:, None] - np.asarray(truth.means)[None]) ** 2, axis=2)
    likely = -squares.astype(float) / (2 * float(truth.sigma) ** 2)
    labels = np.asarray(truth.labels)
    sides = [logsumexp(likely[:, labels == label], axis=1) for label in (1, -1)]
    return np.where(sides[0] > sides[1], 1, -1)


class PolishedError(jk.Measurement):
    """Test error of the network, and of the KKT point polished from it; NaN beyond `largest`."""

    largest: int = described("most samples that are polished", "samples", default=256)
    on_host = True

    def measure(self, params: jk.Params, data: jk.Dataset, test: jk.Dataset) -> dict[str, float]:
        network = jk.Params(*map(jnp.asarray, params))
        found = {"test_error": _error(network, test), "polished_error": np.nan}
        margins = jk.networks.margins(network, *map(jnp.asarray, data))
        if len(data.y) > self.largest or not (margins > 0).all():
            return found
        size = next(n for n in (*SIZES, len(data.y)) if n >= len(data.y))
        padded = jk.datasets.pad(jk.Dataset(*map(jnp.asarray, data)), size, data.x.shape[1])
        status, made = _polished(network, *padded)
        if int(status) == jk.kkt.PolishStatus.POLISHED:
            found["polished_error"] = _error(made, test)
        return found


@jax.jit
def _polished(params: jk.Params, x: Array, y: Array) -> tuple[Array, jk.Params]:
    made = jk.kkt.polish(params, x, y, trained=("w", "b", "v"))
    return made.status, made.params


def _error(params: jk.Params, test: jk.Dataset) -> float:
    margins = jk.networks.margins(params, *map(jnp.asarray, test))
    return float(jnp.where(jnp.any(jnp.isnan(margins)), jnp.nan, jnp.mean(margins <= 0)))


@dataclass(frozen=True)
class Options(studies.Options):
    part: Literal["both", "many", "separable"] = "both"
    """which part to run"""
    d: int = 20
    """input dimension"""
    clusters: tuple[int, ...] = (4, 10, 20, 50, 100, 200)
    """numbers of clusters"""
    sigma: tuple[float, ...] = (0.3, 1.0)
    """noise of the clusters"""
    per_cluster: int = 8
    """samples a cluster"""
    samples: tuple[int, ...] = (16, 32, 64, 256)
    """samples of the separable data"""
    surface: tuple[Literal["sphere", "gaussian"], ...] = ("sphere", "gaussian")
    """how the separable points lie"""
    gap: tuple[float, ...] = (0.0, 1.0)
    """least distance of separable points from the hyperplane"""
    edge: Literal["drop", "push"] = "drop"
    """what happens to points within the gap"""
    polish: int = 64
    """most separable samples of which the KKT point is found as well"""
    width: tuple[int, ...] = (50, 300)
    """hidden neurons"""
    seeds: int = 2
    """number of seeds of the clusters, from 0 on"""
    pairs: int = 5
    """number of seeds of the separable data, from 0 on"""


PRESETS = {
    "quick": studies.Preset(
        "32 and 120 networks, d = 20", clusters=(4, 20, 100, 200), samples=(16, 64, 256)
    ),
    "page": studies.Preset("48 and 160 networks, d = 20: what docs/open.md shows"),
    "full": studies.Preset(
        "d = 50, 500 clusters, 5 seeds; 640 samples, 20 seeds",
        d=50,
        clusters=(4, 10, 20, 50, 100, 200, 500),
        samples=(25, 50, 100, 200, 400, 640),
        gap=(0.0, 0.5, 1.0, 2.0),
        width=(50, 500, 2000),
        polish=256,
        seeds=5,
        pairs=20,
    ),
}


def parts(options: Options) -> list[studies.Part]:
    made = {"many": clustered, "separable": sides}
    return [part(options) for name, part in made.items() if options.part in ("both", name)]


def clustered(options: Options) -> studies.Part:
    runs = [
        run
        for k in options.clusters
        for run in jk.grid(
            d=options.d,
            width=options.width,
            data="clusters",
            clusters=k,
            samples=options.per_cluster * k,
            sigma=options.sigma,
            tests=TESTS,
            seed=range(options.seeds),
            measure=[jk.ClusterFlips, Beside, Linear],
        )
    ]
    return studies.Part(runs, "many", claims=many, panels=[studies.Panel("many", many_drawn)])


def sides(options: Options) -> studies.Part:
    runs = jk.grid(
        d=options.d,
        width=options.width,
        data=HalfSpaces,
        surface=options.surface,
        gap=options.gap,
        edge=options.edge,
        samples=options.samples,
        seed=range(options.pairs),
        measure=[PolishedError(largest=options.polish), Linear],
    )
    return studies.Part(
        runs,
        "separable",
        claims=compared,
        texts=[studies.Text("differences", table)],
        panels=[studies.Panel("separable", compared_drawn)],
    )


STUDY = studies.Study("frei-open", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
