"""One run through several log losses, and down to a log loss of -1e4."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax
import pytest
from cases import assert_close, assert_same_bits, flat, lane, problem, stacked

from jaxkkt import optimizers, single
from jaxkkt.protocols import Protocol
from jaxkkt.training import Status

FLOW = Protocol(optimizers.log_loss_time(0.02), max_steps=30_000)
SMALL = {"m": 6, "d": 20, "k": 40}
LEVELS = (-3.0, -20.0, -150.0)


def normalized_margin(params, data):
    w, b, v, x, y = (np.asarray(a, np.float64) for a in (*params, *data))
    q = y * (np.maximum(x @ w.T + b, 0) @ v)
    return q.min() / sum((a**2).sum() for a in (w, b, v))


@pytest.mark.parametrize(
    "representation",
    ["gram", *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "span"))],
)
def test_each_level_is_what_training_to_it_returns(representation):
    params, data = problem(**SMALL)
    protocol = replace(FLOW, representation=representation)
    through = jax.device_get(single.train_through(params, *data, LEVELS, protocol))
    assert len(set(through.steps.tolist())) == 3
    for i, level in enumerate(LEVELS):
        alone = single.train(params, *data, replace(protocol, target_log_loss=level))
        assert alone.status == Status.CONVERGED
        got = lane(through, i)
        assert (got.steps, got.status) == (alone.steps, alone.status)
        assert_close(got, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [optax.adam(0.02), optimizers.loss_scaled(0.05)], ids=["adam", "descent"]
)
@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 4])
def test_other_optimizers_and_mini_batches_pass_levels_undisturbed(optimizer, batch_size):
    params, data = problem()
    key = jax.random.key(5)
    protocol = Protocol(optimizer, batch_size=batch_size, max_steps=20_000)
    levels = (1.0, 0.3, -0.7)
    with jax.numpy_dtype_promotion("standard"):
        through = jax.device_get(single.train_through(params, *data, levels, protocol, key))
        for i, level in enumerate(levels):
            target = replace(protocol, target_log_loss=level)
            alone = single.train(params, *data, target, key)
            assert alone.status == Status.CONVERGED
            got = lane(through, i)
            assert (got.steps, got.status) == (alone.steps, alone.status)
            assert_close(got, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_vmapped_equals_looped():
    problems = [problem(**SMALL, seed=seed) for seed in range(3)]
    params, data = problems[1]
    problems[1] = (params._replace(b=params.b - 100), data)  # no live neuron
    params, data = stacked(*problems)
    batch = jax.vmap(lambda p, x, y: single.train_through(p, x, y, LEVELS, FLOW))(params, *data)
    assert batch.params.w.shape == (3, 3, 40, 20)
    for i, one in enumerate(problems):
        solo = single.train_through(*flat(one), LEVELS, FLOW)
        assert batch.steps[i].tolist() == solo.steps.tolist()
        assert batch.status[i].tolist() == solo.status.tolist()
        assert_close(lane(batch, i), solo, rtol=1e-9, atol=1e-11)
    assert batch.status[1].tolist() == [Status.STALLED] * 3


def test_a_run_that_ends_between_levels_shows_it_from_there_on():
    params, data = problem(**SMALL)
    reached = single.train(params, *data, replace(FLOW, target_log_loss=-20.0))
    capped = replace(FLOW, max_steps=int(reached.steps) + 5)
    got = single.train_through(params, *data, LEVELS, capped)
    assert got.status.tolist() == [Status.CONVERGED, Status.CONVERGED, Status.STEP_CAP]
    assert got.steps[2] == reached.steps + 5
    none = single.train_through(params, *data, LEVELS, replace(FLOW, max_steps=3))
    assert none.status.tolist() == [Status.NOT_SEPARABLE] * 3
    assert_same_bits(lane(none, 0), lane(none, 2))
    wild = Protocol(optimizers.loss_scaled(1e30))
    assert single.train_through(params, *data, LEVELS, wild).status.tolist() == (
        [Status.DIVERGED] * 3
    )


def test_levels_may_be_traced():
    params, data = problem(**SMALL)
    through = jax.jit(lambda levels: single.train_through(params, *data, levels, FLOW))
    found, expected = through(jnp.array(LEVELS)), single.train_through(params, *data, LEVELS, FLOW)
    assert found.status.tolist() == expected.status.tolist()
    np.testing.assert_allclose(found.log_loss, expected.log_loss, rtol=1e-2)


def test_one_compilation_serves_other_levels():
    params, data = problem(**SMALL)
    single.train_through(params, *data, (-1.0, -2.0), FLOW)
    compiled = single._train_through._cache_size()
    single.train_through(params, *data, [-5.0, -6.0], FLOW)
    single.train_through(params, *data, jnp.array([-5.0, -6.5]), FLOW)
    single.train_through(params, *data, np.array([-5.0, -6.5]), FLOW)
    assert single._train_through._cache_size() == compiled


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((), r"levels must be log losses.*got \[\]"),
        ((-1.0, -1.0), r"each below the one before, got \[-1.0, -1.0\]"),
        ((-3.0, -2.0), r"each below the one before, got \[-3.0, -2.0\]"),
        ((-3.0, np.nan), r"levels must be log losses, finite in float32.*got \[-3.0, nan\]"),
        ((-3.0, -np.inf), r"finite in float32.*got \[-3.0, -inf\]"),
        ((-3.0, -1e39), r"finite in float32.*got \[-3.0, -1e\+39\]"),
    ],
)
def test_bad_levels_are_refused(levels, message):
    with pytest.raises(ValueError, match=message):
        single.train_through(*flat(problem()), levels, FLOW)


def test_what_training_refuses_is_refused(unchecked):
    params, (x, y) = problem()
    with pytest.raises(ValueError, match="both labels must occur"):
        single.train_through(params, x, jnp.abs(y), LEVELS)
    with pytest.raises(ValueError, match="give a key to shuffle with"):
        single.train_through(
            params, x, y, LEVELS, Protocol(optimizers.loss_scaled(0.1), batch_size=4)
        )


@pytest.mark.slow
def test_float32_reaches_log_losses_of_minus_ten_thousand():
    params, data = problem(**SMALL)
    levels = (-1e3, -1e4)
    run = single.train_through(params, *data, levels)
    assert run.params.w.dtype == jnp.float32
    assert run.status.tolist() == [Status.CONVERGED] * 2
    assert run.steps[0] < 2500
    assert run.steps[1] < 7000
    for i, level in enumerate(levels):
        assert 1.02 * level < run.log_loss[i] <= level  # no step is longer than 0.02 (1 + s)
        w, b, v, x, y = (np.asarray(a, np.float64) for a in (*lane(run.params, i), *data))
        q = y * (np.maximum(x @ w.T + b, 0) @ v)
        exact = mpmath.log(mpmath.fsum(mpmath.exp(-mpmath.mpf(float(a))) for a in q))
        # Rounding of parameters and of sums of 40 products, relative to margins of size |level|.
        np.testing.assert_allclose(run.log_loss[i], float(exact), rtol=1e-5)

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), (params, data))
        exact = single.train_through(*flat(wide), levels)
        finer = Protocol(optimizers.log_loss_time(0.005, largest=1.0, proportion=0.005))
        fine = single.train_through(*flat(wide), levels, finer)
    assert exact.status.tolist() == fine.status.tolist() == [Status.CONVERGED] * 2
    for i in range(2):
        margins = [normalized_margin(lane(r.params, i), data) for r in (run, exact, fine)]
        # Runs stop up to 2% below a level; d log margin / d log s is below 1/10 here. Neurons on
        # kinks go where rounding pushes them, which moves the rest.
        np.testing.assert_allclose(margins, margins[1], rtol=5e-3)
