"""Multipliers of margins whose soft minimum is held: an equation, solved by Newton's method."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import PRECISION
from jaxkkt.numerics.truths import any_of

TRIPS = 40

_dot = partial(jnp.dot, precision=PRECISION)


class _Newton(NamedTuple):
    """x, u = diag(h) x + width log x, and `gap`, what is left of the equation there.

    off: how far x is from the end by the last step. share: of Newton's step, taken next.
    """

    x: Float[Array, " m"]
    u: Float[Array, " m"]
    gap: Float[Array, " m"]
    off: Float[Array, ""]
    share: Float[Array, ""]
    trips: Int[Array, ""]


def soft_multipliers(
    h: Float[Array, "m m"],
    r: Float[Array, " m"],
    width: Array,
    real: Bool[Array, " m"],
    guess: Float[Array, " m"],
) -> Float[Array, " m"]:
    """x > 0 with h x + width log(x / sum x) = r; 0 for samples that are not real.

    It minimizes x.h x / 2 - r.x + width sum_i x_i log(x_i / sum x), which is convex; where
    logsumexp(r / width) < 0 that is x = 0. Newton's method in u = diag(h) x + width log x, which is
    nearly linear where x is large and where it is small, from the x of a small h, or from a guess
    that is nearer (0 for none), with steps short enough to get nearer. NaN where that does not end.
    """
    tiny, eps = jnp.finfo(r.dtype).tiny, jnp.finfo(r.dtype).eps
    d = jnp.where(real & (jnp.diagonal(h) > 0), jnp.diagonal(h), 1)
    both = real[:, None] & real[None]
    rest = jnp.where(both, h - jnp.diag(jnp.diagonal(h)), 0)
    r = jnp.where(real, r, 0)
    rounding = 2 * eps * jnp.max(jnp.abs(r))
    log_total = jax.nn.logsumexp(jnp.where(real, r / width, -jnp.inf))

    def total(x: Array) -> Array:
        return jnp.maximum(jnp.sum(jnp.where(real, x, 0)), tiny)

    def at(u: Array) -> tuple[Array, Array, Array]:
        x = width / d * _wright(u / width + jnp.log(d / width))
        return x, u, jnp.where(real, _dot(rest, x) + u - width * jnp.log(total(x)) - r, 0)

    def value(x: Array, gap: Array) -> Array:
        x = jnp.where(real, x, 0)
        return _dot(x, gap - (_dot(rest, x) + d * x) / 2)

    def nearer(new: tuple[Array, Array, Array], old: tuple[Array, Array, Array]) -> Array:
        """By the equation, or by what its solution minimizes: rounding hides either."""
        (x, _, gap), (x0, _, gap0) = new, old
        return (_dot(gap, gap) < _dot(gap0, gap0)) | (value(x, gap) < value(x0, gap0))

    def open_(state: _Newton) -> Array:
        moving = state.off > eps**0.75 * jnp.max(state.x)
        return moving & (jnp.max(jnp.abs(state.gap)) > rounding) & (state.trips < TRIPS)

    def newton(state: _Newton) -> _Newton:
        here, x = state[:3], state.x
        root = jnp.sqrt(x / (width + d * x))
        slope = jnp.where(both, rest - width / total(x), 0)
        # Where x is large and h is singular this is, too, but for rounding.
        matrix = (1 + 4 * eps * r.size) * jnp.eye(r.size, dtype=r.dtype)
        matrix += root[:, None] * slope * root[None]
        change = root * cho_solve(cho_factor(matrix, lower=True), -root * state.gap)
        there = at(state.u - state.share * (state.gap + _dot(slope, change)))
        off = jnp.max(jnp.where(real, jnp.abs(there[0] - x), 0)) / state.share
        better = nearer(there, here)
        share = jnp.where(better, jnp.minimum(1, 4 * state.share), state.share / 4)
        x, u, gap = jax.tree.map(partial(jnp.where, better), there, here)
        return _Newton(x, u, gap, off, share, state.trips + 1)

    log_even = jnp.where(real, r / width - log_total, 0)
    even = jnp.where(real, jnp.exp(log_even), 0)
    small = jnp.maximum(width * log_total / _dot(even, _dot(rest, even) + d * even), tiny)
    from_small = at(d * small * even + width * (jnp.log(small) + log_even))
    from_guess = at(d * guess + width * jnp.log(jnp.maximum(guess, tiny)))
    guessed = any_of(guess > 0) & nearer(from_guess, from_small)
    x, u, gap = jax.tree.map(partial(jnp.where, guessed), from_guess, from_small)
    one = jnp.ones_like(width)
    start = _Newton(x, u, gap, jnp.inf * one, one, jnp.int32(0))
    state = jax.lax.while_loop(open_, newton, start)
    solved = jnp.max(jnp.abs(state.gap)) < jnp.sqrt(eps) * (1 + jnp.max(jnp.abs(r)))
    x = jnp.where(solved, jnp.where(real, state.x, 0), jnp.nan)
    return jnp.where(log_total > 0, x, jnp.where(jnp.isfinite(log_total), 0, jnp.nan))


def _wright(c: Array) -> Array:
    """w > 0 with w + log w = c (Wright's omega)."""
    tiny = jnp.finfo(c.dtype).tiny
    low = jnp.exp(jnp.minimum(c, 1))
    w = jnp.where(c > 1, c - jnp.log(jnp.maximum(c, 1)), low / (1 + low))

    def newton(_: Array, w: Array) -> Array:
        return jnp.maximum(w * (1 + c - jnp.log(w)) / (1 + w), tiny)

    return jax.lax.fori_loop(0, 5, newton, jnp.maximum(w, tiny))
