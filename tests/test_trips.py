"""Runs that take turns in fewer lanes: each makes its own steps, and lanes are idle for little."""

from collections import deque
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkkt as jk
from jaxkkt.engine.lanes import run_bucket
from jaxkkt.engine.programs import compile_bucket
from jaxkkt.engine.tally import Tally
from jaxkkt.engine.trips import make_trips

EVER = 10**6
LENGTHS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
NONE = (0,) * len(LENGTHS)


class Counting(NamedTuple):
    """A state that counts its steps, and sums what is fixed with it."""

    status: Any
    steps: Any
    total: Any


def step(state, fixed):
    length, number = fixed
    running = state.status == int(jk.Status.RUNNING)
    one = running.astype(jnp.int32)
    steps = state.steps + one
    status = jnp.where(running & (steps >= length), int(jk.Status.CONVERGED), state.status)
    return Counting(status.astype(jnp.int32), steps, state.total + one * number)


def fixed(lengths=LENGTHS):
    return jnp.array(lengths), jnp.arange(1, len(lengths) + 1)


def states(steps=NONE, lengths=LENGTHS):
    steps = jnp.array(steps)
    ended = steps >= jnp.array(lengths)
    status = jnp.where(ended, int(jk.Status.CONVERGED), int(jk.Status.RUNNING)).astype(jnp.int32)
    return Counting(status, steps, steps * fixed(lengths)[1])


@partial(jax.jit, static_argnums=2)
def made(states, fixed, lanes, trips, idle):
    return make_trips(step, states, fixed, lanes, jnp.array([trips, idle], jnp.int32))


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
    assert ended.status.tolist() == [jk.Status.CONVERGED] * len(LENGTHS)
    assert ended.steps.tolist() == list(LENGTHS)
    assert ended.total.tolist() == [n * length for n, length in enumerate(LENGTHS, 1)]
    assert trips == as_listed(LENGTHS, lanes)


@pytest.mark.parametrize("lanes", [1, 2, 5, 12])
def test_a_few_trips_at_a_time(lanes):
    some, trips = states(), 0
    while (some.status == jk.Status.RUNNING).any():
        some, n = made(some, fixed(), lanes, 2, lanes)
        assert 1 <= n <= 2
        trips += int(n)
    assert some.steps.tolist() == list(LENGTHS)
    assert some.total.tolist() == made(states(), fixed(), lanes, EVER, lanes)[0].total.tolist()


def test_no_trip_is_left_and_no_run():
    for lanes in (1, 3, 12):
        some, trips = made(states(), fixed(), lanes, 0, lanes)
        assert (trips, some.steps.sum()) == (0, 0)
        some, trips = made(states(LENGTHS), fixed(), lanes, EVER, lanes)
        assert trips == 0
        assert some.steps.tolist() == list(LENGTHS)


def test_ends_once_so_many_lanes_are_idle():
    lengths = (1, 2, 3, 4, 10, 10, 10, 10)
    for lanes, trips in ((8, 4), (4, 12), (3, 13)):  # by hand
        some, n = made(states((0,) * 8, lengths), fixed(lengths), lanes, EVER, lanes // 2)
        assert n == trips
        assert (some.status == jk.Status.RUNNING).sum() == lanes - lanes // 2


def test_those_of_the_most_steps_go_first():
    """Else runs that are put into the first slots would leave one further on for the last."""
    some, _ = made(states((0, 0, 5, 0), (9,) * 4), fixed((9,) * 4), 2, 3, 2)
    assert some.steps.tolist() == [3, 0, 8, 0]


def test_lanes_of_a_sweep_are_rarely_idle():
    """Three of four runs are short: lanes that wait for the longest beside them make 4 x 201."""
    lengths = (10, 10, 10, 200) * 4
    runs = [
        run.replace(protocol=jk.flow_protocol(max_steps=lengths[run.seed]))
        for run in jk.grid(d=8, samples=6, width=20, seed=range(16))
    ]
    (bucket,) = jk.plan_sweep(runs).buckets
    bucket, tally = replace(bucket, lanes=4, slots=16), Tally()
    found = list(run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), tally))
    assert sorted(row.values["steps"] for row in found) == sorted(lengths)
    one_more = np.add(lengths, 1).tolist()  # the trip that sees the cap
    assert tally.lane_steps / bucket.lanes == as_listed(one_more, 4)
    assert as_listed(one_more, 4) < 500
