"""Functions of numbers as one kernel: the same function, under whatever it is called in."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import problem

import jaxkkt as jk
from jaxkkt import training
from jaxkkt.numerics import kernels
from jaxkkt.numerics.kernels import numbers_of, one_kernel


def plain(state, b, c):
    """Uses one of its arguments not at all, and hands another on."""
    a, handed_on, _ = state["a"], state["b"], state["c"]
    grown = jnp.where(b > 0, jnp.sinh(a) + b, a / (1 + b**2))
    return {"grown": grown, "count": c + 1}, handed_on, 2.0


kernel = one_kernel(plain)


def arguments(lanes):
    rng = np.random.default_rng(0)
    numbers = (jnp.asarray(rng.normal(size=lanes), jnp.float32) for _ in range(4))
    a, b, c, d = numbers
    return {"a": a, "b": b, "c": c}, d, jnp.arange(lanes)


def one_of(arguments):
    return jax.tree.map(lambda a: a[0], arguments)


def assert_same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def marked(function, *args):
    return "xla_cpu_small_call" in jax.jit(function).lower(*args).compile().as_text()


@pytest.mark.parametrize("lanes", [1, 7, 100_000])  # XLA shares the last among threads
def test_lanes_are_those_of_the_plain_function(lanes):
    given = arguments(lanes)
    axes = ({"grown": 0, "count": 0}, 0, None)
    found = jax.jit(jax.vmap(kernel, out_axes=axes))(*given)
    assert_same(found, jax.jit(jax.vmap(plain, out_axes=axes))(*given))


def test_a_single_one_too_within_loops_and_conditions():
    state, b, c = one_of(arguments(3))

    def trained(function):
        def onward(carry):
            some, number = carry
            out, _, two = function(some, b, number)
            return {**some, "a": out["grown"] / two}, out["count"]

        def loop(_):
            return jax.lax.while_loop(lambda carry: carry[1] < 5, onward, (state, c))

        return jax.lax.cond(b > -10, loop, lambda _: (state, c), None)

    assert_same(jax.jit(lambda: trained(kernel))(), jax.jit(lambda: trained(plain))())
    assert marked(lambda: trained(kernel))


def test_lanes_may_wait_for_each_other():
    """`jax.vmap` of a loop maps what was traced before."""
    state, b, c = arguments(5)

    def trained(function, state, b, c):
        def onward(carry):
            some, number = carry
            out, *_ = function(some, b, number)
            return {**some, "a": out["grown"] / 2}, out["count"]

        return jax.lax.while_loop(lambda carry: carry[1] < 9, onward, (state, c))

    def lanes(function):
        return jax.jit(jax.vmap(lambda *one: trained(function, *one)))(state, b, c)

    assert_same(lanes(kernel), lanes(plain))


def test_it_has_derivatives():
    state, b, c = one_of(arguments(3))

    def grown(function, a):
        return jax.jit(function)({**state, "a": a}, b, c)[0]["grown"]

    for derivative in (jax.grad, jax.jacfwd):
        found = derivative(lambda a: grown(kernel, a))(state["a"])
        np.testing.assert_allclose(found, derivative(lambda a: grown(plain, a))(state["a"]), 1e-6)


def test_without_tracing_it_is_called_as_it_is():
    given = {"a": 1.0, "b": "text", "c": None}, 2.0, 3
    assert kernel(*given) == plain(*given)


def test_only_a_cpu_and_versions_that_were_tried_are_asked_for_it(monkeypatch):
    given = one_of(arguments(3))
    assert marked(kernel, *given)
    traced = jax.jit(kernel).trace(*given)
    assert "inlineable" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "inlineable" not in traced.lower(lowering_platforms=("cuda",)).as_text()
    monkeypatch.setattr(kernels, "TRIED", ((0, 9),))
    assert not marked(lambda *some: one_kernel(plain)(*some), *given)


UNUSED = """
import jax, jax.numpy as jnp
from jaxkkt.numerics.kernels import one_kernel

functions = (
    lambda a, b, c: (a + 1, 2.0),
    lambda a, b, c: (a + 1, 0 * c),
    lambda a, b, c: (jnp.where(b == b, a, b), c),
    lambda a, b, c: (jnp.where(c > 0, a, b), c),  # of a constant c
)
for function in functions:
    one = one_kernel(function)
    for part in (slice(0, 1), slice(1, 2), slice(2)):
        print(jax.jit(lambda a, b, c: one(a, b, c)[part])(1.0, 2.0, 3))
        print(jax.jit(lambda a, b: one(a, b, jnp.int32(3))[part])(1.0, 2.0))
        print(jax.jit(jax.vmap(lambda a, b: one(a, b, 3)[part]))(jnp.ones(3), jnp.ones(3)))
"""


@pytest.mark.slow
def test_of_arguments_that_are_not_used_xla_is_not_told():
    """It would end the process. Compiled as users do, not as the tests."""
    command, env = [sys.executable, "-c", UNUSED], {**os.environ, "XLA_FLAGS": ""}
    told = subprocess.run(command, env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) == 36


def test_numbers_of_a_tree():
    found = numbers_of({"a": jnp.zeros(3), "b": jnp.float32(1), "c": (None, 2)})
    assert found == {"a": None, "b": 1, "c": (None, 2)}


@pytest.mark.parametrize(
    "protocol",
    [
        jk.flow_protocol(),
        jk.flow_protocol("logistic", delta=0.5, max_steps=0, target_log_loss=3.0),
        jk.Protocol(jk.Flow(delta=1e-3), trained=("w", "b"), ball=2.0),
        jk.paper_protocol(batch_size=2),
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_steps_of_every_kind_compile(protocol, paused):
    """Numbers that are fixed may leave an argument without use."""
    params, data = problem(4, 4, 5)
    state, data = training.load(protocol, params, data, jax.random.key(1), "plain")
    pause = training.Pause(jnp.float32(-3), jnp.int32(5)) if paused else None

    def step(state):
        return training.step(state, data, protocol, pause)

    @jax.jit
    def two(state):
        return jax.vmap(step)(jax.tree.map(lambda a: jnp.stack([a, a]), state)).status

    status = int(jax.jit(step)(state).status)
    assert two(state).tolist() == [status, status]
