"""Lemmas A.10 to A.13, D.2 to D.9, on which Theorems 3.1 and 4.2 stand."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkkt import networks
from jaxkkt.networks import PRECISION, preactivations
from jaxkkt.numerics.requirements import (
    require_places,
    require_points,
)
from jaxkkt.numerics.truths import all_of, any_of
from jaxkkt.theory.checks import (
    Assumption,
    Check,
    above,
    at_least,
    at_most,
    below,
    of_some,
    share_at_least,
    tightest,
)
from jaxkkt.theory.frei.distribution import Clusters
from jaxkkt.theory.frei.samples import Sample, properties
from jaxkkt.theory.points import NEAR, KKTPoint


class Setting(NamedTuple):
    """A KKT point whose samples came from clusters, and fresh points to ask it about.

    cluster (n,), test_cluster (t,): which cluster each sample and each test point came from, by its
    place among them; samples with y = 0 are padding. Claims raise ValueError for other places, and
    those about test points where there are none.
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
        require_points(test_x=self.test_x)
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
        |<x_i, x>| <= p + Delta outside."""
        c, (x, cluster, _), (test_x, test_cluster, _) = self.clusters, self.sample, self.test
        noise, own_noise = test_x - c.means[test_cluster], x - c.means[cluster]
        products = jnp.dot(test_x, x.T, precision=PRECISION)
        same = test_cluster[:, None] == cluster[None]
        off = jnp.where(same, jnp.abs(products - c.d), jnp.abs(products) - c.p)
        with_noise = (jnp.abs(jnp.dot(noise, a.T, precision=PRECISION)) for a in (x, own_noise))
        largest = jnp.maximum(*with_noise)
        padding = (self.point.y == 0)[None]
        return all_of(padding | (jnp.maximum(off, largest) <= c.delta), axis=1)

    @property
    def n(self) -> Float[Array, ""]:
        """How many samples there are, without padding."""
        return jnp.sum(self.point.y != 0, dtype=self.point.x.dtype)

    @property
    def not_nice(self) -> Float[Array, ""]:
        """4 n d^(-ln(d)/2): by Lemma A.13 a fresh point is not nice with at most this probability,
        the epsilon of Theorems 3.1 and 4.2. Above 1 where that says nothing."""
        return 4 * self.n * jnp.exp(-(jnp.log(self.clusters.d) ** 2) / 2)

    def of_samples(self) -> dict[str, Assumption]:
        """Assumption 2.2, and P1 to P6."""
        found = properties(self.clusters, self.sample)
        sides = {
            name: Assumption(check.measured, check.bound, check.holds)
            for name, check in found.items()
        }
        return {**self.clusters.assumptions(), **sides}

    def of_labels(self) -> dict[str, Assumption]:
        """No noise: each sample has the label of its cluster, as in Section 2."""
        own = self.clusters.labels[self.sample.cluster]
        noisy = (self.point.y != 0) & (self.point.y != own)
        return {"y_i = y_q": below(jnp.sum(noisy, dtype=self.point.x.dtype), 0.0)}

    def assumptions(self) -> dict[str, Assumption]:
        """A KKT point, labels without noise, Assumption 2.2, and P1 to P6."""
        return {**self.point.conditions(), **self.of_labels(), **self.of_samples()}


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
    """Lemma A.12: y N(x) > 0 at every nice test point. Measured: the smallest.

    Where no test point is nice it says nothing (`Check.empty`), as all claims about them do.
    """
    least = jnp.min(jnp.where(s.nice, _test_margins(s), jnp.inf))
    return of_some(above(least, 0.0, s.assumptions()), any_of(s.nice))


def nice_points(s: Setting) -> Check:
    """Lemma A.13 (and D.1): a fresh point is nice with probability at least 1 - 4 n d^(-ln(d)/2).

    Measured: the share of these test points, which have to be drawn from the clusters;
    `theory.share_at_least` has how a share of few is judged. The claim says nothing where its bound
    is 0 or less. It is about the samples alone, and asks for no KKT point.
    """
    epsilon = s.not_nice
    return share_at_least(s.nice, epsilon, s.of_samples(), vacuous=epsilon >= 1)


def outputs(s: Setting) -> Check:
    """Lemma D.2: |N(x)| <= 2 at every nice test point."""
    largest = jnp.max(jnp.where(s.nice, jnp.abs(_test_margins(s)), 0))
    return of_some(at_most(largest, 2.0, s.assumptions()), any_of(s.nice))


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

    Measured: the largest. Where no nice point has the label it says nothing. Raises ValueError for
    a label other than -1 and 1.
    """
    if label not in (-1, 1):
        raise ValueError(f"the label of the fresh points to be flipped is -1 or 1, got {label}")
    moved = s.test_x - s.test_y[:, None] * s.clusters.z[None]
    q = networks.margins(s.point.params, moved, s.test_y)
    chosen = s.nice & (s.test_y == label)
    largest = jnp.max(jnp.where(chosen, q, -jnp.inf))
    return of_some(at_most(largest, -1.0, s.assumptions()), any_of(chosen))


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
    "A.13: share of fresh points that are nice": nice_points,
    "D.2: outputs at fresh points": outputs,
    "D.3: preactivations from below": not_far_off,
    "D.4: weights along u": alignment,
    "D.5: d - Delta - kp - k Delta > 0": lambda s: room(s.clusters),
    "D.6: opposing neurons active": opposing_neurons,
    "D.7: fresh positive points flipped": partial(flipped, label=1),
    "D.8: fresh negative points flipped": partial(flipped, label=-1),
    "D.9: size of z": lambda s: size(s.clusters),
}


def _pairs(s: Setting) -> Bool[Array, "t k"]:
    return s.nice[:, None] & s.point.live[None]


def _test_margins(s: Setting) -> Float[Array, " t"]:
    return networks.margins(s.point.params, s.test_x, s.test_y)
