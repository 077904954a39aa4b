"""Training one run: against plain loops, in batches, to any loss, without compiling twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import assert_close, assert_same_bits, flat, lane, problem, stacked, train_lanes

from jaxkkt import (
    datasets,
    losses,
    networks,
    optimizers,
    protocols,
    representations,
    single,
    training,
)
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.specs.optimizers import Descent, Flow, PaperSchedule
from jaxkkt.training import Status

FLOW = optimizers.log_loss_time(0.05)
DESCENT = optimizers.loss_scaled(0.05)
CAPPED = Protocol(DESCENT, max_steps=150)
SEEDS = 5


@jax.jit
def log_loss_of(params, data):
    return losses.log_loss(networks.margins(params, *data))[0]


def loop(params, data, loss, learning_rate, steps):
    """Gradient descent on the summed loss, one sample and one step at a time, in float64."""
    w, b, v, x, y = (np.asarray(a, np.float64) for a in (*params, *data))
    w, b, v = w.copy(), b.copy(), v.copy()
    for _ in range(steps):
        slope_w, slope_b, slope_v = np.zeros_like(w), np.zeros_like(b), np.zeros_like(v)
        for x_i, y_i in zip(x, y, strict=True):
            pre = w @ x_i + b
            q = y_i * (v @ np.maximum(pre, 0))
            slope = -np.exp(-q) if loss == "exponential" else -1 / (1 + np.exp(q))
            on_pre = slope * y_i * v * (pre > 0)
            slope_w += np.outer(on_pre, x_i)
            slope_b += on_pre
            slope_v += slope * y_i * np.maximum(pre, 0)
        w -= learning_rate * slope_w
        b -= learning_rate * slope_b
        v -= learning_rate * slope_v
    q = y * (np.maximum(x @ w.T + b, 0) @ v)
    values = np.exp(-q) if loss == "exponential" else np.log1p(np.exp(-q))
    return Params(w, b, v), np.log(values.sum())


@pytest.mark.parametrize("loss", ["exponential", pytest.param("logistic", marks=pytest.mark.slow)])
def test_descent_matches_a_plain_loop(loss):
    protocol = Protocol(DESCENT, loss, max_steps=150)
    start = problem()
    expected, log_loss = loop(*start, loss, 0.05, 150)
    moved = np.abs(expected.w - start[0].w).max()
    assert moved > 0.1

    got = single.train(start[0], *start[1], protocol)
    assert got.params.w.dtype == jnp.float32
    assert (got.steps, got.status) == (150, Status.STEP_CAP)
    # 150 steps that each round parameters of size 1 at 6e-8.
    np.testing.assert_allclose(got.log_loss, log_loss, rtol=1e-4)
    assert_close(got.params, expected, atol=1e-4)

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), start)
        got64 = single.train(wide[0], *wide[1], protocol)
        assert got64.params.w.dtype == got64.log_loss.dtype == jnp.float64
        np.testing.assert_allclose(got64.log_loss, log_loss, rtol=1e-12)
        assert_close(got64.params, expected, rtol=1e-10, atol=1e-12)


def test_float64_agrees_with_float32():
    start, protocol = problem(), Protocol(DESCENT, target_log_loss=-2.0)
    narrow = single.train(*flat(start), protocol)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), start)
        result = single.train(*flat(wide), protocol)
    assert result.params.w.dtype == result.log_loss.dtype == np.float64
    assert narrow.params.w.dtype == narrow.log_loss.dtype == np.float32
    assert narrow.status == result.status == Status.CONVERGED
    assert narrow.steps == result.steps > 50
    np.testing.assert_allclose(narrow.log_loss, result.log_loss, rtol=1e-4)
    assert_close(narrow.params, result.params, atol=1e-4)


@pytest.mark.usefixtures("float64")
def test_vmapped_equals_looped():
    problems = [jax.tree.map(np.array, problem(seed=seed)) for seed in range(SEEDS)]
    # One run without a live neuron, and one whose points cannot be told apart.
    problems[1][0].b[:] -= 100
    x, y = problems[3][1]
    x[1], y[:2] = x[0], [1, -1]
    protocol = Protocol(optimizers.loss_scaled(0.02), target_log_loss=-2.0, max_steps=400)
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *problems)
    batch = jax.device_get(train_lanes(*together, protocol))
    solo = [single.train(params, *data, protocol) for params, data in problems]
    assert batch.status.tolist() == [int(r.status) for r in solo]
    assert set(batch.status.tolist()) == {
        Status.CONVERGED,
        Status.STALLED,
        Status.NOT_SEPARABLE,
    }
    assert batch.steps.tolist() == [int(r.steps) for r in solo]
    assert len(set(batch.steps.tolist())) == SEEDS
    for i, expected in enumerate(solo):
        assert_close(lane(batch, i).params, expected.params, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(batch.log_loss[i], expected.log_loss, rtol=1e-10)


def test_result_is_where_the_stopping_rule_was_met():
    protocol = Protocol(FLOW, target_log_loss=-5.0)
    params, data = problem()
    result = single.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert result.log_loss <= -5
    at_end = log_loss_of(result.params, data)
    np.testing.assert_allclose(result.log_loss, at_end, rtol=1e-5)
    # One step fewer is not enough.
    before = single.train(
        params, *data, Protocol(FLOW, target_log_loss=-5.0, max_steps=int(result.steps) - 1)
    )
    assert before.status == Status.STEP_CAP
    assert before.log_loss > -5


def test_a_lane_is_frozen_at_its_last_step():
    fast, slow = problem(seed=4), problem(seed=7)
    protocol = Protocol(DESCENT, target_log_loss=-1.0)
    together = train_lanes(*stacked(fast, slow), protocol)
    assert abs(int(together.steps[0]) - int(together.steps[1])) > 10
    for i, start in enumerate((fast, slow)):
        alone = train_lanes(*stacked(start, start), protocol)
        assert_same_bits(lane(together, i), lane(alone, 0))


@pytest.mark.parametrize("status", [s for s in Status if s != Status.RUNNING])
def test_a_run_that_ended_stays_as_it_is(status):
    params, data = problem()
    start = training.init(params, data, CAPPED, jax.random.key(0))
    ended = start._replace(status=jnp.int32(status), log_loss=jnp.float32(-3.0))
    step = jax.jit(lambda state: training.step(state, data, CAPPED)._replace(key=None))
    after = step(ended)._replace(optimizer=ended.optimizer)  # of no use any more
    assert_same_bits(after, ended._replace(key=None))
    assert step(start).steps == 1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("representation", "batch_size"),
    [
        ("plain", None),
        pytest.param("span", None, marks=pytest.mark.slow),
        ("gram", None),
        pytest.param("plain", 4, marks=pytest.mark.slow),
    ],
)
def test_padded_equals_solo(representation, batch_size):
    m, d, k = 6, 4, 12
    params, data = problem(m, d, k)
    protocol = Protocol(
        DESCENT, batch_size=batch_size, representation=representation, target_log_loss=-1.5
    )

    @jax.jit
    def train(params, x, y):
        return single.train(params, x, y, protocol, jax.random.key(2))

    @jax.jit
    def wide(params, data):
        return networks.pad(params, k + 3, d + 2), *datasets.pad(data, m + 5, d + 2)

    solo, padded = jax.device_get((train(params, *data), train(*wide(params, data))))
    assert solo.steps > 20
    assert (
        (padded.steps, padded.status)
        == (solo.steps, solo.status)
        == (
            solo.steps,
            Status.CONVERGED,
        )
    )
    np.testing.assert_allclose(padded.log_loss, solo.log_loss, rtol=1e-11)
    w, b, v = padded.params
    assert_close(Params(w[:k, :d], b[:k], v[:k]), solo.params, rtol=1e-10, atol=1e-12)
    for pads in (w[k:], b[k:], v[k:]):
        np.testing.assert_array_equal(pads, 0)
    np.testing.assert_allclose(w[:, d:], 0, atol=0 if representation != "span" else 1e-14)


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_targets_far_below_the_smallest_float_are_reached(loss):
    # Few samples, whose margins hardly pull against each other: long steps come to no harm.
    optimizer = optimizers.log_loss_time(delta=0.05, largest=1e3, stiffness=0.01)
    protocol = Protocol(optimizer, loss, target_log_loss=-1e5)
    params, data = problem(3, 8, 32)
    result = single.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert -1.02e5 < result.log_loss <= -1e5
    w, b, v, x, y = (np.asarray(a, np.float64) for a in (*result.params, *data))
    q = y * (np.maximum(x @ w.T + b, 0) @ v)
    # log L in exact arithmetic; a float32 network rounds margins of 1e5 at 1e-6 of their size.
    exact = -q.min() + np.log(np.exp(q.min() - q).sum())
    np.testing.assert_allclose(result.log_loss, exact, rtol=1e-5)


def test_default_target_is_a_loss_of_1e_minus_30():
    params, data = problem(5, 20, 50)
    result = single.train(params, *data)
    assert result.status == Status.CONVERGED
    assert 0 <= -30 * np.log(10) - float(result.log_loss) < 0.011
    assert pytest.approx(-69.0775527898) == protocols.TARGET


@pytest.mark.slow
def test_float32_ends_at_a_target_whose_last_place_is_more_than_a_step():
    """A step of 0.01 moves nothing at a log loss of -1e6, whose last place is 0.06."""
    protocol = Protocol(optimizers.log_loss_time(), target_log_loss=-1e6, max_steps=150_000)
    for seed in range(4):
        params, data = problem(6, 20, 40, seed=seed)
        result = single.train(params, *data, protocol)
        assert result.status == Status.CONVERGED
        assert -1.00001e6 < result.log_loss <= -1e6


def test_a_batch_is_led_to_its_levels_by_the_steps_of_those_that_ended():
    """In a batch both sides of a condition are computed: a run that goes on, or paused after some
    steps, would be trained to its end, which here is never."""
    protocol = Protocol(optimizers.log_loss_time(), max_steps=1_000_000_000)
    params, data = problem(6, 20, 40)

    def some(pause):
        state = training.init(params, data, protocol, jax.random.key(0))
        return jax.lax.fori_loop(
            0, 60, lambda _, state: training.step(state, data, protocol, pause), state
        )

    pauses = training.Pause(jnp.array([1.5, -jnp.inf, -jnp.inf]), jnp.array([99, 20, 99]))
    states = jax.jit(jax.vmap(some))(pauses)
    ended = jax.jit(jax.vmap(lambda state: training.lead(state, data, protocol)))(states)
    assert ended.status.tolist() == [Status.PAUSED, Status.PAUSED, Status.RUNNING]
    assert ended.steps[0] > states.steps[0]
    assert ended.steps[1:].tolist() == [20, 60]
    assert 1.49 < ended.log_loss[0] <= 1.5


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.02),
        optax.sgd(0.01, momentum=0.9),
        optax.sgd(0.01, momentum=0.9, nesterov=True),
        optimizers.linear(optax.sgd(0.01, momentum=0.9)),
    ],
    ids=["adam", "momentum", "nesterov", "linear momentum"],
)
def test_optimizers_of_optax_plug_in(optimizer):
    params, data = problem()
    protocol = Protocol(optimizer, target_log_loss=-8.0, max_steps=3000)
    # Optax's own bias corrections mix number types.
    with jax.numpy_dtype_promotion("standard"):
        result = single.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert 10 < result.steps < 3000
    at_end = log_loss_of(result.params, data)
    np.testing.assert_allclose(result.log_loss, at_end, rtol=1e-5)


def test_second_call_does_not_compile_again():
    single.train(*flat(problem(seed=0)), CAPPED)
    compiled = single._train._cache_size()
    for seed in (1, 2):
        single.train(*flat(problem(seed=seed)), CAPPED)
    # An equal protocol is the same one, and its numbers are no structure.
    single.train(*flat(problem()), Protocol(DESCENT, max_steps=150))
    single.train(*flat(problem()), Protocol(DESCENT, max_steps=151, target_log_loss=-3.0))
    assert single._train._cache_size() == compiled
    single.train(*flat(problem()), Protocol(DESCENT, max_steps=150, trained=("b",)))
    assert single._train._cache_size() == compiled + 1


def test_numbers_of_a_protocol_can_be_vmapped():
    params, data = problem()
    rates = jnp.array([0.01, 0.05, 0.2])

    def trained(rate):
        protocol = Protocol(Descent(learning_rate=rate), max_steps=50)
        return single.train(params, *data, protocol)

    batch = jax.vmap(trained)(rates)
    for i, rate in enumerate(rates.tolist()):
        alone = trained(rate)
        assert float(batch.log_loss[i]) == pytest.approx(float(alone.log_loss), rel=1e-5)
    assert len(set(batch.log_loss.tolist())) == 3


def test_default_protocol_compiles_once():
    before = single._train._cache_size()
    for seed in (0, 1):
        single.train(*flat(problem(3, 2, 5, seed=seed)))
    assert single._train._cache_size() == before + 1


def test_flow_slides_along_kinks():
    # Preactivations of this run cross zero at every step, however short: the realized share of
    # each step stays at 0.58, and must not shorten the steps for ever.
    protocol = Protocol(optimizers.log_loss_time(), max_steps=20_000)
    result = single.train(*flat(problem()), protocol)
    assert result.status == Status.CONVERGED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinge"}, r"unknown loss 'hinge': choose from \['exponential', 'logistic'\]"),
        ({"target_log_loss": np.nan}, "target_log_loss must be finite, got nan"),
        ({"target_log_loss": -np.inf}, "target_log_loss must be finite, got -inf"),
        ({"max_steps": -1}, "max_steps must not be negative, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"representation": "grim"}, "unknown representation 'grim': choose from 'auto', 'plain'"),
    ],
)
def test_protocol_refuses(unchecked, settings, message):
    with pytest.raises(ValueError, match=message):
        Protocol(DESCENT, **settings)


def test_train_refuses_what_does_not_fit(unchecked):
    params, (x, y) = jax.device_get(problem())
    bad_x = x.copy()
    bad_x[3, 1] = np.nan
    for arguments, message in [
        ((params, x[:, :3], y), r"inputs of dimension 3 needs w \(k, 3\).*got w \(12, 4\)"),
        ((params, x, y[:5]), r"one label per sample, shape \(6,\), got \(5,\)"),
        ((params, x, np.abs(y)), "both labels must occur"),
        ((params, x, 2 * y), "labels must be -1 or 1"),
        ((params, bad_x, y), "x must be finite, but 1 rows hold NaN or inf, first row 3"),
        ((params, np.asarray(x, np.float64), y), "x is float64, which JAX would round"),
        ((params, x[:0], y[:0]), "x needs at least one sample"),
    ]:
        with pytest.raises(ValueError, match=message):
            single.train(*arguments, CAPPED)
    with pytest.raises(ValueError, match="the optimizer 'flow' takes all 6 samples at every step"):
        single.train(params, x, y, Protocol(batch_size=5), jax.random.key(0))


def test_protocols_by_name():
    flow, paper = protocols.PROTOCOLS["flow"](), protocols.PROTOCOLS["paper"]("logistic")
    assert (flow.optimizer, flow.loss, flow.batch_size) == (Flow(delta=0.01), "exponential", None)
    assert (paper.optimizer, paper.loss) == (PaperSchedule(), "logistic")
    assert paper.batch_size == 5000
    assert flow.target_log_loss == paper.target_log_loss == protocols.TARGET
    assert protocols.flow_protocol(target_log_loss=-5.0, delta=0.02).optimizer.delta == 0.02
    assert protocols.flow_protocol(target_log_loss=-5.0).target_log_loss == -5
    assert protocols.flow_protocol() == protocols.flow_protocol("exponential")
    assert isinstance(paper.rule.transformation(), optimizers.LinearTransformation)
    assert representations.cheapest(3, 4, linear=True, gram=True) == "gram"
    assert flow.representation_for(3, 4) == paper.representation_for(3, 4) == "gram"


@pytest.mark.parametrize("run", [single.train, partial(single.train_through, levels=[-1.0, -2.0])])
def test_training_has_no_derivative(run):
    """XLA's compiler ended the process."""
    params, data = problem(4, 6, 8)

    def largest(scale):
        start = params._replace(v=scale * params.v)
        return run(start, *data, protocol=Protocol(max_steps=20)).params.v.max()

    with pytest.raises(TypeError, match="training has no derivative"):
        jax.eval_shape(jax.jacfwd(largest), 1.0)
