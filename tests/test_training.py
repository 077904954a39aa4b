from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxkkt import datasets, losses, networks, optimizers, representations, training
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.training import Protocol, Status

FLOW = optimizers.log_loss_time(0.05)
DESCENT = optimizers.loss_scaled(0.05)
CAPPED = Protocol(DESCENT, max_steps=150)
SEEDS = 5


@partial(jax.jit, static_argnames=("m", "d", "k"))
def problem(m=6, d=4, k=12, seed=0):
    data_key, key = jax.random.split(jax.random.key(seed))
    return networks.torch_linear(key, k, d), datasets.sphere(data_key, m, d)


def flat(problem):
    params, data = problem
    return params, *data


def stacked(*problems):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)


def train_lanes(params, data, protocol):
    return jax.vmap(lambda p, x, y: training.train(p, x, y, protocol))(params, *data)


def lane(result, i):
    return jax.tree.map(lambda leaf: leaf[i], result)


def assert_close(got, expected, **tolerances):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerances)


def assert_same_bits(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


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


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_descent_matches_a_plain_loop(loss):
    protocol = Protocol(DESCENT, loss, max_steps=150)
    start = problem()
    expected, log_loss = loop(*start, loss, 0.05, 150)
    moved = np.abs(expected.w - start[0].w).max()
    assert moved > 0.1

    got = training.train(start[0], *start[1], protocol)
    assert got.params.w.dtype == jnp.float32
    assert (got.steps, got.status) == (150, Status.STEP_CAP)
    # 150 steps that each round parameters of size 1 at 6e-8.
    np.testing.assert_allclose(got.log_loss, log_loss, rtol=1e-4)
    assert_close(got.params, expected, atol=1e-4)

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), start)
        got64 = training.train(wide[0], *wide[1], protocol)
        assert got64.params.w.dtype == got64.log_loss.dtype == jnp.float64
        np.testing.assert_allclose(got64.log_loss, log_loss, rtol=1e-12)
        assert_close(got64.params, expected, rtol=1e-10, atol=1e-12)


def test_float64_agrees_with_float32():
    start, protocol = problem(), Protocol(DESCENT, target_log_loss=-2.0)
    narrow = training.train(*flat(start), protocol)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), start)
        result = training.train(*flat(wide), protocol)
    assert result.params.w.dtype == result.log_loss.dtype == np.float64
    assert narrow.params.w.dtype == narrow.log_loss.dtype == np.float32
    assert narrow.status == result.status == Status.CONVERGED
    assert narrow.steps == result.steps > 50
    np.testing.assert_allclose(narrow.log_loss, result.log_loss, rtol=1e-4)
    assert_close(narrow.params, result.params, atol=1e-4)


@pytest.mark.usefixtures("float64")
def test_vmapped_equals_looped():
    problems = [problem(seed=seed) for seed in range(SEEDS)]
    # One run without a live neuron, and one whose points cannot be told apart.
    params, data = problems[1]
    problems[1] = (params._replace(b=params.b - 100), data)
    params, data = problems[3]
    problems[3] = (
        params,
        Dataset(data.x.at[1].set(data.x[0]), data.y.at[:2].set(jnp.array([1.0, -1.0]))),
    )
    protocol = Protocol(optimizers.loss_scaled(0.02), target_log_loss=-2.0, max_steps=400)
    batch = train_lanes(*stacked(*problems), protocol)
    solo = [training.train(params, *data, protocol) for params, data in problems]
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
    result = training.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert result.log_loss <= -5
    at_end, _ = losses.log_loss(networks.margins(result.params, *data))
    np.testing.assert_allclose(result.log_loss, at_end, rtol=1e-5)
    # One step fewer is not enough.
    before = training.train(
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
    start = training.init(params, CAPPED, jax.random.key(0))
    ended = start._replace(status=jnp.int32(status), log_loss=jnp.float32(-3.0))
    step = jax.jit(lambda state: training.step(state, data, CAPPED)._replace(key=None))
    after = step(ended)._replace(optimizer=ended.optimizer)  # of no use any more
    assert_same_bits(after, ended._replace(key=None))
    assert step(start).steps == 1


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("representation", "batch_size"),
    [("plain", None), ("span", None), ("gram", None), ("plain", 4)],
)
def test_padded_equals_solo(representation, batch_size):
    m, d, k = 6, 4, 12
    params, data = problem(m, d, k)
    protocol = Protocol(
        DESCENT, batch_size=batch_size, representation=representation, target_log_loss=-1.5
    )

    @jax.jit
    def train(params, x, y):
        return training.train(params, x, y, protocol, jax.random.key(2))

    solo = train(params, *data)
    padded = train(networks.pad(params, k + 3, d + 2), *datasets.pad(data, m + 5, d + 2))
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
    result = training.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert -1.02e5 < result.log_loss <= -1e5
    w, b, v, x, y = (np.asarray(a, np.float64) for a in (*result.params, *data))
    q = y * (np.maximum(x @ w.T + b, 0) @ v)
    # log L in exact arithmetic; a float32 network rounds margins of 1e5 at 1e-6 of their size.
    exact = -q.min() + np.log(np.exp(q.min() - q).sum())
    np.testing.assert_allclose(result.log_loss, exact, rtol=1e-5)


def test_default_target_is_a_loss_of_1e_minus_30():
    params, data = problem(5, 20, 50)
    result = training.train(params, *data)
    assert result.status == Status.CONVERGED
    np.testing.assert_allclose(result.log_loss, -30 * np.log(10), atol=0.31)
    assert pytest.approx(-69.0775527898) == training.TARGET


def check_status(result, status, sentence):
    assert result.status == status
    assert sentence in Status(int(result.status)).describe()


def test_status_converged():
    params, data = problem()
    result = training.train(params, *data, Protocol(FLOW, target_log_loss=-4.0))
    check_status(result, Status.CONVERGED, "the log loss reached the target")
    # A target that the start meets takes no step.
    result = training.train(params, *data, Protocol(FLOW, target_log_loss=50.0))
    check_status(result, Status.CONVERGED, "reached the target")
    assert result.steps == 0
    assert_same_bits(result.params, params)


def test_status_step_cap():
    params, data = problem()
    result = training.train(params, *data, Protocol(FLOW, max_steps=80))
    check_status(result, Status.STEP_CAP, "raise max_steps")
    assert result.steps == 80
    assert networks.margins(result.params, *data).min() > 0


def test_no_steps_leave_the_network_as_it_is():
    params, data = problem()
    result = training.train(params, *data, Protocol(FLOW, max_steps=0, representation="plain"))
    assert result.steps == 0
    assert result.status in (Status.STEP_CAP, Status.NOT_SEPARABLE)
    assert_same_bits(result.params, params)
    expected, _ = losses.log_loss(networks.margins(params, *data))
    np.testing.assert_allclose(result.log_loss, expected, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [FLOW, optimizers.loss_scaled(0.005)])
def test_status_not_separable(optimizer):
    params, data = problem(8, 3, 40)
    x, y = data.x.at[1].set(data.x[0]), data.y.at[:2].set(jnp.array([1.0, -1.0]))
    result = training.train(params, x, y, Protocol(optimizer, max_steps=600))
    check_status(result, Status.NOT_SEPARABLE, "equal points with opposite labels")
    assert result.steps == 600
    assert networks.margins(result.params, x, y).min() <= 0


@pytest.mark.parametrize("learning_rate", [1e2, 1e30])
def test_status_diverged(learning_rate):
    params, data = problem()
    result = training.train(params, *data, Protocol(optimizers.loss_scaled(learning_rate)))
    check_status(result, Status.DIVERGED, "lower the learning rate or delta")
    assert result.steps < 10
    assert not np.isfinite(result.log_loss)


@pytest.mark.parametrize("representation", ["plain", "span", "gram"])
def test_status_stalled(representation):
    params, data = problem()
    dead = params._replace(b=params.b - 100)
    result = training.train(dead, *data, Protocol(FLOW, representation=representation))
    check_status(result, Status.STALLED, "no neuron is active on any sample")
    assert result.steps == 0
    np.testing.assert_allclose(result.log_loss, np.log(6), rtol=1e-6)


def test_status_of_a_run_in_progress():
    params, data = problem()
    state = training.step(training.init(params, CAPPED, jax.random.key(0)), data, CAPPED)
    assert state.status == Status.RUNNING
    assert Status(int(state.status)).describe() == "still training"
    assert len({status.describe() for status in Status}) == len(Status)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("representation", ["plain", "gram"])
def test_a_lane_of_nan_leaves_its_neighbours_alone(bad, representation):
    protocol = Protocol(FLOW, target_log_loss=-5.0, representation=representation)
    params, data = stacked(*(problem(seed=seed) for seed in range(3)))
    healthy = train_lanes(params, data, protocol)
    poisoned = train_lanes(params._replace(w=params.w.at[1, 2, 0].set(bad)), data, protocol)
    for i in (0, 2):
        assert healthy.status[i] == Status.CONVERGED
        assert_same_bits(lane(poisoned, i), lane(healthy, i))
    assert poisoned.status[1] == Status.DIVERGED
    in_data = train_lanes(params, data._replace(x=data.x.at[1, 0, 0].set(bad)), protocol)
    for i in (0, 2):
        assert_same_bits(lane(in_data, i), lane(healthy, i))
    assert in_data.status[1] == Status.DIVERGED


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
        result = training.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    assert 10 < result.steps < 3000
    at_end, _ = losses.log_loss(networks.margins(result.params, *data))
    np.testing.assert_allclose(result.log_loss, at_end, rtol=1e-5)


M, BATCH = 8, 3


@pytest.mark.parametrize("padding", [0, 3, 4])
def test_every_sample_is_used_once_in_an_epoch(padding):
    x = jnp.stack([jnp.arange(1.0, M + 1), -jnp.arange(1.0, M + 1)], axis=1)
    y = jnp.where(jnp.arange(M) % 3 == 0, 1.0, -1.0)
    # Padding in the middle and at the end.
    data = datasets.pad(Dataset(x, y), M + padding, 2)
    data = jax.tree.map(lambda a: jnp.roll(a, padding // 2, axis=0), data)
    protocol = Protocol(DESCENT, batch_size=BATCH)
    start = training.init(problem(M, 2)[0], protocol, jax.random.key(0))

    @jax.jit
    def batch(seed, steps):
        state = start._replace(key=jax.random.key(seed), steps=steps)
        return training._mini_batch(state, data, protocol)

    def epoch(seed, number):
        batches = [batch(seed, np.int32(3 * number + i)) for i in range(3)]
        assert [bool(first) for _, first, _ in batches] == [True, False, False]
        assert [bool(last) for _, _, last in batches] == [False, False, True]
        assert [b.x.shape for b, _, _ in batches] == [(BATCH, 2)] * 3
        assert [int(np.sum(np.asarray(b.y) != 0)) for b, _, _ in batches] == [3, 3, 2]
        rows = np.concatenate([np.asarray(b.x) for b, _, _ in batches])
        labels = np.concatenate([np.asarray(b.y) for b, _, _ in batches])
        return rows[labels != 0], labels[labels != 0]

    orders = []
    for seed, number in [(1, 0), (1, 1), (1, 2), (2, 0)]:
        rows, labels = epoch(seed, number)
        assert sorted(rows[:, 0]) == list(range(1, M + 1))
        np.testing.assert_array_equal(rows[:, 1], -rows[:, 0])
        np.testing.assert_array_equal(labels, np.asarray(y)[rows[:, 0].astype(int) - 1])
        orders.append(tuple(rows[:, 0]))
    assert len(set(orders)) == 4
    assert tuple(epoch(1, 1)[0][:, 0]) == orders[1]


def test_mini_batches_stop_on_the_loss_of_an_epoch():
    params, data = problem(M)
    full, _ = losses.log_loss(networks.margins(params, *data))
    # Steps that move nothing: the loss of an epoch is the loss of the set.
    still = optimizers.loss_scaled(1e-30)
    for above, steps, status in [(1e-3, 2, Status.CONVERGED), (-1e-3, 9, Status.NOT_SEPARABLE)]:
        protocol = Protocol(
            still, batch_size=BATCH, target_log_loss=float(full) + above, max_steps=9
        )
        result = training.train(params, *data, protocol, jax.random.key(3))
        assert (result.steps, result.status) == (steps, status)
        if status == Status.CONVERGED:
            np.testing.assert_allclose(result.log_loss, full, rtol=1e-6)


@pytest.mark.parametrize("representation", ["plain", "span"])
def test_mini_batches_train(representation):
    params, data = problem(M, 9, 20)
    protocol = Protocol(
        DESCENT, batch_size=BATCH, representation=representation, target_log_loss=-2.0
    )
    result = training.train(params, *data, protocol, jax.random.key(3))
    assert result.status == Status.CONVERGED
    assert result.steps % 3 == 2  # at the last batch of an epoch
    assert losses.log_loss(networks.margins(result.params, *data))[0] < -2
    other = training.train(params, *data, protocol, jax.random.key(4))
    assert np.any(other.params.w != result.params.w)


def test_mini_batches_match_full_batches_where_all_fit():
    params, data = problem()
    small = Protocol(DESCENT, batch_size=6, max_steps=20)
    full = Protocol(DESCENT, max_steps=20)
    assert_same_bits(training.train(params, *data, small), training.train(params, *data, full))


def test_mini_batches_need_a_key():
    params, data = problem(M)
    with pytest.raises(ValueError, match="8 samples train in mini-batches: give a key to shuffle"):
        training.train(params, *data, Protocol(DESCENT, batch_size=BATCH))


def test_second_call_does_not_compile_again():
    training.train(*flat(problem(seed=0)), CAPPED)
    compiled = training._train._cache_size()
    for seed in (1, 2):
        training.train(*flat(problem(seed=seed)), CAPPED)
    # An equal protocol is the same one, whatever it is called.
    training.train(*flat(problem()), Protocol(DESCENT, max_steps=150, name="other"))
    assert training._train._cache_size() == compiled
    training.train(*flat(problem()), Protocol(DESCENT, max_steps=151))
    assert training._train._cache_size() == compiled + 1


def test_default_protocol_compiles_once():
    before = training._train._cache_size()
    for seed in (0, 1):
        training.train(*flat(problem(3, 2, 5, seed=seed)))
    assert training._train._cache_size() == before + 1


def test_flow_slides_along_kinks():
    # Preactivations of this run cross zero at every step, however short: the realized share of
    # each step stays at 0.58, and must not shorten the steps for ever.
    protocol = Protocol(optimizers.log_loss_time(), max_steps=20_000)
    result = training.train(*flat(problem()), protocol)
    assert result.status == Status.CONVERGED


# Live on samples 0 and 2 alone.
HALF_LIVE = Params(jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.zeros(2), jnp.array([1.0, 0.5]))
CORNERS = Dataset(jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0, 1.0]))


def test_a_batch_without_live_neurons_does_not_stall():
    protocol = Protocol(DESCENT, batch_size=1, max_steps=60)
    result = training.train(HALF_LIVE, *CORNERS, protocol, jax.random.key(0))
    assert result.status != Status.STALLED
    assert result.steps == 60


def test_cancelling_gradients_are_not_dead_neurons():
    # Every neuron is active on every sample, the outputs cancel, and w has a gradient.
    params = Params(jnp.zeros((2, 2)), jnp.ones(2), jnp.array([1.0, -1.0]))
    x, y = CORNERS.x[:2], CORNERS.y[:2]
    assert not representations.gradient(params, Dataset(x, y), losses.exponential).dead
    result = training.train(params, x, y, Protocol(DESCENT, target_log_loss=-1.0))
    assert result.status == Status.CONVERGED


def test_log_loss_at_a_cap_inside_an_epoch_is_that_of_all_samples():
    params, data = problem(M)
    still = optimizers.loss_scaled(1e-30)
    protocol = Protocol(still, batch_size=BATCH, max_steps=3)
    result = training.train(params, *data, protocol, jax.random.key(3))
    full, _ = losses.log_loss(networks.margins(params, *data))
    np.testing.assert_allclose(result.log_loss, full, rtol=1e-6)


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
    params, (x, y) = problem()
    bad_x = x.at[3, 1].set(jnp.nan)
    for arguments, message in [
        ((params, x[:, :3], y), r"inputs of dimension 3 needs w \(k, 3\).*got w \(12, 4\)"),
        ((params, x, y[:5]), r"one label per sample, shape \(6,\), got \(5,\)"),
        ((params, x, jnp.abs(y)), "both labels must occur"),
        ((params, x, 2 * y), "labels must be -1 or 1"),
        ((params, bad_x, y), "x must be finite, but 1 rows hold NaN or inf, first row 3"),
        ((params, np.asarray(x, np.float64), y), "x is float64, which JAX would round"),
        ((params, x[:0], y[:0]), "x needs at least one sample"),
    ]:
        with pytest.raises(ValueError, match=message):
            training.train(*arguments, CAPPED)


def test_protocols_by_name():
    flow, paper = training.PROTOCOLS["flow"](), training.PROTOCOLS["paper"]("logistic")
    assert (flow.name, flow.loss, flow.batch_size) == ("flow(delta=0.003)", "exponential", None)
    assert (paper.name, paper.loss, paper.batch_size) == ("paper", "logistic", 5000)
    assert flow.target_log_loss == paper.target_log_loss == training.TARGET
    assert training.flow_protocol(target_log_loss=-5.0, delta=0.01).name == "flow(delta=0.01)"
    assert training.flow_protocol(target_log_loss=-5.0).target_log_loss == -5
    assert isinstance(paper.optimizer, optimizers.LinearTransformation)
    assert representations.cheapest(3, 4, linear=True, full_batch=True) == "gram"
    assert flow.representation_for(3, 4) == paper.representation_for(3, 4) == "gram"
