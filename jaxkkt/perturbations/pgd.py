"""Projected gradient descent on the margin, within l2 balls around the points."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt.networks import Params, checked_samples, margins, value_and_input_gradient
from jaxkkt.numerics.arithmetic import lengths, ratio, unit
from jaxkkt.numerics.derivatives import without_derivative
from jaxkkt.numerics.requirements import (
    as_numbers,
    one_or_each,
    require_counts,
    require_not_negative,
    require_points,
    require_positive,
    require_whole,
)
from jaxkkt.numerics.truths import any_of

STEPS = 100
# How far all steps together reach, as a multiple of the radius.
REACH = 2.5
_HAS_NONE = "the radius that a bisection finds has no derivative: take that of the margins at x"


class Attack(NamedTuple):
    """Where an attack led: `last` (n, d) are the points it ended at, `x` those of least margin.

    margins (n,): y f(x), the least of all points that the attack came by; at most 0 where it
    succeeded.
    """

    last: Float[Array, "*lanes n d"]
    x: Float[Array, "*lanes n d"]
    margins: Float[Array, "*lanes n"]


def pgd(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    radius: float | Float[Array, ""] | Float[Array, " n"],
    steps: int | Int[Array, ""] = STEPS,
    normalized: bool = True,
    starts: int = 1,
    key: PRNGKeyArray | None = None,
) -> Attack:
    """x_i <- P(x_i + alpha u_i), u_i = grad l / |grad l|, for each point alone.

    alpha = 2.5 radius / steps, l is the logistic loss of y_i f(x_i), P the projection onto the ball
    of `radius` around the point it started from, one radius for all points or one for each. Without
    `normalized` u_i is grad l itself, as in Algorithm 1 of Wang et al. (2022). Use that on lazy
    networks alone: grad l fades as exp(-margin), so on networks of large margins, such as those
    that the default protocol trains, that attack does not move and finds nothing.

    The first of the `starts` is the point itself; the others are uniform in its ball, drawn by
    `key`, and each point keeps the best of its own. One start gets stuck where f is flat or bends
    away, in few dimensions above all: take 10 or so where the attack is to say how robust a network
    is.

    Has derivatives by `jax.jacfwd`, and by `jax.grad` where `steps` is an int of Python.
    At a radius of 0 the points stay where they are.
    Cost: two products of n k d a step and start. Raises ValueError for a radius that is negative or
    not finite, or neither one nor one for each point, steps and starts that are no integers from 1
    on, several starts without a key, labels other than -1 and 1 (and 0 for padding, a row of
    zeros), points that are not rows of the network's dimension, and unless network and data hold
    floating-point numbers of one precision that JAX keeps.
    Madry et al. (2018), whose steps are normalized; Wang et al. (2022), Algorithm 1, lines 3 to 6.
    """
    require_not_negative(radius=radius)
    require_counts(steps=steps)
    _require_drawn(starts, key)
    params, x, y = checked_samples(params, x, y)
    radii = one_or_each("radius", radius, y, "point")
    if isinstance(steps, int):
        return _counted(params, x, y, radii, steps, normalized, starts, key)
    return _traced(params, x, y, radii, jnp.asarray(steps), normalized, starts, key)


def robust_accuracy(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    radii: float | Float[Array | np.ndarray, "*r"] | Sequence,
    steps: int | Int[Array, ""] = STEPS,
    normalized: bool = True,
    starts: int = 1,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "*r"]:
    """Share of the points that `pgd` leaves with y f > 0, for every radius; at 0 without attack.

    One radius or an array of them: the shares have the shape of `radii`. Points with y = 0 are
    padding and do not count. An attack bounds the accuracy from above, and where it gets stuck what
    it leaves may rise with the radius: several `starts`, which `key` draws, get stuck less often.
    Without `normalized` it is far above where margins are large (see `pgd`). `smallest_radii` tells
    the radius of each point. NaN where an output is.

    Raises ValueError for radii that are negative or not finite, no points, and as `pgd`.
    """
    require_not_negative(radii=radii)
    require_counts(steps=steps)
    _require_drawn(starts, key)
    params, x, y = checked_samples(params, x, y)
    require_points(x=x)
    real = y != 0

    def at(radius: Array) -> Array:
        found = pgd(params, x, y, radius, steps, normalized, starts, key)
        broken = any_of(real & jnp.isnan(found.margins))
        share = jnp.mean(found.margins > 0, where=real, dtype=params.w.dtype)
        return jnp.where(broken, jnp.nan, share)

    sizes = as_numbers("radii", radii, params.w.dtype)
    return jax.lax.map(at, sizes.ravel()).reshape(sizes.shape)


def smallest_radii(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    bracket: float | Float[Array, ""] | Float[Array, " n"],
    steps: int | Int[Array, ""] = STEPS,
    trips: int = 14,
    starts: int = 1,
    key: PRNGKeyArray | None = None,
) -> Float[Array, " n"]:
    """For every point the least radius, up to `bracket`, at which `pgd` brings y f to 0 or below.

    By bisection with normalized steps; 0 where y f <= 0 to begin with, inf where no radius that was
    tried flips, NaN where an output is and for padding, y = 0. Where the attack gets stuck a larger
    radius may miss what a smaller one finds: then it is not the least. An upper bound of the
    point's distance to the decision boundary, off by bracket / 2^trips and by what the attack
    misses, which is less with several `starts`, drawn by `key`; for the smallest size of a point
    take `theory.constructions.attacks`, which searches longer. Raises ValueError for a bracket that
    is not positive and finite, trips that are no integer from 1 on, and as `pgd`; TypeError where
    its derivative is asked for, which a bisection does not have.
    """
    require_positive(bracket=bracket)
    require_counts(steps=steps, trips=trips)
    _require_drawn(starts, key)
    params, x, y = checked_samples(params, x, y)
    top = one_or_each("bracket", bracket, y, "point")

    search = without_derivative(_HAS_NONE)(partial(_least_radii, trips, starts))
    return search(params, x, y, top, steps, key)


def _least_radii(
    trips: int,
    starts: int,
    params: Params,
    x: Array,
    y: Array,
    top: Array,
    steps: int | Array,
    key: PRNGKeyArray | None,
) -> Array:
    def flipped(radii: Array) -> Array:
        return pgd(params, x, y, radii, steps, True, starts, key).margins <= 0

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        found = flipped(middle)
        return jnp.where(found, low, middle), jnp.where(found, middle, high)

    high = jax.lax.fori_loop(0, trips, halve, (jnp.zeros_like(top), top))[1]
    before = margins(params, x, y)
    flips = flipped(top) | (high < top)
    found = jnp.where(before <= 0, 0, jnp.where(flips, high, jnp.inf))
    return jnp.where(jnp.isnan(before) | (y == 0), jnp.nan, found)


def _require_drawn(starts: int, key: PRNGKeyArray | None) -> None:
    require_whole("starts", starts, 1)
    if starts > 1 and key is None:
        raise ValueError(
            f"the {starts - 1} starts beside the points themselves are drawn: give a key, such as "
            "key=jax.random.key(0)"
        )


def _pgd(
    params: Params,
    x: Array,
    y: Array,
    radii: Array,
    steps: Array | int,
    normalized: bool,
    starts: int,
    key: PRNGKeyArray | None,
) -> Attack:
    radius = radii[:, None]
    alpha = REACH * radius / jnp.asarray(steps, x.dtype)

    def look(moved: Array) -> tuple[Array, Array]:
        outputs, gradients = value_and_input_gradient(params, moved)
        return y * outputs, -y[:, None] * gradients

    def least(attack: Attack, margins: Array) -> Attack:
        better = (margins < attack.margins) | jnp.isnan(margins)  # NaN stays
        return attack._replace(
            x=jnp.where(better[:, None], attack.last, attack.x),
            margins=jnp.where(better, margins, attack.margins),
        )

    def step(_: Array, attack: Attack) -> Attack:
        margins, downhill = look(attack.last)
        attack = least(attack, margins)
        push = unit(downhill) if normalized else jax.nn.sigmoid(-margins)[:, None] * downhill
        offset = attack.last + alpha * push - x
        length = lengths(offset)[:, None]
        inside = x + offset * jnp.minimum(1, ratio(radius, length))
        return attack._replace(last=jnp.where(length > radius, inside, x + offset))

    def attacked(start: Array) -> Attack:
        attack = Attack(start, start, jnp.full_like(y, jnp.inf))
        attack = jax.lax.fori_loop(0, steps, step, attack)
        return least(attack, look(attack.last)[0])

    def once_more(i: Array, best: Attack) -> Attack:
        assert key is not None
        direction_key, length_key = jax.random.split(jax.random.fold_in(key, i))
        direction = unit(jax.random.normal(direction_key, x.shape, x.dtype))
        share = jax.random.uniform(length_key, radius.shape, x.dtype) ** (1 / x.shape[1])
        found = attacked(x + radius * share * direction)
        better = (found.margins < best.margins) | jnp.isnan(found.margins)
        points = better[:, None]
        return Attack(
            jnp.where(points, found.last, best.last),
            jnp.where(points, found.x, best.x),
            jnp.where(better, found.margins, best.margins),
        )

    at_points = attacked(x)
    return at_points if starts == 1 else jax.lax.fori_loop(1, starts, once_more, at_points)


_traced = jax.jit(_pgd, static_argnames=("normalized", "starts"))
# As many steps as are known: so it has derivatives by `jax.grad`.
_counted = jax.jit(_pgd, static_argnames=("steps", "normalized", "starts"))
