"""Trips over the lanes of a batch, in which the runs of its slots take turns."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxkkt.engine.batches import at, put
from jaxkkt.training import Status


class _Lanes(NamedTuple):
    """The runs that are stepped: how many trips are left to them, which run of the queue is next,
    the slots that they came from, their states, what stays with each, and the states of all."""

    left: Int[Array, ""]
    next: Int[Array, ""]
    places: Int[Array, " lanes"]
    states: Any
    fixed: Any
    everything: Any


def make_trips(
    step: Callable[[Any, Any], Any], states: Any, fixed: Any, lanes: int, limits: Int[Array, " 2"]
) -> tuple[Any, Int[Array, ""]]:
    """Traced: the states after at most `limits[0]` trips, and how many were made.

    A trip takes `step(state, fixed)` of a run in every lane. `states` and `fixed` are stacked, one
    a slot. Where a run ends, the next that waits takes its lane, those of the most steps first.
    Ends once none waits and `limits[1]` lanes are idle, or all; with one lane, once all have ended.
    """
    slots = len(states.status)
    if lanes == 1:
        left, states = _one_by_one(step, states, fixed, limits[0])
    else:
        together = _until(jax.vmap(step))
        few = jnp.maximum(jnp.minimum(_count(states), lanes) - limits[1], 0)
        if lanes == slots:
            left, states = together(limits[0], states, fixed, few)
        else:
            left, states = _in_turn(together, states, fixed, lanes, limits[0], few)
    return states, limits[0] - left


def _running(states: Any) -> Bool[Array, "*n"]:
    return states.status == Status.RUNNING


def _count(states: Any) -> Int[Array, ""]:
    return jnp.sum(_running(states), dtype=jnp.int32)


def _until(step: Callable[[Any, Any], Any]) -> Callable[..., tuple[Array, Any]]:
    """Steps states until no more than `few` of them run, or no trips are left."""

    def trips(left: Array, states: Any, fixed: Any, few: Array | int) -> tuple[Array, Any]:
        def going(carry: tuple[Array, Any]) -> Array:
            return (carry[0] > 0) & (_count(carry[1]) > few)

        def trip(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            return carry[0] - 1, step(carry[1], fixed)

        return jax.lax.while_loop(going, trip, (left, states))

    return trips


def _one_by_one(
    step: Callable[[Any, Any], Any], states: Any, fixed: Any, left: Array
) -> tuple[Array, Any]:
    """A slot after another. A lane alone has no axis: with one, XLA transposes its weights in every
    step."""
    trips = _until(step)

    def one(left: Array, some: tuple[Any, Any]) -> tuple[Array, Any]:
        return trips(left, *some, 0)

    if len(states.status) > 1:
        return jax.lax.scan(one, left, (states, fixed))
    left, alone = one(left, jax.tree.map(lambda a: a[0], (states, fixed)))
    return left, jax.tree.map(lambda a: a[None], alone)


def _in_turn(
    together: Callable[..., tuple[Array, Any]],
    states: Any,
    fixed: Any,
    lanes: int,
    left: Array,
    few: Array,
) -> tuple[Array, Any]:
    """More runs than lanes: the states and what is fixed are copied into a lane and out of it."""
    order = jnp.where(_running(states), -states.steps, 1)
    queue, waiting = jnp.argsort(order).astype(jnp.int32), _count(states)

    def swap(_: Array, some: _Lanes) -> _Lanes:
        """The first idle lane's run back to its slot, and the next into the lane."""
        lane = jnp.argmin(_running(some.states)).astype(jnp.int32)
        place = at(some.next, queue)
        back = jax.tree.map(partial(at, lane), some.states)
        taken = place, *jax.tree.map(partial(at, place), (states, fixed))
        mine = some.places, some.states, some.fixed
        places, stepped, with_them = jax.tree.map(partial(put, lane), mine, taken)
        everything = jax.tree.map(partial(put, some.places[lane]), some.everything, back)
        return _Lanes(some.left, some.next + 1, places, stepped, with_them, everything)

    def until_one_ends(some: _Lanes) -> _Lanes:
        enough = jnp.where(some.next < waiting, _count(some.states) - 1, few)
        left, ended = together(some.left, some.states, some.fixed, enough)
        some = some._replace(left=left, states=ended)
        idle = lanes - _count(ended)
        return jax.lax.fori_loop(0, jnp.clip(waiting - some.next, 0, idle), swap, some)

    def going(some: _Lanes) -> Array:
        enough = jnp.where(some.next < waiting, 0, few)
        return (some.left > 0) & (_count(some.states) > enough)

    first = queue[:lanes]
    mine, with_them = jax.tree.map(lambda a: a[first], (states, fixed))
    some = _Lanes(left, jnp.int32(lanes), first, mine, with_them, states)
    some = jax.lax.while_loop(going, until_one_ends, some)

    def back(lane: Array, everything: Any) -> Any:
        one = jax.tree.map(partial(at, lane), some.states)
        return jax.tree.map(partial(put, at(lane, some.places)), everything, one)

    return some.left, jax.lax.fori_loop(0, lanes, back, some.everything)
