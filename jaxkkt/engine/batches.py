"""Functions of one run, applied to several at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def at(place: Int[Array, ""], stacked: Array) -> Array:
    """Traced: one of several stacked arrays; the last where the place is beyond, or -1."""
    return jax.lax.dynamic_index_in_dim(stacked, place, keepdims=False)


def put(place: Int[Array, ""], stacked: Array, one: Array) -> Array:
    """Traced: several stacked arrays with this one there."""
    return jax.lax.dynamic_update_index_in_dim(stacked, one, place, axis=0)


def over(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    count: Int[Array, ""],
    side_by_side: bool | int,
) -> Any:
    """Traced: the function of each of several arguments, stacked along a leading axis; anything of
    those beyond the first `count`.

    `side_by_side` computes all at once, as accelerators like it, or so many. Else one after the
    other, up to that count: a core's cache holds one, a search ends with its own last
    trip, and bits are those of one alone, wherever it stands.
    """
    if side_by_side is True:
        return jax.vmap(function)(*arguments)
    if side_by_side:
        return jax.lax.map(lambda some: function(*some), arguments, batch_size=side_by_side)
    like = jax.eval_shape(function, *jax.tree.map(lambda a: a[0], arguments))
    many = len(jax.tree.leaves(arguments)[0])
    nothing = jax.tree.map(lambda a: jnp.zeros((many, *a.shape), a.dtype), like)

    def one(i: Int[Array, ""], found: Any) -> Any:
        result = function(*jax.tree.map(partial(at, i), arguments))
        return jax.tree.map(partial(put, i), found, result)

    return jax.lax.fori_loop(0, count, one, nothing)
