"""The distribution of clusters, Assumption 2.2, and the networks of Theorem 4.1."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxkkt import mixtures
from jaxkkt.networks import Params
from jaxkkt.numerics.requirements import as_positive
from jaxkkt.theory.checks import Assumption, below
from jaxkkt.theory.points import NEAR
from jaxkkt.theory.vardi import largest_product


class Clusters(NamedTuple):
    """A mixture of Gaussians N(mu_q, sigma^2 I), each cluster as likely and of one label.

    means (k, n), labels (k,) in {-1, 1}, sigma > 0; n = d, or less where the points of R^d are
    written in coordinates of a subspace. Section 2, D_clusters.
    """

    means: Float[Array, "k n"]
    labels: Float[Array, " k"]
    sigma: Float[Array, ""]
    d: Float[Array, ""]

    @property
    def k(self) -> Array:
        return jnp.asarray(self.means.shape[0], self.means.dtype)

    @property
    def p(self) -> Array:
        """The largest |<mu_q, mu_q'>| of two clusters."""
        return largest_product(self.means, jnp.ones(len(self.means), bool))

    @property
    def delta(self) -> Array:
        """Delta = 4 sigma sqrt(d) ln(d)."""
        return 4 * self.sigma * jnp.sqrt(self.d) * jnp.log(self.d)

    @property
    def share(self) -> Array:
        """c, the smaller share of a label."""
        positive = jnp.mean(self.labels > 0, dtype=self.means.dtype)
        return jnp.minimum(positive, 1 - positive)

    @property
    def c_prime(self) -> Array:
        """c' = k (p + Delta + 1)/(d - Delta + 1), at most 1/10 by Assumption 2.2."""
        return self.k * (self.p + self.delta + 1) / (self.d - self.delta + 1)

    @property
    def room(self) -> Array:
        """d - Delta - k p - k Delta, positive by Lemma D.5."""
        return self.d - self.delta - self.k * (self.p + self.delta)

    @property
    def etas(self) -> tuple[Array, Array]:
        """eta1 = (2 Delta + p + 1) / room and
        eta2 = 3 (3d + Delta + 1)(1 - 2c') / (room (1 - 3c') c k); see Lemma D.7. NaN where room is
        not positive or c' not from 0 to 1/3, where the paper has none."""
        there = (self.room > 0) & (self.c_prime >= 0) & (self.c_prime < 1 / 3)
        room = jnp.where(there, self.room, jnp.nan)
        ratio = (1 - 2 * self.c_prime) / (1 - 3 * self.c_prime)
        second = 3 * (3 * self.d + self.delta + 1) * ratio / (room * self.share * self.k)
        return (2 * self.delta + self.p + 1) / room, second

    @property
    def u(self) -> Array:
        """sum_q y_q mu_q."""
        return mixtures.direction(self.means, self.labels)

    @property
    def z(self) -> Array:
        """(eta1 + eta2) u, which Theorem 4.2 promises to flip almost every point."""
        return sum(self.etas) * self.u

    def assumptions(self) -> dict[str, Assumption]:
        """Assumption 2.2, and both labels."""
        away = jnp.max(jnp.abs(jnp.linalg.norm(self.means, axis=1) / jnp.sqrt(self.d) - 1))
        return {
            "|mu_q| = sqrt(d)": below(away, NEAR),
            "both labels": below(0.0, self.share, strictly=True),
            "0 < sigma": below(0.0, self.sigma, strictly=True),
            "sigma <= 1": below(self.sigma, 1.0),
            "k (p + Delta + 1) <= (d - Delta + 1) / 10": below(
                self.k * (self.p + self.delta + 1), (self.d - self.delta + 1) / 10
            ),
        }


def clusters(
    means: Float[Array | np.ndarray, "k d"] | Sequence,
    labels: Float[Array | np.ndarray, " k"] | Sequence,
    sigma: float | Float[Array | np.ndarray, ""],
    d: float | Float[Array | np.ndarray, ""] | None = None,
) -> Clusters:
    """Clusters in R^d; d is that of the means, unless they are written in a subspace (`jk.spans`).

    Raises ValueError unless the means fit their labels, in {-1, 1}, and sigma is positive, and
    unless both hold floating-point numbers of one precision that JAX keeps; lists of numbers may
    be whole.
    """
    means, labels = mixtures.as_means(means, labels)
    if not isinstance(labels, jax.core.Tracer) and not np.isin(labels, (-1, 1)).all():
        raise ValueError("the labels of clusters must be -1 or 1")
    d = means.shape[1] if d is None else d
    sigma, d = (as_positive(n, a, means.dtype) for n, a in (("sigma", sigma), ("d", d)))
    means, labels = (jnp.array(a, copy=True) for a in (means, labels))  # the caller's stay its own
    return Clusters(means, labels, sigma, d)


def robust_network(c: Clusters) -> Params:
    """Theorem 4.1: one neuron a cluster, v_q = y_q, w_q = 4 mu_q / d, b_q = -2.

    With high probability a point has margin >= 1 and is not flipped within `robust_radius`.
    """
    return Params(4 * c.means / c.d, jnp.full(c.labels.shape, -2.0, c.means.dtype), c.labels)


def robust_radius(c: Clusters) -> Float[Array, ""]:
    """sqrt(d)/8, in units of the input: `robust_network` has no flip within it at a fresh point
    with |<mu_q, xi>| <= sigma sqrt(d) ln(d) for all q, which all are but for a share of at most
    2 k d^(-ln(d)/2). NaN where Assumption 2.2 does not hold, of which it says nothing.

    The paper asks for a d that is sufficiently large, so that 4 ln(d) <= sqrt(d). Its proof needs
    Delta <= d, which Assumption 2.2 contains (Lemma A.9). Theorem 4.1.
    """
    applies = jnp.stack([one.holds for one in c.assumptions().values()]).all()
    return jnp.where(applies, jnp.sqrt(c.d) / 8, jnp.nan)


def linear_network(c: Clusters) -> Params:
    """The linear predictor sum_q y_q mu_q . x / d as a network of two neurons of opposite signs."""
    w = c.u / c.d
    return Params(jnp.stack([w, -w]), jnp.zeros(2, w.dtype), jnp.array([1.0, -1.0], w.dtype))
