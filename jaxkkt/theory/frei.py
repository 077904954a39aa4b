"""Frei, Vardi, Bartlett, Srebro (2023): on clustered data, KKT points generalize and are flipped.

Letters: n samples x_i = mu_q + xi_i of k clusters with labels y_q, d input dimension, sigma the
noise, p = max |<mu_q, mu_q'>| over pairs of means, Delta = 4 sigma sqrt(d) ln(d), c the smaller
share of a label among the clusters, c' = k (p + Delta + 1)/(d - Delta + 1). J+ are the neurons with
v_j > 0, J- those with v_j < 0; u = sum_q y_q mu_q. What the paper says of a KKT point takes a
`theory.KKTPoint` and the `Clusters` that its samples came from.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt import mixtures, networks
from jaxkkt.networks import PRECISION, Params, preactivations
from jaxkkt.numerics.requirements import (
    as_arrays,
    as_positive,
    require_at_least_one,
    require_places,
    require_points,
)
from jaxkkt.theory.checks import Assumption, Check, above, at_least, at_most, below, tightest
from jaxkkt.theory.points import NEAR, KKTPoint
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
        eta2 = 3 (3d + Delta + 1)(1 - 2c') / (room (1 - 3c') c k); see Lemma D.7."""
        ratio = (1 - 2 * self.c_prime) / (1 - 3 * self.c_prime)
        second = 3 * (3 * self.d + self.delta + 1) * ratio / (self.room * self.share * self.k)
        return (2 * self.delta + self.p + 1) / self.room, second

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
    means, labels = as_arrays(means=means, labels=labels)
    if means.ndim != 2 or labels.shape != means.shape[:1]:
        raise ValueError(
            f"means must be (k, d) and labels (k,), got {means.shape} and {labels.shape}"
        )
    if not isinstance(labels, jax.core.Tracer) and not np.isin(labels, (-1, 1)).all():
        raise ValueError("the labels of clusters must be -1 or 1")
    d = means.shape[1] if d is None else d
    sigma, d = (as_positive(n, a, means.dtype) for n, a in (("sigma", sigma), ("d", d)))
    return Clusters(means, labels, sigma, d)


# --- probabilities: ValueError for a dimension or a number of samples below 1 ---


def separated(d: int) -> float:
    """Lemma 2.1: u separates a fresh point with probability at least 1 - 2 d^(1 - ln(d)/2)."""
    require_at_least_one(d=d)
    log = np.log(float(d))
    return float(-np.expm1(np.log(2) + (1 - log / 2) * log))


def nice_sample(n: int, d: int) -> float:
    """Proposition A.1: P1 to P6 hold with probability at least
    1 - (3 n^2 d^(-ln(d)/2) + n^2 e^(-d/16) + d^(1 - ln(d))), for n >= k ln(d)^2."""
    require_at_least_one(n=n, d=d)
    dim, squared = float(d), float(n) ** 2  # not in 32 bits
    log = np.log(dim)
    failing = 3 * squared * dim ** (-log / 2) + squared * np.exp(-dim / 16) + dim ** (1 - log)
    return float(1 - failing)


def test_error(n: int, d: int) -> float:
    """Theorem A.1: the test error of any KKT point is at most 4 n d^(-ln(d)/2), where P1 to P6
    hold. One at least where it says nothing."""
    require_at_least_one(n=n, d=d)
    return float(4 * n * float(d) ** (-np.log(float(d)) / 2))


# --- Theorem 4.1 ---


def robust_network(c: Clusters) -> Params:
    """Theorem 4.1: one neuron a cluster, v_q = y_q, w_q = 4 mu_q / d, b_q = -2.

    With high probability a point has margin >= 1 and is not flipped within sqrt(d)/8.
    """
    return Params(4 * c.means / c.d, jnp.full(c.labels.shape, -2.0, c.means.dtype), c.labels)


def linear_network(c: Clusters) -> Params:
    """The linear predictor sum_q y_q mu_q . x / d as a network of two neurons of opposite signs."""
    w = c.u / c.d
    return Params(jnp.stack([w, -w]), jnp.zeros(2, w.dtype), jnp.array([1.0, -1.0], w.dtype))


# --- P1 to P6 ---


class Sample(NamedTuple):
    """Samples x (n, d) with the cluster (n,) that each came from; which are `real`, where some are
    padding."""

    x: Float[Array, "n d"]
    cluster: Int[Array, " n"]
    real: Bool[Array, " n"] | None = None


PROPERTIES = (
    "P1: |xi_i| <= sigma sqrt(2d)",
    "P2: |<xi_i, xi_l>| <= sigma^2 sqrt(2d) ln(d)",
    "P3: |<mu_q, xi_i>| <= sigma sqrt(d) ln(d)",
    "P4: |<x_i, x_l>| <= p + Delta across clusters",
    "P5: <x_i, x_l> >= d - Delta within one",
    "P5: <x_i, x_l> <= 3d + Delta within one",
    "P6: every cluster has a sample",
)


def properties(c: Clusters, sample: Sample) -> dict[str, Check]:
    """P1 to P6 of a training sample, as in Section A.1; each holds with high probability.

    Raises ValueError for no points, and unless each has the number of a cluster that there is; of
    traced ones no number is looked at.
    """
    x, cluster, real = sample
    require_points(x=x)
    real = jnp.ones(len(x), bool) if real is None else real
    require_places("cluster", cluster, len(x), len(c.labels))
    xi = x - c.means[cluster]
    log, root = jnp.log(c.d), jnp.sqrt(c.d)
    products = jnp.dot(x, x.T, precision=PRECISION)
    noise = jnp.abs(jnp.dot(xi, xi.T, precision=PRECISION))
    pairs = real[:, None] & real[None]
    same = (cluster[:, None] == cluster[None]) & pairs
    others = ~jnp.eye(len(x), dtype=bool) & pairs
    longest_noise = jnp.max(jnp.where(real, jnp.linalg.norm(xi, axis=1), 0))
    along_means = jnp.abs(jnp.dot(xi, c.means.T, precision=PRECISION))
    on_means = jnp.max(jnp.where(real[:, None], along_means, 0))
    counts = jnp.zeros(len(c.labels), x.dtype).at[cluster].add(jnp.where(real, 1.0, 0.0))
    across = jnp.max(jnp.where(pairs & ~same, jnp.abs(products), 0))
    within = jnp.min(jnp.where(same, products, jnp.inf))
    longest = jnp.max(jnp.where(same, products, -jnp.inf))
    none: dict[str, Assumption] = {}
    found = (
        at_most(longest_noise, c.sigma * jnp.sqrt(2 * c.d), none),
        at_most(jnp.max(jnp.where(others, noise, 0)), c.sigma**2 * jnp.sqrt(2 * c.d) * log, none),
        at_most(on_means, c.sigma * root * log, none),
        at_most(across, c.p + c.delta, none),
        at_least(within, c.d - c.delta, none),
        at_most(longest, 3 * c.d + c.delta, none),
        at_least(jnp.min(counts), 1.0, none),
    )
    return dict(zip(PROPERTIES, found, strict=True))


# --- Lemmas A.10, A.11 and A.12, D.2 to D.9, Theorems 3.1 and 4.2 ---


class Setting(NamedTuple):
    """A KKT point whose samples came from clusters, and fresh points to ask it about.

    cluster (n,), test_cluster (t,): which cluster each sample and each test point came from, by its
    place among them; samples with y = 0 are padding. Lemmas raise ValueError for other places.
    """

    point: KKTPoint
    clusters: Clusters
    cluster: Int[Array, " n"]
    test_x: Float[Array, "t d"]
    test_cluster: Int[Array, " t"]

    @property
    def sample(self) -> Sample:
        require_places("cluster", self.cluster, len(self.point.x), len(self.clusters.labels))
        return Sample(self.point.x, self.cluster, self.point.y != 0)

    @property
    def test(self) -> Sample:
        known = len(self.clusters.labels)
        require_places("test_cluster", self.test_cluster, len(self.test_x), known)
        return Sample(self.test_x, self.test_cluster)

    @property
    def test_y(self) -> Array:
        return self.clusters.labels[self.test.cluster]

    @property
    def nice(self) -> Bool[Array, " t"]:
        """Which test points are as Lemma A.13 says that almost all are: with x = mu_r + xi,
        |<x_i, xi>| and |<xi_i, xi>| at most Delta for all i, |<x_i, x> - d| <= Delta in cluster r,
        |<x_i, x>| <= p + Delta outside. Raises ValueError for no test points."""
        require_points(test_x=self.test_x)
        c, (x, cluster, _), (test_x, test_cluster, _) = self.clusters, self.sample, self.test
        noise, own_noise = test_x - c.means[test_cluster], x - c.means[cluster]
        products = jnp.dot(test_x, x.T, precision=PRECISION)
        same = test_cluster[:, None] == cluster[None]
        off = jnp.where(same, jnp.abs(products - c.d), jnp.abs(products) - c.p)
        with_noise = (jnp.abs(jnp.dot(noise, a.T, precision=PRECISION)) for a in (x, own_noise))
        largest = jnp.maximum(*with_noise)
        padding = (self.point.y == 0)[None]
        return jnp.all(padding | (jnp.maximum(off, largest) <= c.delta), axis=1)

    def assumptions(self) -> dict[str, Assumption]:
        """A KKT point, Assumption 2.2, and P1 to P6."""
        found = properties(self.clusters, self.sample)
        sides = {
            name: Assumption(check.measured, check.bound, check.holds)
            for name, check in found.items()
        }
        return {**self.point.conditions(), **self.clusters.assumptions(), **sides}


def cluster_mass(s: Setting) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """sum_{i in cluster q} sum_j v_j^2 lambda_i sigma'_ij over J+ and over J-, for every q."""
    v = s.point.params.v
    each = s.point.pulls * v[None] ** 2
    sums = (jnp.sum(jnp.where(side[None], each, 0), axis=1) for side in (v > 0, v < 0))
    empty = jnp.zeros(len(s.clusters.labels), s.point.x.dtype)
    plus, minus = (empty.at[s.sample.cluster].add(sum_) for sum_ in sums)
    return plus, minus


def mass_from_above(s: Setting) -> Check:
    """Lemma A.10: both sums of a cluster are at most 1 / ((1 - 2c')(d - Delta + 1))."""
    c = s.clusters
    bound = 1 / ((1 - 2 * c.c_prime) * (c.d - c.delta + 1))
    largest = jnp.max(jnp.stack(cluster_mass(s)))
    return at_most(largest, bound, s.assumptions(), tolerance=NEAR * bound)


def mass_from_below(s: Setting) -> Check:
    """Lemma A.11: the sum over the neurons of the cluster's own sign is at least
    (1 - c'/(1 - 2c')) / (3d + Delta + 1)."""
    c = s.clusters
    bound = (1 - c.c_prime / (1 - 2 * c.c_prime)) / (3 * c.d + c.delta + 1)
    plus, minus = cluster_mass(s)
    least = jnp.min(jnp.where(c.labels > 0, plus, minus))
    return at_least(least, bound, s.assumptions(), tolerance=NEAR * bound)


def signs(s: Setting) -> Check:
    """Lemma A.12: y N(x) > 0 at every nice test point. Measured: the smallest."""
    least = jnp.min(jnp.where(s.nice, _test_margins(s), jnp.inf))
    return above(least, 0.0, s.assumptions())


def outputs(s: Setting) -> Check:
    """Lemma D.2: |N(x)| <= 2 at every nice test point."""
    largest = jnp.max(jnp.where(s.nice, jnp.abs(_test_margins(s)), 0))
    return at_most(largest, 2.0, s.assumptions())


def not_far_off(s: Setting) -> Check:
    """Lemma D.3: w_j . x + b_j >= -sum_i lambda_i |v_j| sigma'_ij (2 Delta + p + 1), nice x."""
    bound = -(2 * s.clusters.delta + s.clusters.p + 1) * s.point.weight[None]
    found = preactivations(s.point.params, s.test_x)
    return tightest(found, bound, s.assumptions(), _pairs(s), rounding=NEAR)


def alignment(s: Setting) -> Check:
    """Lemma D.4: w_j . u >= sum_i lambda_i v_j sigma'_ij (d - Delta - kp - k Delta) for j in J+,
    <= for j in J-. Both sides times the sign of v_j."""
    bound = s.point.weight * s.clusters.room
    found = s.point.along(s.clusters.u)
    return tightest(found, bound, s.assumptions(), s.point.live, rounding=NEAR)


def room(c: Clusters) -> Check:
    """Lemma D.5: d - Delta - kp - k Delta > 0."""
    return above(c.room, 0.0, c.assumptions())


def opposing_neurons(s: Setting) -> Check:
    """Lemma D.6: for z = eta1 u and nice x, w_j . (x - z) + b_j >= 0 for j in J-, and
    w_j . (x + z) + b_j >= 0 for j in J+."""
    step = s.clusters.etas[0] * s.point.along(s.clusters.u)
    moved = preactivations(s.point.params, s.test_x) + step[None]
    return tightest(moved, jnp.zeros(()), s.assumptions(), _pairs(s), rounding=NEAR)


def flipped(s: Setting, label: int) -> Check:
    """Lemmas D.7 (label 1) and D.8 (label -1): y N(x - y z) <= -1 at nice test points of the label.

    Measured: the largest."""
    moved = s.test_x - s.test_y[:, None] * s.clusters.z[None]
    q = networks.margins(s.point.params, moved, s.test_y)
    largest = jnp.max(jnp.where(s.nice & (s.test_y == label), q, -jnp.inf))
    return at_most(largest, -1.0, s.assumptions())


def size(c: Clusters) -> Check:
    """Lemma D.9: |z| <= C sqrt(d / (c^2 k)), with the C of its proof in figures. The proof bounds

    eta1 + eta2 <= (d+1)/(5 k r) + 24 (64 d/21 + 1)/(7 c k r) with r = 20d/21 - (d+1)/10, and
    |u|^2 <= k d + c' k (d - Delta + 1).
    """
    rest = 20 * c.d / 21 - (c.d + 1) / 10
    first = (c.d + 1) / (5 * c.k * rest)
    second = 24 * (64 * c.d / 21 + 1) / (7 * c.share * c.k * rest)
    bound = (first + second) * jnp.sqrt(c.k * c.d + c.c_prime * c.k * (c.d - c.delta + 1))
    vacuous = bound >= jnp.sqrt(c.d)
    return at_most(jnp.linalg.norm(c.z), bound, c.assumptions(), vacuous=vacuous)


LEMMAS: dict[str, Callable[[Setting], Check]] = {
    "A.10: mass of a cluster, at most": mass_from_above,
    "A.11: mass of a cluster, at least": mass_from_below,
    "A.12: signs at fresh points": signs,
    "D.2: outputs at fresh points": outputs,
    "D.3: preactivations from below": not_far_off,
    "D.4: weights along u": alignment,
    "D.5: d - Delta - kp - k Delta > 0": lambda s: room(s.clusters),
    "D.6: opposing neurons active": opposing_neurons,
    "D.7: fresh positive points flipped": partial(flipped, label=1),
    "D.8: fresh negative points flipped": partial(flipped, label=-1),
    "D.9: size of z": lambda s: size(s.clusters),
}


def ledger(s: Setting) -> dict[str, Check]:
    """P1 to P6, and every lemma that Theorems 3.1 and 4.2 rest on, in the paper's order."""
    return {
        **properties(s.clusters, s.sample),
        **{name: lemma(s) for name, lemma in LEMMAS.items()},
    }


def _pairs(s: Setting) -> Bool[Array, "t k"]:
    return s.nice[:, None] & s.point.live[None]


def _test_margins(s: Setting) -> Float[Array, " t"]:
    return networks.margins(s.point.params, s.test_x, s.test_y)
