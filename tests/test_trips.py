"""Runs that take turns in fewer lanes: each makes its own steps, and lanes are idle for little."""

from collections import deque
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SOON

import jaxkkt as jk
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.engine.programs.trips import make_trips
from jaxkkt.engine.running import lanes as loop
from jaxkkt.engine.running.lanes import run_bucket
from jaxkkt.engine.running.tally import Tally

EVER = 10**6
LENGTHS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
RUNNING, CONVERGED, PAUSED, RAISED = map(
    int, (jk.Status.RUNNING, jk.Status.CONVERGED, jk.Status.PAUSED, jk.Status.RAISED)
)


class Counting(NamedTuple):
    """A state that counts its steps, sums what is fixed with it, and draws."""

    status: Any
    steps: Any
    total: Any
    key: Any


def step(state, fixed):
    (length, pause), number = fixed
    steps = state.steps + 1
    status = jnp.where(steps >= length, CONVERGED, jnp.where(steps == pause, PAUSED, RUNNING))
    key = jax.random.fold_in(state.key, number)
    stepped = Counting(status.astype(jnp.int32), steps, state.total + number, key)
    return jax.tree.map(partial(jnp.where, state.status == RUNNING), stepped, state)


def fixed(lengths=LENGTHS, pauses=0):
    count = len(lengths)
    return (jnp.array(lengths), jnp.broadcast_to(pauses, count)), jnp.arange(1, count + 1)


def states(status=RUNNING, count=12):
    zeros = jnp.zeros(count, jnp.int32)
    status = jnp.broadcast_to(jnp.array(status, jnp.int32), count)
    return Counting(status, zeros, zeros, jax.random.split(jax.random.key(0), count))


@partial(jax.jit, static_argnums=(2, 6))
def made(states, fixed, lanes, trips, ended, numbers=None, at_a_time=1):
    numbers = jnp.arange(len(states.status)) if numbers is None else numbers
    limits = jnp.array([trips, ended], jnp.int32)
    return make_trips(step, states, fixed, numbers, lanes, limits, at_a_time)


def numbers_in(state):
    return [
        np.asarray(leaf).tolist() for leaf in state._replace(key=jax.random.key_data(state.key))
    ]


def as_listed(lengths, lanes):
    """Trips of lanes that take the next run of the list as one ends."""
    ends, last = [0] * lanes, 0
    heapify(ends)
    for length in lengths:
        heappush(ends, end := heappop(ends) + length)
        last = max(last, end)
    return last


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 11, 12])
def test_every_run_makes_its_own_steps(lanes):
    ended, trips = made(states(), fixed(), lanes, EVER, lanes)
    assert ended.steps.tolist() == list(LENGTHS)
    assert ended.total.tolist() == [n * length for n, length in enumerate(LENGTHS, 1)]
    assert trips == as_listed(LENGTHS, lanes)


@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 12])
def test_any_state_is_that_of_a_run_alone(lanes):
    """Ended, paused and raised ones among them, and a few trips at a time."""
    rng = np.random.default_rng(lanes)
    for _ in range(8):
        some = states(rng.choice([RUNNING, RUNNING, RUNNING, CONVERGED, PAUSED, RAISED], 12))
        with_them = fixed(rng.integers(1, 12, 12), rng.integers(0, 12, 12))
        alone = some
        for _ in range(12):
            alone = jax.vmap(step)(alone, with_them)
        while (some.status == RUNNING).any():
            chunk, order = int(rng.integers(1, 9)), jnp.array(rng.permutation(12))
            some, trips = made(some, with_them, lanes, chunk, max(1, lanes // 2), order)
            assert 1 <= trips <= chunk
        assert numbers_in(some) == numbers_in(alone)


@pytest.mark.parametrize("at_a_time", [2, 4, 7])
def test_several_trips_at_a_time_make_no_run_longer(at_a_time):
    one_by_one, _ = made(states(), fixed(), 12, EVER, 12)
    ended, trips = made(states(), fixed(), 12, EVER, 12, None, at_a_time)
    assert numbers_in(ended) == numbers_in(one_by_one)
    assert trips == -(-max(LENGTHS) // at_a_time) * at_a_time
    some, trips = made(states(), fixed(), 12, 1, 12, None, at_a_time)
    assert (trips, some.steps.tolist()) == (at_a_time, np.minimum(LENGTHS, at_a_time).tolist())


def test_no_trip_is_left_and_no_run():
    for lanes in (1, 3, 12):
        some, trips = made(states(), fixed(), lanes, 0, lanes)
        assert (trips, some.steps.sum()) == (0, 0)
        some, trips = made(states(CONVERGED), fixed(), lanes, EVER, lanes)
        assert (trips, some.steps.sum()) == (0, 0)


def test_ends_once_so_many_of_those_in_lanes_have_ended():
    lengths = (1, 2, 3, 4, 10, 10, 10, 10)
    for lanes, trips in ((8, 4), (4, 12), (3, 13)):  # by hand
        some, n = made(states(count=8), fixed(lengths), lanes, EVER, lanes // 2)
        assert n == trips
        assert (some.status == RUNNING).sum() == lanes - lanes // 2
    # Of fewer than lanes as many more: else none would be stepped, for ever.
    half = states([RUNNING, RAISED] * 4, 8)
    for lanes in (8, 6):
        found = [int(made(half, fixed(lengths), lanes, EVER, n)[1]) for n in (1, 2, 4)]
        assert found == [1, 3, 10]


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_smallest_number_comes_first(lanes):
    some, _ = made(states(count=4), fixed((2,) * 4), lanes, 4 // lanes, 1, jnp.array([3, 1, 0, 2]))
    assert some.steps.tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("lanes", "slots"),
    [(2, 8), *(pytest.param(*some, marks=pytest.mark.slow) for some in ((1, 4), (4, 4)))],
)
def test_no_run_waits_for_those_that_came_after_it(monkeypatch, lanes, slots):
    """Chunks end where runs do not: others fill the slots of those that ended in between."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 0)
    axes = {"max_steps": 12, "optimizer": SOON, "measure": ()}
    runs = jk.grid(d=8, samples=6, width=20, seed=range(24), **axes)
    (bucket,) = jk.plan_sweep(runs).buckets
    bucket = replace(bucket, lanes=lanes, slots=slots)
    found = run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), Tally())
    seeds = [row.run.seed for row in chain(*found)]
    assert max(abs(place - seed) for place, seed in enumerate(seeds)) < slots


@pytest.mark.slow
def test_lanes_of_a_sweep_are_rarely_idle():
    """Three of four runs are short: lanes that wait for the longest beside them make 4 x 201."""
    lengths = (10, 10, 10, 200) * 4
    runs = [
        run.replace(protocol=jk.flow_protocol(max_steps=lengths[run.seed]))
        for run in jk.grid(d=8, samples=6, width=20, seed=range(16))
    ]
    (bucket,) = jk.plan_sweep(runs).buckets
    bucket, tally = replace(bucket, lanes=4, slots=16), Tally()
    found = run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), tally)
    found = list(chain(*found))
    assert sorted(row.values["steps"] for row in found) == sorted(lengths)
    one_more = np.add(lengths, 1).tolist()  # the trip that sees the cap
    assert tally.lane_steps / bucket.lanes == as_listed(one_more, 4)
    assert as_listed(one_more, 4) < 500
