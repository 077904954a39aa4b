"""A network along a ray, and exactly where its output changes sign.

Along x + c s every preactivation is linear in c and the output is piecewise linear, with at most k
breakpoints. An output of exactly 0 is not flipped. Sizes are infima: at the size itself the output
is 0 as a rule.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.arithmetic import ratio
from jaxkkt.networks import relu

# Steps of a walk along rays.
TRIPS = 60


class Ray(NamedTuple):
    """sum_j weight_j relu(start_j + c slope_j): a network's output, times a sign, along a line."""

    start: Float[Array, " k"]
    slope: Float[Array, " k"]
    weight: Float[Array, " k"]

    def margin(self, c: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.sum(self.weight * relu(self.start + c * self.slope))


def first_flip(ray: Ray, after: Array, bracket: Array) -> tuple[Array, Array]:
    """The first interval [flip, un-flip) at or beyond `after` where the sum is negative.

    Both are inf where they do not come before the bracket; both NaN where the ray is.
    """
    start, slope, weight = ray
    at = ratio(-start, slope)
    # Switched on just beyond `after`, told by the breakpoints, so that the two never contradict.
    on = jnp.where(slope < 0, at > after, jnp.where(slope > 0, at <= after, start > 0))
    inside = (slope != 0) & (at > after) & (at < bracket)
    # At its breakpoint a neuron adds weight |slope| to the slope of the sum, on or off.
    at, bend = jax.lax.sort(
        (jnp.where(inside, at, bracket), weight * jnp.abs(slope)), num_keys=1, is_stable=False
    )
    ends = jnp.concatenate([after[None], at, bracket[None]])
    bends = jnp.concatenate([jnp.sum(jnp.where(on, weight * slope, 0))[None], bend])
    rises = jnp.cumsum(bends) * jnp.diff(ends)
    values = jnp.cumsum(jnp.concatenate([ray.margin(after)[None], rises]))

    # Rounding must not flip an output that is exactly 0, as where no neuron is on.
    terms = jnp.sum(jnp.abs(weight * start)) + ends * jnp.sum(jnp.abs(weight * slope))
    flipped = values < jnp.where(ends == after, 0, -4 * jnp.finfo(values.dtype).eps * terms)

    def crossing(n: Array) -> Array:
        """The zero on the segment that ends at n: prefix sums find it, fresh values polish it."""
        left, right = ends[n - 1], ends[n]
        middle = (left + right) / 2
        rise = jnp.sum(jnp.where(start + middle * slope > 0, weight * slope, 0))
        share = ratio(values[n - 1], values[n - 1] - values[n])
        c = left + (right - left) * jnp.clip(share, 0, 1)

        def polish(_: Array, c: Array) -> Array:
            return jnp.clip(c - ratio(ray.margin(c), rise), after, bracket)

        return jax.lax.fori_loop(0, 3, polish, c)

    n = jnp.argmax(flipped)
    again = ~flipped & (jnp.arange(ends.size) > n)
    # Both crossings as one batch: half the code to compile.
    flip, unflip = jax.vmap(crossing)(jnp.stack([jnp.maximum(n, 1), jnp.argmax(again)]))
    flip = jnp.where(flipped[0], after, flip)
    flip = jnp.where(jnp.any(flipped), flip, jnp.inf)
    unflip = jnp.where(jnp.any(flipped) & jnp.any(again), unflip, jnp.inf)
    finite = jnp.all(jnp.isfinite(values))
    return jnp.where(finite, flip, jnp.nan), jnp.where(finite, unflip, jnp.nan)


class _Walk(NamedTuple):
    """Each ray's sum is positive up to c; `ahead` is how far the next bound looks."""

    c: Float[Array, " n"]
    ahead: Float[Array, " n"]
    going: Bool[Array, " n"]
    trips: Int[Array, ""]


def first_crossings(
    rays: Ray, brackets: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Where the sums of n rays, positive at 0, first turn negative; and whether that is certain.

    The sum's slope falls at breakpoints of negative weight alone, so between c and c + h it is at
    least slope(c) - sum of |weight slope| over those in between: a step of value / -bound never
    passes the first zero, and takes all of h where it could. As h follows the last step, the bound
    becomes the slope itself and the walk Newton's method. Inf where the bracket comes first.
    Uncertain where the sum vanishes and does not turn negative at once, or after `TRIPS` steps.

    Without a sort: a dozen passes over the neurons, for rays that are nearly straight.
    """
    start, slope, weight = rays
    eps = 4 * jnp.finfo(start.dtype).eps
    constant = jnp.sum(jnp.abs(weight * start), axis=1)
    growth = jnp.sum(jnp.abs(weight * slope), axis=1)

    def on(c: Array) -> Array:
        """Which neurons are active just beyond c."""
        here = start + c[:, None] * slope
        return (here > 0) | ((here == 0) & (slope > 0))

    def look(c: Array) -> tuple[Array, Array]:
        """The sums at c, and their slopes just beyond."""
        value = jnp.sum(weight * relu(start + c[:, None] * slope), axis=1)
        return value, jnp.sum(jnp.where(on(c), weight * slope, 0), axis=1)

    def tolerance(c: Array) -> Array:
        return eps * (constant + c * growth)

    def step(walk: _Walk) -> _Walk:
        value, rise = look(walk.c)
        end = jnp.minimum(walk.c + walk.ahead, brackets)
        falls = (on(walk.c) != on(end)) & (weight < 0)
        steepest = jnp.sum(jnp.where(falls, jnp.abs(weight * slope), 0), axis=1) - rise
        stride = jnp.where(steepest > 0, ratio(value, steepest), jnp.inf)
        free = stride >= end - walk.c
        going = walk.going & (value > tolerance(walk.c))
        forward = jnp.where(free, jnp.where(end >= brackets, jnp.inf, end), walk.c + stride)
        return _Walk(
            c=jnp.where(going, forward, walk.c),
            ahead=jnp.where(free, 4 * walk.ahead, 2 * stride),
            going=going & (forward < jnp.inf),
            trips=walk.trips + 1,
        )

    zero = jnp.zeros_like(brackets)
    value, rise = look(zero)
    straight = jnp.where(rise < 0, ratio(value, -rise), brackets)
    walk = jax.lax.while_loop(
        lambda walk: jnp.any(walk.going) & (walk.trips < TRIPS),
        step,
        _Walk(zero, 1.5 * straight, value > 0, jnp.zeros((), jnp.int32)),
    )

    # The tolerance is a bound: Newton's steps come as near as the sums are.
    c = jnp.minimum(walk.c, brackets)
    for _ in range(2):
        value, rise = look(c)
        c = jnp.clip(c - ratio(value, rise), 0, brackets)
    beyond = c + 8 * tolerance(c) * ratio(jnp.ones_like(rise), jnp.abs(rise))
    crosses = (look(beyond)[0] < -tolerance(beyond)) & ~walk.going
    past = walk.c == jnp.inf
    return jnp.where(past, jnp.inf, c), crosses | past
