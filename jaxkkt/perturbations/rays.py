"""A network along a ray, and exactly where its output changes sign.

Along x + c s every preactivation is linear in c and the output is piecewise linear, with at most k
breakpoints. An output of exactly 0 is not flipped. Sizes are infima: at the size itself the output
is 0 as a rule.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt.networks import relu


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


def ratio(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))
