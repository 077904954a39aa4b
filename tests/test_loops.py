"""Loops that ask seldom whether they go on: the states of those that ask after every trip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import loops


def halve(state):
    trips, low, high, target = state
    middle = (low + high) / 2
    beyond = middle < target
    return trips + 1, jnp.where(beyond, middle, low), jnp.where(beyond, high, middle), target


def going(state):
    return state[2] - state[1] > 1e-3


@pytest.mark.parametrize("at_a_time", [1, 3, 8])
def test_several_trips_at_a_time_end_where_one_at_a_time_does(monkeypatch, at_a_time):
    monkeypatch.setattr(loops, "TRIPS_AT_A_TIME", at_a_time)
    begin = jnp.int32(0), jnp.float32(0), jnp.float32(1)

    def search(loop):
        return jax.jit(jax.vmap(lambda target: loop(going, halve, (*begin, target))))

    targets = jnp.linspace(0, 1, 7, dtype=jnp.float32)
    several = search(loops._several_at_a_time)(targets)
    for found, expected in zip(several, search(jax.lax.while_loop)(targets), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (several[0] == 10).all()


def test_nothing_is_stepped_where_nothing_goes_on():
    begin = jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.float32(jnp.nan)
    for loop in (loops._several_at_a_time, loops.while_going):
        assert int(jax.jit(lambda loop=loop: loop(going, halve, begin))()[0]) == 0
