"""The papers' constructions beyond `vardi` and `frei`, and how far points are from being flipped.

Two numbers frame the smallest perturbation that flips a point: a guarantee below which none does,
and an attack that does. Guarantee <= smallest perturbation <= attack, up to rounding, for every
depth-2 network and for 1-nearest-neighbour. Letters: n points, d input dimension, k width, m
training samples. Sizes are l2 norms, in units of the input.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxkkt.datasets import Dataset
from jaxkkt.networks import (
    PRECISION,
    Params,
    checked_samples,
    preactivations,
    relu,
    value_and_input_gradient,
)
from jaxkkt.numerics.arithmetic import lengths, ratio, scale, unit
from jaxkkt.numerics.derivatives import as_zeros, without_derivative
from jaxkkt.numerics.requirements import (
    as_arrays,
    as_positive,
    as_samples,
    require_points,
    unshared,
)
from jaxkkt.numerics.truths import any_of
from jaxkkt.perturbations import pgd
from jaxkkt.perturbations.rays import Ray, first_flip

Points = Float[Array | np.ndarray, "n d"] | Sequence
Labels = Float[Array | np.ndarray, " n"] | Sequence
Samples = Float[Array | np.ndarray, "m d"] | Sequence
SampleLabels = Float[Array | np.ndarray, " m"] | Sequence
Direction = Float[Array | np.ndarray, " d"] | Sequence
Real = float | Float[Array, ""]

# The search turns a ray towards the boundary's normal by each of these shares, so many times over;
# projected gradient descent takes DESCENT steps to find one more ray.
SHARES, TURNS, DESCENT = (1.0, 0.3, 0.1), 10, 25


# --- Vardi, Yehudai, Shamir (2022), Section 5.1 ---


def axis_data(d: int) -> Dataset:
    """x_i = sqrt(d) e_i for i = 1, ..., d, the first half labelled 1 and the other half -1.

    Shapes (d, d) and (d,). Raises ValueError unless d is even and at least 2. Vardi, Yehudai,
    Shamir (2022), Section 5.1.
    """
    if d < 2 or d % 2:
        raise ValueError(f"half of the d samples have each label: d must be even, got {d}")
    x = jnp.sqrt(float(d)) * jnp.eye(d)
    return Dataset(x, jnp.where(jnp.arange(d) < d // 2, 1.0, -1.0))


def larger_margin_network(x: Points, y: Labels, d: Real | None = None) -> Params:
    """One neuron a sample, without bias: v_j = y_j, w_j = x_j / d, b_j = 0.

    On `axis_data` N(x_i) = y_i, with |theta|^2 = d + 1 where `vardi.robust_network` with c = 0
    has 2d + 4: the larger normalized margin, and yet `opposing_samples` flips every sample. The
    other needs a perturbation of more than sqrt(d)/2. d is the number of coordinates unless it is
    given, as for points of `jk.spans`. Raises ValueError for labels other than -1 and 1, arrays
    that do not fit and a d that is not positive. Vardi, Yehudai, Shamir (2022), Section 5.1.
    """
    x, y = as_samples(x=x, y=unshared(y))
    return Params(x / _dimension(x, d), jnp.zeros_like(y), y)


def opposing_samples(x: Points, y: Labels, label: int, d: Real | None = None) -> Float[Array, " d"]:
    """z = (4/d) sum of the samples labelled -label, which flips the others when it is added.

    On `axis_data` |z| = 2 sqrt(2) for every d, and `larger_margin_network` has
    label N(x_i + z) = -1 at each sample of the label. Raises ValueError for a label other than -1
    and 1, and as `larger_margin_network`, whose d it takes. Vardi, Yehudai, Shamir (2022),
    Section 5.1.
    """
    if label not in (-1, 1):
        raise ValueError(f"the label of the samples to be flipped is -1 or 1, got {label}")
    x, y = as_samples(x=x, y=y)
    total = jnp.dot(jnp.where(y == -label, 1.0, 0.0).astype(x.dtype), x, precision=PRECISION)
    return 4 * total / _dimension(x, d)


def _dimension(x: Array, d: Real | None) -> Float[Array, ""]:
    """d, or the number of coordinates where it is not given."""
    return as_positive("d", x.shape[1] if d is None else d, x.dtype)


# --- guarantees ---


def guaranteed_sizes(params: Params, x: Points, y: Labels) -> Float[Array, " n"]:
    """For every point a size r such that y N(x + delta) >= 0 for all |delta| < r.

    A preactivation changes by at most |w_j| |delta|, so y N(x + delta) is at least

    sum_{j: y v_j > 0} |v_j| relu(p_j - r |w_j|) - sum_{j: y v_j < 0} |v_j| relu(p_j + r |w_j|)

    with p_j = w_j . x + b_j; r is where this turns negative. It is exact for the linear predictor
    `frei.linear_network`, and sqrt(d)/2 on `axis_data` for the robust network: the argument of
    Vardi, Yehudai, Shamir (2022), Theorem 3.1, and Frei et al. (2023), Theorem 4.1, with the point
    at hand in place of their worst case. A network whose neurons act together may need far more.
    0 where y N(x) < 0, inf where no neuron is against y, NaN for padding. Derivatives are those of
    where it turns negative, 0 for sizes that are 0, infinite or NaN. Raises ValueError for labels
    other than -1 and 1 (0 for padding, a row of zeros), and parameters and points that do not fit.
    """
    return _guaranteed(*checked_samples(params, x, y))


@jax.jit
def _guaranteed(params: Params, x: Array, y: Array) -> Float[Array, " n"]:
    size = lengths(params.w)
    weight = y[:, None] * params.v[None]
    rays = Ray(preactivations(params, x), -jnp.sign(weight) * size[None], weight)
    # Every neuron of weight against y is on at this size, and every other one off, but for those
    # of no weights: from there on those against y outweigh them, by `pull` a unit.
    reach = jnp.max(jnp.where(size > 0, ratio(jnp.abs(rays.pre), size[None]), 0), axis=1)
    for_y = jnp.maximum(weight, 0) * relu(rays.pre)
    still = jnp.sum(jnp.where(size[None] == 0, for_y, 0), axis=1)
    pull = jnp.sum(jnp.maximum(-weight, 0) * size[None], axis=1)
    brackets = 2 * (reach + ratio(still, pull)) + 1
    still_rays = jax.lax.stop_gradient((rays, brackets))
    found = jax.vmap(first_flip)(still_rays[0], jnp.zeros_like(y), still_rays[1])[0]
    found = as_zeros(partial(jax.vmap(partial(Ray.beside, after=True)), rays), found)
    return jnp.where(y == 0, jnp.nan, found)


def neighbour_guarantees(
    points: Points, labels: Labels, x: Samples, y: SampleLabels
) -> Float[Array, " n"]:
    """(d_other - d_own) / 2: 1-nearest-neighbour has no flip of a point within this size.

    d_own and d_other are the distances from the point to the nearest sample with its label and
    with the other; a perturbation of size r changes each by at most r. 0 where the point is
    misclassified, inf where there is no sample of the other label. points (n, d), labels (n,) are
    what is asked about; x (m, d), y (m,) the samples, y = 0 for padding. Raises ValueError for
    other labels and arrays that do not fit. Frei et al. (2023), after Theorem 4.2, has the order.
    """
    points, labels, x, y = _pairs(points, labels, x, y)
    products = y[None] * labels[:, None]
    away = jax.lax.map(lambda point: lengths(x - point[None]), points)
    own, other = (
        jnp.min(jnp.where(products * s > 0, away, jnp.inf), axis=1, initial=jnp.inf)
        for s in (1, -1)
    )
    # Without a sample of its own label a point is misclassified.
    found = jnp.where(jnp.isinf(own), 0, jnp.maximum((other - own) / 2, 0))
    return jnp.where(labels == 0, jnp.nan, found)


# --- attacks ---


class Attacks(NamedTuple):
    """Perturbations that flip, point by point: upper bounds of the smallest one.

    along (n,): the first flip on the way from x against the given direction, x - y c u.
    towards (n,): the first flip on the way to the nearest sample of the other label.
    searched (n,): the smallest that the search found, at most `towards`; for 1-nearest-neighbour,
        where there is none, `towards` itself.
    Each is an infimum, 0 where the point is misclassified, inf where none was found, and NaN for
    padding and where a parameter, a point, a sample or the direction is NaN or infinite.
    """

    along: Float[Array, "*lanes n"]
    towards: Float[Array, "*lanes n"]
    searched: Float[Array, "*lanes n"]

    @property
    def size(self) -> Array:
        """The smaller of all."""
        return jnp.minimum(self.along, self.searched)


def attacks(
    params: Params,
    points: Points,
    labels: Labels,
    x: Samples,
    y: SampleLabels,
    direction: Direction,
) -> Attacks:
    """The smallest perturbations that flip points, as far as a search finds them.

    Every size is an exact first flip along a ray, so it does flip. The rays start along the input
    gradient, towards the nearest sample (x, y) of the other label, along the direction, and to
    where `pgd` with normalized steps leads; then each turns towards the normal of the boundary
    where it was met, which is where the nearest point of a flat boundary lies, as long as that
    shortens it. Sizes up to 4 max |points| + 4 max |x| are looked for. Cost: some 130 products of
    n k d, and as many sorts of n k breakpoints. Raises TypeError where its derivative is asked for,
    and ValueError for labels other than -1 and 1 (0 for padding, a row of zeros), arrays that do
    not fit, and no points or samples.
    """
    params, points, labels = checked_samples(params, points, labels)
    points, labels, x, y = _pairs(points, labels, x, y)
    require_points(points=points, x=x)
    return _attacks(params, points, labels, x, y, _direction(points, direction))


@jax.jit
@without_derivative("a search has no derivative: differentiate flip_sizes_exact or gradient_steps")
def _attacks(params: Params, points: Array, labels: Array, x: Array, y: Array, u: Array) -> Attacks:
    bracket = 4 * sum(jnp.max(lengths(a)) for a in (points, x))
    against = -labels[:, None]
    pre, weight = preactivations(params, points), labels[:, None] * params.v[None]

    def sizes(directions: Array) -> Array:
        rays = Ray(pre, jnp.dot(directions, params.w.T, precision=PRECISION), weight)
        zeros = jnp.zeros_like(labels)
        found = jax.vmap(first_flip)(rays, zeros, jnp.broadcast_to(bracket, labels.shape))[0]
        return jnp.where(any_of(directions != 0, axis=1) | (found == 0), found, jnp.inf)

    def turn(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], Array]:
        directions, best = state
        reached = points + jnp.where(jnp.isfinite(best), best, 0)[:, None] * directions
        normal = unit(against * value_and_input_gradient(params, reached)[1])
        tried = unit(directions + share * (normal - directions))
        size = sizes(tried)
        shorter = size < best
        kept = jnp.where(shorter[:, None], tried, directions), jnp.where(shorter, size, best)
        return kept, kept[1]

    def search(start: Array) -> tuple[Array, Array]:
        """The first flip along a start, and the least that turning it came to."""
        shares = jnp.asarray((0.0, *SHARES * TURNS), labels.dtype)  # the start itself, then turns
        bests = jax.lax.scan(turn, (start, jnp.full_like(labels, jnp.inf)), shares)[1]
        return bests[0], bests[-1]

    away = against * unit(u)[None]
    gap = _nearest_other(points, labels, x, y) - points
    downhill = unit(against * value_and_input_gradient(params, points)[1])
    radius = jnp.where(lengths(gap) > 0, lengths(gap), bracket)
    led = pgd(params, points, labels, radius, DESCENT, normalized=True).x - points
    starts = jnp.stack([away, unit(gap), downhill, unit(led)])
    first, least = jax.lax.map(search, starts)
    unknown = (labels == 0) | _broken(params, points, x, u)
    found = (first[0], first[1], jnp.min(least, axis=0))
    return Attacks(*(jnp.where(unknown, jnp.nan, a) for a in found))


def neighbour_attacks(
    points: Points, labels: Labels, x: Samples, y: SampleLabels, direction: Direction
) -> Attacks:
    """Perturbations that flip 1-nearest-neighbour: the exact first flips along two rays.

    Along a ray of unit vectors s the squared distances to samples differ by functions linear in c,
    |x + c s - x_i|^2 - |x + c s|^2 = |x_i|^2 - 2 (x + c s) . x_i, so the flip is where one of the
    other label is first below all of the point's own. Where that is for no longer than rounding may
    hide it is no flip: samples as near as each other all along are none. Arguments and errors as in
    `neighbour_guarantees`, and for no points or samples; the direction u as in `attacks`.
    """
    points, labels, x, y = _pairs(points, labels, x, y)
    require_points(points=points, x=x)
    return _neighbour_attacks(points, labels, x, y, _direction(points, direction))


@jax.jit
def _neighbour_attacks(points: Array, labels: Array, x: Array, y: Array, u: Array) -> Attacks:
    def one(point: Array, label: Array, s: Array) -> Array:
        gaps = x - point[None]
        # Squares in other units may not be representable. No flip depends on the unit, and the
        # derivative of the unit times an infinite size would be NaN.
        largest = jax.lax.stop_gradient(scale(gaps))
        gaps = gaps / largest
        at = jnp.sum(gaps**2, axis=1)
        slope = -2 * jnp.dot(gaps, s, precision=PRECISION)
        gap = at[:, None] - at[None]  # [j, i]: j is below i where gap + c tilt < 0
        tilt = slope[:, None] - slope[None]
        # What rounding may hide of both, and of where they cross.
        eps, distance = 4 * jnp.finfo(x.dtype).eps, jnp.sqrt(at)
        hidden = eps * (distance[:, None] + distance[None])
        tilt = jnp.where(jnp.abs(tilt) <= hidden, 0, tilt)
        against, own = y * label < 0, y * label > 0
        crossing = ratio(-gap, tilt)
        off = ratio(eps * (at[:, None] + at[None]) + hidden * jnp.abs(crossing), jnp.abs(tilt))

        def below_all(off: Array | float) -> tuple[Array, Array]:
            starts = jnp.where((tilt > 0) | (gap < 0), 0.0, jnp.inf)
            starts = jnp.where(tilt < 0, jnp.maximum(crossing + off, 0), starts)
            ends = jnp.where(tilt > 0, crossing - off, jnp.inf)
            start = jnp.max(jnp.where(own[None], starts, 0), axis=1)
            return start, jnp.min(jnp.where(own[None], ends, jnp.inf), axis=1)

        start, (latest, end) = below_all(0)[0], below_all(off)
        return largest * jnp.min(jnp.where(against & (latest < end), start, jnp.inf))

    away = -labels[:, None] * unit(u)[None]
    towards = unit(_nearest_other(points, labels, x, y) - points)
    rays = (jnp.tile(points, (2, 1)), jnp.tile(labels, 2), jnp.concatenate([away, towards]))
    along, straight = jax.lax.map(lambda ray: one(*ray), rays).reshape(2, -1)
    unknown = (labels == 0) | _broken(points, x, u)
    return Attacks(*(jnp.where(unknown, jnp.nan, a) for a in (along, straight, straight)))


def _broken(*inputs: Any) -> Bool[Array, ""]:
    """Whether a number is NaN or infinite: no comparison with it tells a flip."""
    leaves = jax.tree.leaves(inputs)
    return any_of(jnp.stack([any_of(~jnp.isfinite(leaf)) for leaf in leaves]))


def _nearest_other(points: Array, labels: Array, x: Array, y: Array) -> Float[Array, "n d"]:
    """The nearest sample of the other label; the point itself where there is none."""

    def one(pair: tuple[Array, Array]) -> Array:
        point, label = pair
        other = y * label < 0
        away = jnp.where(other, lengths(x - point[None]), jnp.inf)
        return jnp.where(any_of(other), x[jnp.argmin(away)], point)

    return jax.lax.map(one, (points, labels))


def _direction(points: Array, direction: Direction) -> Float[Array, " d"]:
    (u,) = as_arrays(points.dtype, direction=direction)
    if u.shape != points.shape[1:]:
        raise ValueError(f"the direction must have shape {points.shape[1:]}, got {u.shape}")
    return u


def _pairs(points: Points, labels: Labels, x: Samples, y: SampleLabels) -> list[Array]:
    points, labels = as_samples(x=points, y=labels)
    x, y = as_samples(points.dtype, x=x, y=y)
    if x.shape[1] != points.shape[1]:
        raise ValueError(
            f"points have dimension {points.shape[1]}, the samples {x.shape[1]}: give both the same"
        )
    return [points, labels, x, y]
