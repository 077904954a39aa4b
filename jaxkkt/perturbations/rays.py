"""A network along a ray, and exactly where its output changes sign.

Along x + c s every preactivation is linear in c and the output is piecewise linear, with at most k
breakpoints. An output of exactly 0 is not flipped. Sizes are infima: at the size itself the output
is 0 as a rule.
"""

from collections.abc import Callable
from functools import partial
from math import log2
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import PRECISION, relu
from jaxkkt.numerics.arithmetic import ratio
from jaxkkt.numerics.loops import while_going
from jaxkkt.numerics.truths import all_of, any_of

# Steps of Newton's method: it takes three on a ray that is nearly straight.
TRIPS = 10
# How many units of rounding a preactivation may be from 0 at its breakpoint.
KINK = 32
# Looks at parts of a ray: a straight one takes one, one that bends more takes more.
LOOKS = 20


class Ray(NamedTuple):
    """sum_j weight_j relu(pre_j + c slope_j): a network's output, times a sign, along a line.

    pre_j = w_j . x + b_j is the preactivation where the ray starts, slope_j = w_j . s its change.
    """

    pre: Float[Array, " k"]
    slope: Float[Array, " k"]
    weight: Float[Array, " k"]

    def margin(self, c: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.sum(self.weight * relu(self.pre + c * self.slope))

    def beside(self, c: Float[Array, ""], after: bool) -> Float[Array, ""]:
        """The sum, and its derivatives just after c, or just before: there each neuron whose
        breakpoint c is, to rounding, is on or off."""
        moved = self.pre + c * self.slope
        eps = jnp.finfo(moved.dtype).eps
        at_kink = jnp.abs(moved) <= KINK * eps * (jnp.abs(self.pre) + jnp.abs(c * self.slope))
        on = jnp.where(at_kink, self.slope > 0 if after else self.slope < 0, moved > 0)
        return jnp.sum(jnp.where(on, self.weight * moved, 0))


def first_flip(ray: Ray, after: Array, bracket: Array) -> tuple[Array, Array]:
    """The first interval [flip, un-flip) at or beyond `after` where the sum is negative.

    Both are inf where they do not come before the bracket; both NaN where the ray is, or where
    what rounding may hide of it is too large a number.
    """
    pre, slope, weight = ray
    at = ratio(-pre, slope)
    # Switched on just beyond `after`, told by the breakpoints, so that the two never contradict.
    on = jnp.where(slope < 0, at > after, jnp.where(slope > 0, at <= after, pre > 0))
    inside = (slope != 0) & (at > after) & (at < bracket)
    # At its breakpoint a neuron adds weight |slope| to the slope of the sum, on or off.
    at, bend = _in_order(
        jnp.where(inside, at, bracket), jnp.where(inside, weight * jnp.abs(slope), 0)
    )
    ends = jnp.concatenate([after[None], at, bracket[None]])
    bends = jnp.concatenate([jnp.sum(jnp.where(on, weight * slope, 0))[None], bend])
    rises = jnp.cumsum(bends) * jnp.diff(ends)
    values = jnp.cumsum(jnp.concatenate([ray.margin(after)[None], rises]))

    # Rounding must not flip an output that is exactly 0, as where no neuron is on. That of sums of
    # very many neurons grows with how often they are halved.
    terms = jnp.sum(jnp.abs(weight * pre)) + ends * jnp.sum(jnp.abs(weight * slope))
    rounding = 4 * max(1.0, log2(len(ends)) - 10) * jnp.finfo(values.dtype).eps
    flipped = values < jnp.where(ends == after, 0, -rounding * terms)

    def crossing(n: Array) -> Array:
        """The zero on the segment that ends at n: prefix sums find it, fresh values polish it."""
        left, right = ends[n - 1], ends[n]
        middle = (left + right) / 2
        rise = jnp.sum(jnp.where(pre + middle * slope > 0, weight * slope, 0))
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
    flip = jnp.where(any_of(flipped), flip, jnp.inf)
    unflip = jnp.where(any_of(flipped) & any_of(again), unflip, jnp.inf)
    finite = all_of(jnp.isfinite(values)) & all_of(jnp.isfinite(terms))
    return jnp.where(finite, flip, jnp.nan), jnp.where(finite, unflip, jnp.nan)


def _in_order(at: Array, bend: Array) -> tuple[Array, Array]:
    """Sizes in rising order, none negative, and the bends there; equal ones' at the first of them.

    On a CPU integers sort faster than floats, and half as long as pairs, so what belongs to a size
    is put in its place afterwards.
    """
    integers = jnp.int64 if at.dtype == jnp.float64 else jnp.int32  # in the same order
    ordered = jax.lax.sort(at.view(integers), is_stable=False).view(at.dtype)
    return ordered, jnp.zeros_like(bend).at[jnp.searchsorted(ordered, at)].add(bend)


def first_common(
    pre: Float[Array, "n k"],
    slope: Float[Array, " k"],
    weight: Float[Array, " k"],
    signs: Float[Array, " n"],
    chosen: Bool[Array, " n"],
    bracket: Float[Array, ""],
    trips: int = 40,
) -> Float[Array, ""]:
    """The smallest c at which the sums of all chosen rays are negative, by bisection.

    The sums are signs_i sum_j weight_j relu(pre_ij - c signs_i slope_j), and are taken to stay
    negative once they are. inf where some are not at the bracket, 0 where all are at 0, NaN where
    one is not a number.
    """

    def sums(c: Array) -> Array:
        # A product sums along rows several times as fast as a sum does on a CPU.
        moved = relu(pre - (c * signs)[:, None] * slope[None])
        return jnp.where(chosen, signs * jnp.dot(moved, weight, precision=PRECISION), -1)

    def between(state: tuple[Array, Array, Array]) -> Array:
        trip, low, high = state
        middle = (low + high) / 2
        return negative & (trip < trips) & (low < middle) & (middle < high)

    def halve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        trip, low, high = state
        middle = (low + high) / 2
        beyond = all_of(sums(middle) < 0)
        return trip + 1, jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    zero = jnp.zeros_like(bracket)
    at_zero, at_end = sums(zero), sums(bracket)
    negative = all_of(at_end < 0)
    # Ends before `trips` where no number is left between the two, at once where nothing flips.
    high = while_going(between, halve, (jnp.zeros((), jnp.int32), zero, bracket))[2]
    size = jnp.where(negative, high, jnp.inf)
    size = jnp.where(all_of(at_zero < 0), 0, size)
    return jnp.where(all_of(jnp.isfinite(at_zero + at_end)), size, jnp.nan)


class _Newton(NamedTuple):
    """Newton's method on every ray: where it is, and the sum there."""

    c: Float[Array, " n"]
    value: Float[Array, " n"]
    going: Bool[Array, " n"]
    trips: Int[Array, ""]


class _Known(NamedTuple):
    """The rays on which the sum is known to be positive up to `here`; what is looked at next."""

    here: Float[Array, " n"]
    step: Float[Array, " n"]
    going: Bool[Array, " n"]
    trips: Int[Array, ""]


def _rounding(pre: Array, slope: Array, absolute: Array) -> Callable[[Array], Array]:
    """What rounding may hide of the rays' sums at c: 4 eps sum_j |weight_j| (|pre| + c |slope|)."""
    dot = partial(jnp.dot, precision=PRECISION)
    constant, growth = dot(jnp.abs(pre), absolute), dot(jnp.abs(slope), absolute)
    return lambda c: 4 * jnp.finfo(pre.dtype).eps * (constant + c * growth)


def first_crossings(
    pre: Float[Array, "n k"],
    slope: Float[Array, "n k"],
    weight: Float[Array, " k"],
    signs: Float[Array, " n"],
    brackets: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Where the sums of n rays, positive at 0, first turn negative; and whether that is certain.

    The sums are signs_i sum_j weight_j relu(pre_ij + c slope_ij); inf where the bracket comes
    first. Newton's method finds a zero, and convexity tells whether it is the first: between a and
    b neurons of positive weight add up to no less than their tangent at b, those of negative weight
    take no more than their chord, so the sum is above the line from `low` at a, that tangent less
    the chord, to the sum at b. Where low is positive the sum is, up to b, unless it is negative at
    b, and then every later low is. Where low is not, b comes nearer. Certain where that leads from
    0 to c, Newton's method has come to its end, and the sum
    turns negative just beyond c or c is the bracket.

    Without a sort: a dozen passes over the neurons for rays that are nearly straight, and four for
    every part of one that is not.
    """
    dot = partial(jnp.dot, precision=PRECISION)
    absolute = jnp.abs(weight)
    signed_and_absolute = jnp.stack([weight, absolute], axis=1)
    tolerance = _rounding(pre, slope, absolute)

    def at(c: Array) -> Array:
        return pre + c[:, None] * slope

    def sums(c: Array) -> Array:
        return signs * dot(relu(at(c)), weight)

    def newton(c: Array, value: Array) -> tuple[Array, Array]:
        rise = signs * dot(jnp.where(at(c) > 0, slope, 0), weight)
        zero = jnp.where(rise < 0, c - ratio(value, rise), brackets)
        return jnp.clip(zero, 0, brackets), rise

    def step(state: _Newton) -> _Newton:
        c = jnp.where(state.going, newton(state.c, state.value)[0], state.c)
        value = sums(c)
        free = (c >= brackets) & (value > 0)
        going = state.going & ~free & (jnp.abs(value) > tolerance(c))
        return _Newton(c, value, going, state.trips + 1)

    value = sums(jnp.zeros_like(brackets))
    state = while_going(
        lambda state: any_of(state.going) & (state.trips < TRIPS),
        step,
        _Newton(jnp.zeros_like(brackets), value, value > 0, jnp.zeros((), jnp.int32)),
    )

    # The tolerance is a bound: one more step comes as near as the sums are.
    c, rise = newton(state.c, state.value)
    found = sums(c)
    past = (c >= brackets) & (found > tolerance(c))
    # Beyond what rounding may hide the sum is negative, and not far from c.
    reach = ratio(8 * tolerance(c), jnp.abs(rise))
    turns = (reach <= c) & (sums(c + reach) < -tolerance(c + reach))
    crosses = (jnp.abs(found) <= tolerance(c)) & turns

    def low(a: Array, b: Array) -> Array:
        here = at(a)
        value, unsigned = dot(relu(here), signed_and_absolute).T
        tangent, unsigned_tangent = dot(jnp.where(at(b) > 0, here, 0), signed_and_absolute).T
        return (signs * (tangent + value) + unsigned_tangent - unsigned) / 2

    def look(known: _Known) -> _Known:
        upto = known.here + known.step
        last = upto >= c * (1 - jnp.finfo(c.dtype).eps * LOOKS)  # but for rounding
        upto = jnp.where(last, c, upto)
        positive = low(known.here, upto) > 8 * tolerance(c)
        here = jnp.where(positive, upto, known.here)
        step = jnp.where(positive, known.step, known.step / 2)
        return _Known(here, step, known.going & ~(positive & last), known.trips + 1)

    known = while_going(
        lambda known: any_of(known.going) & (known.trips < LOOKS),
        look,
        _Known(jnp.zeros_like(c), c, past | crosses, jnp.zeros((), jnp.int32)),
    )
    return jnp.where(past, jnp.inf, c), (past | crosses) & ~known.going


def stay_negative(
    pre: Float[Array, "n k"],
    slope: Float[Array, "n k"],
    weight: Float[Array, " k"],
    signs: Float[Array, " n"],
    froms: Float[Array, " n"],
    brackets: Float[Array, " n"],
) -> Bool[Array, " n"]:
    """Whether the sums of n rays, 0 at `froms` or negative, are negative from there to the
    bracket; False where that is not certain, and everywhere beyond a bracket.

    The sums are those of `first_crossings`. Between a and b neurons of positive weight add up to no
    more than their chord, those of negative weight take no less than their tangent at a. So the sum
    is below the line from the sum at a to `high` at b, the first at b less the tangent there, and
    negative where that is. Then what is looked at next is twice as long; else b comes nearer.
    """
    absolute = jnp.abs(weight)
    positive = signs[:, None] * weight[None] > 0
    tolerance = _rounding(pre, slope, absolute)

    def at(c: Array) -> Array:
        return pre + c[:, None] * slope

    def high(a: Array, b: Array) -> Array:
        there = at(b)
        terms = jnp.where(positive, relu(there), jnp.where(at(a) > 0, -there, 0))
        return jnp.dot(terms, absolute, precision=PRECISION)

    def look(known: _Known) -> _Known:
        upto = jnp.minimum(known.here + known.step, brackets)
        negative = high(known.here, upto) < -8 * tolerance(upto)
        here = jnp.where(negative, upto, known.here)
        step = jnp.where(negative, 2 * known.step, known.step / 2)
        return _Known(here, step, known.going & ~(negative & (upto >= brackets)), known.trips + 1)

    known = while_going(
        lambda known: any_of(known.going) & (known.trips < LOOKS),
        look,
        _Known(froms, froms, froms < brackets, jnp.zeros((), jnp.int32)),
    )
    return (froms < brackets) & ~known.going
