"""Derivatives of what a search finds, through which JAX cannot see; or an error."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt.numerics.arithmetic import ratio

T = TypeVar("T")


def as_zeros(outputs: Callable[[T], T], sizes: T) -> T:
    """The sizes, where the outputs are 0, with the derivatives of such zeros, in either mode and of
    any order.

    `outputs` maps arrays of sizes to arrays of the same shapes, each number by its own size alone.
    Where g(c, theta) = 0 the derivative of c over theta is that of g over -dg/dc, NaN where that
    is 0; 0 for a size that is 0, infinite or NaN.
    """

    def moves(c: Array) -> Array:
        return (c > 0) & (c < jnp.inf)

    def equations(sizes: T) -> T:
        found = outputs(jax.tree.map(lambda c: jnp.where(moves(c), c, 0), sizes))
        return jax.tree.map(lambda c, output: jnp.where(moves(c), output, c), sizes, found)

    def solve(linear: Callable[[T], T], right: T) -> T:
        slopes = linear(jax.tree.map(jnp.ones_like, right))
        return jax.tree.map(lambda r, s: jnp.where(s == 0, jnp.nan, ratio(r, s)), right, slopes)

    found = jax.lax.stop_gradient(sizes)
    return jax.lax.custom_root(equations, found, lambda _, guess: guess, solve)


def without_derivative(reason: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that raises TypeError with this reason where its derivative is asked for."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        held: Any = jax.custom_jvp(function)

        def derivative(*_: Any) -> Any:
            raise TypeError(reason)

        held.defjvp(derivative)
        return wraps(function)(held)

    return decorate
