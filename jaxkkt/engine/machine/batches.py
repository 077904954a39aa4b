"""Functions of one run, applied to several at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def at(place: Int[Array, ""], stacked: Array) -> Array:
    """Traced: one of several stacked arrays; the last where the place is beyond, or -1."""
    return jax.lax.dynamic_index_in_dim(stacked, place, keepdims=False)


def put(place: Int[Array, ""], stacked: Array, one: Array) -> Array:
    """Traced: several stacked arrays with this one there."""
    return jax.lax.dynamic_update_index_in_dim(stacked, one, place, axis=0)


def over(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    wanted: Bool[Array, " n"],
    at_once: int,
) -> Any:
    """Traced: the function of each of n arguments, stacked along a leading axis; of those that are
    not `wanted` anything.

    So many are computed `at_once`: all, as accelerators like it, or fewer. By 0 one after the
    other, and of the unwanted nothing: a core's cache holds one, a search ends with its own last
    trip, and bits are those of one alone, wherever it stands.
    """
    if at_once >= len(wanted):
        return jax.vmap(function)(*arguments)
    if at_once:
        return jax.lax.map(lambda some: function(*some), arguments, batch_size=at_once)
    like = jax.eval_shape(function, *jax.tree.map(lambda a: a[0], arguments))

    def nothing(_: Any) -> Any:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)

    def one(item: tuple[Array, Any]) -> Any:
        asked, args = item
        return jax.lax.cond(asked, lambda some: function(*some), nothing, args)

    return jax.lax.map(one, (wanted, arguments))
