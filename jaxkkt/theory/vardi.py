"""Vardi, Yehudai, Shamir (2022): robust networks exist, and gradient flow finds others.

Letters: m samples, d input dimension, k width, p = max |<x_i, x_l>| over pairs i != l, c the
smaller share of a label, c' = m (p+1)/(d+1). What the paper says of a KKT point takes a
`theory.KKTPoint` and the `Summary` of the samples I that it is about: all, as in Theorem 4.1, or
those that attain the margin, as in Corollary 4.1 (`on_margin`). J+ are the neurons with v_j >= 0,
J- the others; u = sum_{i in I} y_i x_i. Lemmas C.1 to C.9 are numbered as in the arXiv version.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import pi, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxkkt import datasets, networks
from jaxkkt.networks import PRECISION, Params, preactivations
from jaxkkt.numerics.arithmetic import lengths
from jaxkkt.numerics.requirements import (
    as_mask,
    as_positive,
    as_samples,
    require_at_least_one,
    unshared,
)
from jaxkkt.theory.checks import Assumption, Check, above, at_least, at_most, below, tightest
from jaxkkt.theory.points import NEAR, KKTPoint

Real = float | Float[Array, ""]


class Summary(NamedTuple):
    """What the theorems need to know of samples.

    chosen (n,): the samples I that the other numbers are about; m counts them.
    p: the largest |<x_i, x_l>| of two of them. share: c, the smaller share of a label.
    off_sphere: max_i | |x_i| / sqrt(d) - 1 |.
    """

    chosen: Bool[Array, " n"]
    m: Float[Array, ""]
    d: Float[Array, ""]
    p: Float[Array, ""]
    share: Float[Array, ""]
    off_sphere: Float[Array, ""]

    @property
    def room(self) -> Array:
        """d - m p, positive by Lemma C.5."""
        return self.d - self.m * self.p

    @property
    def c_prime(self) -> Array:
        """c' = m (p+1)/(d+1), at most 1/3 by the assumption on m."""
        return self.m * (self.p + 1) / (self.d + 1)

    @property
    def etas(self) -> tuple[Array, Array]:
        """eta1 = (p+1)/(d - m p) and eta2 = 2 (c c' + 1)(d+1) / (m c (d - m p)); see Lemma C.7.
        NaN where d <= m p, where the paper has none."""
        c, room = self.share, jnp.where(self.room > 0, self.room, jnp.nan)
        second = 2 * (c * self.c_prime + 1) * (self.d + 1) / (self.m * c * room)
        return (self.p + 1) / room, second

    def assumptions(self) -> dict[str, Assumption]:
        """What Theorem 4.1 and Corollary 4.1 ask of the samples."""
        return {
            "|x_i| = sqrt(d)": below(self.off_sphere, NEAR),
            "both labels": below(0.0, self.share, strictly=True),
            "m <= (d+1) / (3 (p+1))": below(self.m, (self.d + 1) / (3 * (self.p + 1))),
        }


def summary(
    x: Float[Array | np.ndarray, "n d"],
    y: Float[Array | np.ndarray, " n"],
    chosen: Bool[Array | np.ndarray, " n"] | Sequence | None = None,
    d: Real | None = None,
) -> Summary:
    """The summary of all samples, or of the chosen ones; those with y = 0 are padding.

    Points of R^d written in coordinates of a subspace (`jk.spans`) need their own d.

    Raises ValueError for labels other than -1 and 1, arrays that do not fit, a choice that is not
    one truth value a sample, a d that is not positive and finite, and samples of one label alone:
    there is no other class to be flipped to.
    """
    x, y = as_samples(x=x, y=y)
    real = y != 0
    chosen = real if chosen is None else as_mask("chosen", chosen, y.shape[0]) & real
    count = jnp.sum(chosen, dtype=x.dtype)
    positive = jnp.sum(chosen & (y > 0), dtype=x.dtype)
    share = jnp.minimum(positive, count - positive) / jnp.maximum(count, 1)
    if not isinstance(share, jax.core.Tracer) and not share > 0:
        raise ValueError(
            f"the theorems ask for samples of both labels, got {float(count):g} of one"
        )
    d = as_positive("d", x.shape[1] if d is None else d, x.dtype)
    away = jnp.abs(lengths(x) / jnp.sqrt(d) - 1)
    return Summary(
        chosen, count, d, largest_product(x, chosen), share, jnp.max(jnp.where(chosen, away, 0))
    )


def on_margin(point: KKTPoint, d: Real | None = None) -> Summary:
    """The summary of the samples with y_i N(x_i) = 1, those of Corollary 4.1."""
    return summary(point.x, point.y, point.margins <= 1 + NEAR, d)


def largest_product(x: Float[Array, "n d"], chosen: Bool[Array, " n"]) -> Float[Array, ""]:
    """max |<x_i, x_l>| over the pairs i != l of chosen rows; 0 where there is none."""
    pairs = chosen[:, None] & chosen[None] & ~jnp.eye(len(x), dtype=bool)
    return jnp.max(jnp.where(pairs, jnp.abs(jnp.dot(x, x.T, precision=PRECISION)), 0))


def perturbation(point: KKTPoint, s: Summary) -> Float[Array, " d"]:
    """z = (eta1 + eta2) u: Theorem 4.1 promises that x_i - y_i z is flipped for every i in I. NaN
    where d <= m p."""
    return sum(s.etas) * _u(point, s)


# --- Theorem 3.1 and Lemma 3.1 ---


def robust_network(
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    c: Real,
    d: Real | None = None,
) -> Params:
    """Theorem 3.1: one neuron a sample, v_j = y_j, w_j = 2 x_j / (d (1-c)), b_j = -(1+c)/(1-c).

    Where |x_i| = sqrt(d) and all |<x_i, x_l>| <= c d, N(x_i) = y_i and no x_i is flipped within
    `robust_radius`. d is the number of coordinates unless it is given, as for points of `spans`.
    Raises ValueError unless 0 <= c < 1 and d is positive.
    """
    x, y = datasets.check(x, unshared(y))
    if not isinstance(c, jax.core.Tracer) and not 0 <= c < 1:
        raise ValueError(f"c is a share of d in [0, 1), got {c}")
    bias = jnp.full(y.shape, -(1 + c) / (1 - c), x.dtype)
    d = as_positive("d", x.shape[1] if d is None else d, x.dtype)
    return Params(2 * x / (d * (1 - c)), bias, y)


def robust_radius(s: Summary) -> Float[Array, ""]:
    """(1-c) sqrt(d) / 4 for c = p/d, within which the robust network has no flip; 0 where p > d,
    and NaN for points off the sphere of radius sqrt(d), of which it says nothing. Theorem 3.1."""
    radius = jnp.maximum(1 - s.p / s.d, 0) * jnp.sqrt(s.d) / 4
    return jnp.where(s.off_sphere <= NEAR, radius, jnp.nan)


def correlation_density(t: float | np.ndarray | Sequence, d: int) -> Any:
    """The density of |<x, x'>| of two points uniform on the unit sphere of R^d, at 0 <= t <= 1:

    2 / B(1/2, (d-1)/2) (1 - t^2)^((d-3)/2). Appendix B, equation 8. Raises ValueError for d < 2
    and t outside [0, 1].
    """
    from scipy.special import poch  # here: slow to import

    if d < 2:
        raise ValueError(f"the density is one of dimensions d >= 2, got {d}")
    if not isinstance(t, jax.core.Tracer) and not (np.min(t) >= 0 and np.max(t) <= 1):
        raise ValueError(f"t is the size of a product of unit vectors, in [0, 1], got {t}")
    # 2 / B(1/2, (d - 1) / 2). A difference of log gammas would lose all digits as d grows.
    scale = 2 / sqrt(pi) * float(poch((d - 1) / 2, 0.5))
    t = t if isinstance(t, jax.core.Tracer) else np.asarray(t, float)
    if d == 3:
        return scale + 0 * t
    if isinstance(t, jax.core.Tracer):
        return scale * jnp.exp((d - 3) / 2 * jnp.log1p(-(t**2)))
    with np.errstate(divide="ignore"):  # on the circle it has a pole at 1
        return scale * np.exp((d - 3) / 2 * np.log1p(-(t**2)))


def uncorrelated(samples: int, d: int, *, half: bool) -> float:
    """Lemma 3.1: the least probability that all pairs of m points, uniform on the unit sphere, have

    |<x_i, x_l>| <= 1/2 (`half`): 1 - m^2 d (3/4)^((d-3)/2), or
    |<x_i, x_l>| <= ln(d) / sqrt(d): 1 - m^2 d^(1 - ln(d)/4), for d >= 6.

    m = d^k in the paper. Negative where the lemma says nothing. In 64 bits: 1 less it is small.
    Raises ValueError for d < 2 and no
    samples.
    """
    require_at_least_one(samples=samples)
    if d < 2:
        raise ValueError(f"the lemma is one of dimensions d >= 2, got {d}")
    logarithm = np.log(float(d))
    power = (d - 3) / 2 * np.log(0.75) if half else -(logarithm**2) / 4
    failing = 2 * np.log(float(samples)) + logarithm + power
    return float(-np.expm1(failing)) if half or d >= 6 else -np.inf


# --- Lemmas C.1 to C.9, Theorem 4.1 and Corollary 4.1 ---


def all_on_margin(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.1: all samples are on the margin. Measured: the largest q_i, at most 1.

    With the summary of `on_margin` it is true by choice, and says nothing.
    """
    largest = jnp.max(jnp.where(s.chosen, point.margins, -jnp.inf))
    return at_most(largest, 1.0, _asked(point, s), tolerance=NEAR)


def mass(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.2: sum_i sum_{j in J+} v_j^2 lambda_i sigma'_ij >= m c / ((c c' + 1)(d+1)), and the
    same over J-. Measured: the smaller of the two."""
    each = point.params.v**2 * jnp.sum(point.pulls, axis=0)
    sums = (jnp.sum(jnp.where(side, each, 0)) for side in (point.positive, ~point.positive))
    bound = s.m * s.share / ((s.share * s.c_prime + 1) * (s.d + 1))
    return at_least(jnp.minimum(*sums), bound, _asked(point, s), tolerance=NEAR * bound)


def not_far_off(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.3: w_j . x_i + b_j >= -(p+1) sum_l |v_j| lambda_l sigma'_lj for i in I and all j.

    Measured and bound are of the pair with the least slack, as in all lemmas about many pairs.
    """
    bound = -(s.p + 1) * point.weight[None]
    found = preactivations(point.params, point.x)
    return tightest(found, bound, _asked(point, s), _pairs(point, s), rounding=NEAR)


def alignment(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.4: w_j . u >= sum_i v_j lambda_i sigma'_ij (d - m p) for j in J+, <= for j in J-.

    Both sides are taken times the sign of v_j.
    """
    bound = point.weight * s.room
    found = point.along(_u(point, s))
    return tightest(found, bound, _asked(point, s), point.live, rounding=NEAR)


def room(s: Summary) -> Check:
    """Lemma C.5: d - m p > 0."""
    return above(s.room, 0.0, s.assumptions())


def opposing_neurons(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.6: for z = eta1 u, w_j . (x_i - z) + b_j >= 0 for j in J-, and
    w_j . (x_i + z) + b_j >= 0 for j in J+, i in I."""
    step = s.etas[0] * point.along(_u(point, s))
    moved = preactivations(point.params, point.x) + step[None]
    asked = _asked(point, s)
    return tightest(moved, jnp.zeros(()), asked, _pairs(point, s), rounding=NEAR)


def flipped(point: KKTPoint, s: Summary, label: int) -> Check:
    """Lemma C.7 (label 1) and C.8 (label -1): y_i N(x_i - y_i z) <= -1 for i in I of the label.

    Measured: the largest. Theorem 4.1 and Corollary 4.1 are both of them.
    """
    moved = point.x - point.y[:, None] * perturbation(point, s)[None]
    q = networks.margins(point.params, moved, point.y)
    largest = jnp.max(jnp.where(s.chosen & (point.y == label), q, -jnp.inf))
    return at_most(largest, -1.0, _asked(point, s), tolerance=NEAR)


def size(point: KKTPoint, s: Summary) -> Check:
    """Lemma C.9: |z| <= 18 sqrt(2 d) / (c sqrt(m)). Vacuous where that is sqrt(d) or more, the size
    of a perturbation that makes a point of the other class out of any point."""
    bound = 18 * jnp.sqrt(2 * s.d) / (s.share * jnp.sqrt(s.m))
    norm = jnp.linalg.norm(perturbation(point, s))
    return at_most(norm, bound, s.assumptions(), vacuous=bound >= jnp.sqrt(s.d))


LEMMAS: dict[str, Callable[[KKTPoint, Summary], Check]] = {
    "C.1: all on the margin": all_on_margin,
    "C.2: mass of the multipliers": mass,
    "C.3: preactivations from below": not_far_off,
    "C.4: weights along u": alignment,
    "C.5: d - m p > 0": lambda _, s: room(s),
    "C.6: opposing neurons active": opposing_neurons,
    "C.7: positive samples flipped": partial(flipped, label=1),
    "C.8: negative samples flipped": partial(flipped, label=-1),
    "C.9: size of z": size,
}


def ledger(point: KKTPoint, s: Summary) -> dict[str, Check]:
    """Every lemma of Appendix C and with them Theorem 4.1, in the paper's order."""
    return {name: lemma(point, s) for name, lemma in LEMMAS.items()}


def _asked(point: KKTPoint, s: Summary) -> dict[str, Assumption]:
    return {**point.conditions(), **s.assumptions()}


def _u(point: KKTPoint, s: Summary) -> Float[Array, " d"]:
    return jnp.dot(jnp.where(s.chosen, point.y, 0), point.x, precision=PRECISION)


def _pairs(point: KKTPoint, s: Summary) -> Bool[Array, "n k"]:
    return s.chosen[:, None] & point.live[None]
