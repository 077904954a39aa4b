"""Trips over the lanes of a batch, in which the runs of its slots take turns."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxkkt.engine.machine.batches import at, put
from jaxkkt.training import Status

Step = Callable[[Any, Any], Any]


def make_trips(
    step: Step,
    states: Any,
    fixed: Any,
    numbers: Int[Array, " slots"],
    lanes: int,
    limits: Int[Array, " 2"],
    at_a_time: int = 1,
) -> tuple[Any, Int[Array, ""]]:
    """Traced: the states after about `limits[0]` trips, and how many were made. Where all slots are
    lanes so many are made `at_a_time`, before it looks again which runs have ended.

    A trip takes `step(state, fixed)` of the run in every lane. `states` and `fixed` are stacked,
    one a slot. Where a run ends, the one of the smallest number that waits takes its lane. Once
    none waits the trips end when `limits[1]`, at least 1, of those in lanes have ended; with one
    lane, when all have.
    """
    at_most = _few(states, lanes, limits[1])
    if len(numbers) == 1:
        alone = jax.tree.map(lambda a: a[0], (states, fixed))
        left, state = _stepped_until(step)(limits[0], *alone, 0)
        return jax.tree.map(lambda a: a[None], state), limits[0] - left
    if len(numbers) == lanes:
        trips = _stepped_until(jax.vmap(step), at_a_time)
        left, states = trips(limits[0], states, fixed, at_most)
        return states, limits[0] - left
    waiting = jnp.where(_running(states), numbers, jnp.iinfo(jnp.int32).max)
    queue = jnp.argsort(waiting).astype(jnp.int32)
    if lanes == 1:
        left, states = _one_by_one(step, states, fixed, queue, limits[0])
    else:
        left, states = _in_lanes(step, states, fixed, queue, lanes, limits[0], at_most)
    return states, limits[0] - left


def _running(states: Any) -> Array:
    return states.status == int(Status.RUNNING)


def _count(states: Any) -> Int[Array, ""]:
    return jnp.sum(_running(states), dtype=jnp.int32)


def _few(states: Any, lanes: int, ended: Array) -> Array:
    """How many still run once so many of those in lanes have ended."""
    return jnp.maximum(jnp.minimum(_count(states), lanes) - ended, 0)


def _stepped_until(step: Step, at_a_time: int = 1) -> Callable[..., tuple[Array, Any]]:
    """Steps states until `at_most` so many of them run, or no trips are left. It looks after so
    many steps `at_a_time`."""

    def trips(left: Array, states: Any, fixed: Any, at_most: Array | int) -> tuple[Array, Any]:
        def going(carry: tuple[Array, Any]) -> Array:
            return (carry[0] > 0) & (_count(carry[1]) > at_most)

        def trip(_: Array | int, states: Any) -> Any:
            return step(states, fixed)

        def some(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            left, states = carry
            if at_a_time == 1:  # without a loop that XLA would have to unroll
                return left - 1, trip(0, states)
            return left - at_a_time, jax.lax.fori_loop(0, at_a_time, trip, states)

        return jax.lax.while_loop(going, some, (left, states))

    return trips


def _one_by_one(
    step: Step, states: Any, fixed: Any, queue: Array, left: Array
) -> tuple[Array, Any]:
    """A lane alone has no axis: with one, XLA transposes its weights in every step."""
    trips = _stepped_until(step)

    def one(carry: tuple[Array, Any], place: Array) -> tuple[tuple[Array, Any], None]:
        left, slots = carry
        left, ended = trips(left, *jax.tree.map(partial(at, place), (states, fixed)), 0)
        return (left, jax.tree.map(partial(put, place), slots, ended)), None

    return jax.lax.scan(one, (left, states), queue)[0]


class _Turns(NamedTuple):
    """How runs take turns: the trips that are left, the next place in the queue, the slots that the
    runs in lanes came from, their states and what is fixed, and the states of all slots."""

    left: Int[Array, ""]
    next: Int[Array, ""]
    places: Int[Array, " lanes"]
    states: Any
    fixed: Any
    slots: Any


def _in_lanes(
    step: Step, states: Any, fixed: Any, queue: Array, lanes: int, left: Array, at_most: Array
) -> tuple[Array, Any]:
    """Runs are copied into a lane and back to their slot."""
    trips, waiting = _stepped_until(jax.vmap(step)), _count(states)

    def swap(_: Array, turns: _Turns) -> _Turns:
        """The run of the first idle lane back to its slot, and the next into the lane."""
        lane = jnp.argmin(_running(turns.states)).astype(jnp.int32)
        ended = jax.tree.map(partial(at, lane), turns.states)
        slots = jax.tree.map(partial(put, at(lane, turns.places)), turns.slots, ended)
        place = at(turns.next, queue)
        # Read from what is never written: of `slots` XLA would make a copy in every swap.
        taken = place, *jax.tree.map(partial(at, place), (states, fixed))
        in_lanes = turns.places, turns.states, turns.fixed
        places, theirs, with_them = jax.tree.map(partial(put, lane), in_lanes, taken)
        return _Turns(turns.left, turns.next + 1, places, theirs, with_them, slots)

    def until_one_ends(turns: _Turns) -> _Turns:
        enough = jnp.where(turns.next < waiting, lanes - 1, at_most)
        left, stepped = trips(turns.left, turns.states, turns.fixed, enough)
        free = jnp.clip(waiting - turns.next, 0, lanes - _count(stepped))
        return jax.lax.fori_loop(0, free, swap, turns._replace(left=left, states=stepped))

    def going(turns: _Turns) -> Array:
        return (turns.left > 0) & (_count(turns.states) > at_most)

    first = queue[:lanes]
    theirs, with_them = jax.tree.map(lambda a: a[first], (states, fixed))
    turns = _Turns(left, jnp.int32(lanes), first, theirs, with_them, states)
    turns = jax.lax.while_loop(going, until_one_ends, turns)

    def back(lane: Array, slots: Any) -> Any:
        one = jax.tree.map(partial(at, lane), turns.states)
        return jax.tree.map(partial(put, at(lane, turns.places)), slots, one)

    return turns.left, jax.lax.fori_loop(0, lanes, back, turns.slots)
