"""Loops that ask seldom whether they go on: the states of those that ask after every trip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt.numerics import loops
from jaxkkt.perturbations import rays


def halve(state):
    trips, low, high, target, apart = state
    middle = (low + high) / 2
    beyond = middle < target
    return trips + 1, jnp.where(beyond, middle, low), jnp.where(beyond, high, middle), target, apart


def going(state):
    return state[2] - state[1] > state[4]


@pytest.mark.parametrize("at_a_time", [1, 3, 8])
def test_several_trips_at_a_time_end_where_one_at_a_time_does(monkeypatch, at_a_time):
    monkeypatch.setattr(loops, "TRIPS_AT_A_TIME", at_a_time)
    begin = jnp.int32(0), jnp.float32(0), jnp.float32(1)

    def search(loop):
        return jax.jit(jax.vmap(lambda *problem: loop(going, halve, (*begin, *problem))))

    problems = jnp.linspace(0, 1, 7, dtype=jnp.float32), 2.0 ** -jnp.arange(7, dtype=jnp.float32)
    several = search(loops._several_at_a_time)(*problems)
    for found, expected in zip(several, search(jax.lax.while_loop)(*problems), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert several[0].tolist() == list(range(7))


def test_nothing_is_stepped_where_nothing_goes_on():
    begin = jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.float32(jnp.nan), jnp.float32(1)
    for loop in (loops._several_at_a_time, loops.while_going):
        assert int(jax.jit(lambda loop=loop: loop(going, halve, begin))()[0]) == 0


def test_searches_find_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    n, k = 9, 30
    pre, weight = rng.normal(size=(4, n, k)) + 0.5, rng.normal(size=(4, k)) + 0.2
    along, signs = rng.normal(size=(4, k)), np.sign(rng.normal(size=(4, n)))
    given = tuple(jnp.asarray(a, jnp.float32) for a in (pre, along, weight, signs))

    def searched(pre, along, weight, signs):
        slope = -signs[:, None] * along[None]
        brackets = jnp.full_like(signs, 8)
        flips, certain = rays.first_crossings(pre, slope, weight, signs, brackets)
        stay = rays.stay_negative(pre, slope, weight, signs, jnp.minimum(flips, 8), brackets)
        chosen = jnp.arange(n, dtype=jnp.int32) < 2
        common = rays.first_common(pre, along, weight, signs, chosen, jnp.float32(8))
        return flips, certain, stay, common

    one_at_a_time = jax.jit(jax.vmap(searched))(*given)
    monkeypatch.setattr(rays, "while_going", loops._several_at_a_time)
    several = jax.jit(jax.vmap(searched))(*given)
    for found, expected in zip(several, one_at_a_time, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(several[0]).any()
    assert several[1].any()
    assert several[2].any()
    assert np.isfinite(several[3]).any()
