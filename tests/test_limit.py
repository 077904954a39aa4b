"""The flow far below the losses of training: against training, closed forms, and itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CORNERS, assert_close, flat, lane, problem, stacked

from jaxkkt import datasets, networks, optimizers, single
from jaxkkt.datasets import Dataset
from jaxkkt.kkt import limit
from jaxkkt.kkt.limit import LimitStatus, follow_flow
from jaxkkt.kkt.soft_multipliers import soft_multipliers
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.training import Status

START, LEVELS = -20.0, (-60.0, -300.0)


def trained(start=START, **sizes):
    params, data = problem(**{"m": 6, "d": 20, "k": 40, **sizes})
    protocol = Protocol(optimizers.log_loss_time(0.02), target_log_loss=start)
    result = single.train(params, *data, protocol)
    assert result.status == Status.CONVERGED
    return result.params, data


def direction(params):
    whole = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in params])
    return whole / np.linalg.norm(whole)


def angle(a, b):
    return 2 * np.arcsin(np.linalg.norm(direction(a) - direction(b)) / 2)


margins = jax.jit(networks.margins)


@jax.jit
def normalized_margin(params, data):
    q = networks.margins(params, *data)
    return jnp.min(jnp.where(data.y != 0, q, jnp.inf)) / networks.squared_norm(params)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_the_flow_in_log_time_is_the_flow_that_training_follows():
    params, data = problem(6, 20, 40)
    fine = optimizers.log_loss_time(0.003, largest=0.2, proportion=0.002)
    run = single.train_through(params, *data, (-69.0, -300.0, -1000.0), Protocol(fine))
    assert run.status.tolist() == [Status.CONVERGED] * 3
    start, *levels = run.log_loss.tolist()
    first = lane(run.params, 0)

    def errors(step):
        trace = follow_flow(first, *data, start, levels, step)
        assert trace.status.tolist() == [LimitStatus.FOLLOWED] * 2
        np.testing.assert_allclose(trace.log_s, np.log(-np.array(levels)), atol=step**2)
        angles, margins = [], []
        for i in range(2):
            here, there = lane(trace.params, i), lane(run.params, i + 1)
            angles.append(angle(here, there))
            ratio = normalized_margin(here, data) / normalized_margin(there, data)
            margins.append(abs(ratio - 1))
        return np.array([angles, margins])

    coarse, fine = errors(0.08), errors(0.04)
    # The way itself is 0.2 long; the reference is as far from the flow as a step of 0.01 is.
    assert angle(first, lane(run.params, 2)) > 0.1
    assert np.all(coarse[0] < 0.08 * 0.05)
    assert np.all(coarse[1] < 0.08 * 0.01)
    # Of first order; one of the four alone may fall faster, by neurons that switch within a step.
    assert np.all(coarse / fine > 1.6)
    assert np.exp(np.log(coarse / fine).mean()) < 2.8


@pytest.mark.usefixtures("float64")
def test_two_opposite_points_end_at_their_closed_form():
    # With |x| = 1 the points (x, 1) and (-x, 1) are orthogonal, of squared norm 2. Each neuron
    # serves one of them, w_j = lambda |v_j| x_i, b_j = lambda |v_j|, |v_j| = lambda (w_j . x_i +
    # b_j) = 2 lambda^2 |v_j|: lambda^2 = 1/2, and each point costs a squared norm of sqrt(2).
    x = np.array([[0.6, 0.8, 0.0], [-0.6, -0.8, 0.0]])
    data = Dataset(x, np.array([1.0, -1.0]))
    start = jax.jit(lambda: networks.torch_linear(jax.random.key(3), 10, 3))()
    run = single.train(start, *data, Protocol(optimizers.log_loss_time(), target_log_loss=-40.0))
    trace = follow_flow(run.params, *data, float(run.log_loss), (-1e8, -1e16, -1e24), 0.1)
    assert trace.status.tolist() == [LimitStatus.FOLLOWED] * 3
    np.testing.assert_allclose(trace.multipliers[-1], [0.5**0.5] * 2, rtol=1e-5)
    there = jax.tree.map(np.asarray, trace.params)
    before, end = lane(there, 1), lane(there, -1)
    np.testing.assert_allclose(margins(end, *data), 1, rtol=3e-6)
    np.testing.assert_allclose(normalized_margin(end, data), 8**-0.5, rtol=1e-5)
    # What does not point at a sample fades as exp(-t/2): a factor of 1e-4 from level to level.
    serves = np.where(end.v > 0, 1.0, -1.0)
    aligned = end.b[:, None] * serves[:, None] * x[0]
    np.testing.assert_allclose(end.w, aligned, atol=1e-9)
    off = np.abs(before.w[:, 2]).max()
    assert off > 1e-9 or off == 0


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_the_result_is_scaled_and_its_parts_agree():
    params, data = trained()
    trace = follow_flow(params, *data, START, LEVELS)
    assert trace.params.w.shape == (2, 40, 20)
    assert trace.slopes.shape == (2, 6, 40)
    for i in range(2):
        here = lane(trace.params, i)
        q = margins(here, *data)
        np.testing.assert_allclose(q.min(), 1, rtol=1e-12)
        slopes, pre = trace.slopes[i], networks.preactivations(here, data.x)
        assert np.all((slopes >= 0) & (slopes <= 1))
        # Away from kinks the slopes are those of relu, but for what a step moves.
        far = np.abs(pre) > 0.05 * np.abs(pre).max()
        np.testing.assert_array_equal(slopes[far], (pre > 0)[far])
        helps = data.y[:, None] * here.v[None] > 0
        assert np.all(np.isin(slopes[helps], [0.0, 1.0]))
        # theta_hat = sum of pulls, but for what still moves.
        lam = trace.multipliers[i]
        assert np.all(lam >= 0)
        pull = (lam * data.y)[:, None] * slopes * here.v[None]
        w = pull.T @ data.x
        assert angle(Params(w, pull.sum(0), (lam * data.y) @ np.maximum(pre, 0)), here) < 0.8
    at_end = margins(lane(trace.params, 1), *data)
    # The soft minimum of margins at s, whose smallest is 1 here.
    s = np.exp(float(trace.log_s[1]))
    scale = s + np.log(np.exp(-s * (at_end - 1)).sum())
    np.testing.assert_allclose(scale, s, rtol=np.log(6) / s)


@pytest.mark.slow
def test_float32_reaches_levels_that_no_float_holds():
    params, data = trained()
    levels = (-1e5, -1e30, -1e100)
    trace = follow_flow(params, *data, START, levels, 0.1)
    assert trace.params.w.dtype == jnp.float32
    assert trace.status.tolist() == [LimitStatus.FOLLOWED] * 3
    np.testing.assert_allclose(trace.log_s, np.log(-np.array(levels)), rtol=1e-5)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), (params, data))
        exact = follow_flow(*flat(wide), START, levels, 0.1)
        for i in range(3):
            got = jax.tree.map(lambda a, i=i: jnp.asarray(np.asarray(a[i]), jnp.float64), trace)
            margin = normalized_margin(got.params, wide[1])
            np.testing.assert_allclose(
                margin, normalized_margin(lane(exact.params, i), wide[1]), rtol=1e-4
            )
            assert angle(got.params, lane(exact.params, i)) < 2e-3
        # The normalized margin of a flow does not fall.
        risen = [normalized_margin(lane(exact.params, i), wide[1]) for i in range(3)]
        assert sorted(risen) == risen


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_padding_is_inert():
    params, data = trained()
    m, d, k = 6, 20, 40
    solo = follow_flow(params, *data, START, LEVELS, 0.05)
    wide = networks.pad(params, k + 3, d + 2), *datasets.pad(data, m + 5, d + 2)
    padded = jax.jit(lambda *of: follow_flow(*of, START, LEVELS, 0.05))(*wide)
    w, b, v = padded.params
    assert_close(Params(w[:, :k, :d], b[:, :k], v[:, :k]), solo.params, rtol=1e-8, atol=1e-10)
    for pads in (w[:, k:], w[:, :, d:], b[:, k:], v[:, k:], padded.multipliers[:, m:]):
        np.testing.assert_array_equal(pads, 0)
    np.testing.assert_allclose(padded.slopes[:, :m, :k], solo.slopes, atol=1e-7)
    np.testing.assert_allclose(padded.log_s, solo.log_s, rtol=1e-12)
    assert padded.status.tolist() == solo.status.tolist()


@pytest.mark.usefixtures("float64")
def test_order_of_samples_and_neurons_and_the_labels_do_not_matter():
    params, data = jax.tree.map(np.asarray, trained())
    trace = jax.tree.map(np.asarray, follow_flow(params, *data, START, LEVELS, 0.05))
    i, j = np.random.default_rng(0).permutation(6), np.random.default_rng(1).permutation(40)
    mixed = Params(params.w[j], params.b[j], params.v[j])
    got = follow_flow(mixed, data.x[i], data.y[i], START, LEVELS, 0.05)
    w, b, v = trace.params
    assert_close(got.params, Params(w[:, j], b[:, j], v[:, j]), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(got.slopes, trace.slopes[:, i][:, :, j], atol=1e-7)
    flipped = follow_flow(params._replace(v=-params.v), data.x, -data.y, START, LEVELS, 0.05)
    assert_close(flipped.params, Params(w, b, -v), rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.slow
def test_vmapped_equals_looped():
    problems = [trained(seed=0), trained(seed=1), trained(seed=2)]
    params, data = problems[1]
    problems[1] = (params, data._replace(y=-data.y))  # all misclassified
    follow = partial(follow_flow, log_loss=START, levels=LEVELS, step=0.05)
    params, data = stacked(*problems)
    batch = jax.vmap(follow)(params, *data)
    for i, one in enumerate(problems):
        expected = follow(*flat(one))
        assert_close(lane(batch, i), expected, rtol=1e-8, atol=1e-10)
    assert batch.status[:, 0].tolist() == [0, LimitStatus.INFEASIBLE, 0]


def test_what_cannot_be_followed_says_so():
    params, data = jax.tree.map(np.asarray, trained())
    wrong = params._replace(v=np.where(np.arange(40) < 20, params.v, -params.v))
    trace = follow_flow(wrong, *data, START, LEVELS)
    assert trace.status.tolist() == [LimitStatus.INFEASIBLE] * 2
    assert "train the network until it classifies all" in LimitStatus.INFEASIBLE.describe()
    assert np.isnan(trace.params.w).all()
    # Correct, but with margins too small for a loss below 1.
    trace = follow_flow(params._replace(v=params.v / 1000), *data, START, LEVELS)
    assert trace.status.tolist() == [LimitStatus.INFEASIBLE] * 2
    broken = params._replace(b=np.where(np.arange(40) == 3, np.float32(np.nan), params.b))
    trace = follow_flow(broken, *data, START, LEVELS)
    assert trace.status.tolist() == [LimitStatus.NON_FINITE] * 2
    assert "NaN or infinite" in LimitStatus.NON_FINITE.describe()
    assert "followed to this level" in LimitStatus(0).describe()


@pytest.mark.usefixtures("float64")
def test_a_network_below_a_level_stays_as_it_is_there():
    params, data = trained(-30.0)
    trace = follow_flow(params, *data, START, (-25.0, -60.0))
    assert angle(lane(trace.params, 0), params) < 1e-12
    assert np.exp(trace.log_s[0]) > 30
    np.testing.assert_allclose(np.exp(trace.log_s[1]), 60, rtol=1e-3)


@pytest.mark.parametrize(
    ("start", "levels", "step", "message"),
    [
        (5.0, (-1.0,), 0.02, r"log_loss must be negative.*got \[5.0, -1.0\]"),
        (-20.0, (-30.0, -np.inf), 0.02, r"levels finite, got \[-20.0, -30.0, -inf\]"),
        (np.nan, (-30.0,), 0.02, r"levels finite, got \[nan, -30.0\]"),
        (-20.0, (), 0.02, r"levels must fall from log_loss = -20.0.*got \[\]"),
        (-20.0, (-20.0,), 0.02, r"levels must fall from log_loss = -20.0.*got \[-20.0\]"),
        (-20.0, (-50.0, -30.0), 0.02, r"each below the one before, got \[-50.0, -30.0\]"),
        (-20.0, (-30.0,), 0.0, r"step must be in \(0, 1\), got 0.0"),
        (-20.0, (-30.0,), 1.0, r"step must be in \(0, 1\), got 1.0"),
        (-20.0, (-30.0,), np.nan, r"step must be in \(0, 1\), got nan"),
    ],
)
def test_bad_input_is_refused(start, levels, step, message):
    params, data = problem()
    with pytest.raises(ValueError, match=message):
        follow_flow(params, *data, start, levels, step)


@pytest.mark.usefixtures("unchecked")
def test_a_traced_step_is_told():
    params, data = problem()
    with pytest.raises(ValueError, match=r"log_loss and levels say how many .* cannot be traced"):
        jax.jit(lambda level: follow_flow(params, *data, log_loss=-1.0, levels=[level]))(-2.0)
    with pytest.raises(ValueError, match="step says how many steps are taken: it cannot be traced"):
        jax.jit(lambda step: follow_flow(params, *data, -20.0, (-30.0,), step))(0.1)


@pytest.mark.parametrize("x64", [False, True])
def test_lists_are_as_good_as_arrays(x64):
    """And take the precision of the network, which may have fewer digits than JAX computes with."""
    params, data = trained()
    expected = follow_flow(params, *data, START, LEVELS, 0.5)
    assert expected.status.tolist() == [LimitStatus.FOLLOWED] * 2
    x, y = data.x.tolist(), [int(label) for label in data.y]
    with jax.enable_x64(x64):
        got = follow_flow(params, x, y, START, LEVELS, 0.5)
    assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_data_and_parameters_that_do_not_fit_are_refused():
    params, data = problem()
    with pytest.raises(ValueError, match="both labels must occur"):
        follow_flow(params, data.x, abs(data.y), START, LEVELS)
    with pytest.raises(ValueError, match="x must be finite, but 1 rows hold NaN or inf"):
        follow_flow(params, data.x.at[1, 0].set(jnp.nan), data.y, START, LEVELS)
    with pytest.raises(ValueError, match="a network on inputs of dimension 3 needs w"):
        follow_flow(params, data.x[:, 1:], data.y, START, LEVELS)


@pytest.mark.slow
def test_other_levels_do_not_compile_again():
    params = networks.torch_linear(jax.random.key(0), 7, 2)
    follow_flow(params, *CORNERS, -1.0, (-2.0, -3.0))
    compiled = limit._follow._cache_size()
    follow_flow(params, *CORNERS, -1.5, (-20.0, -3000.0), 0.1)
    assert limit._follow._cache_size() == compiled


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("guess", [0.0, 1.0, 1e9])
def test_soft_multipliers_solve_their_equation(guess):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((7, 7))
    r = rng.standard_normal(7) + 1
    real = np.arange(7) < 6
    h = np.where(real[:, None] & real, a @ a.T, 0)
    solve = jax.jit(soft_multipliers)
    for width in (1.0, 1e-2, 1e-4):
        x = np.asarray(solve(h, r, np.array(width), real, np.full(7, guess)))
        assert x[6] == 0
        x = x[:6]
        assert np.all(x >= 0)
        left = h[:6, :6] @ x
        with np.errstate(divide="ignore"):
            total = left + width * np.log(x / x.sum())
        seen = x > 1e-200
        np.testing.assert_allclose(total[seen], r[:6][seen], atol=1e-8)


@pytest.mark.usefixtures("float64")
def test_of_margins_above_1_the_soft_multipliers_are_0():
    solve = jax.jit(soft_multipliers)
    above, real, width = np.full(3, -1.0), np.ones(3, bool), np.array(0.1)
    np.testing.assert_array_equal(solve(np.eye(3), above, width, real, np.ones(3)), 0)
    assert np.isnan(solve(np.eye(3), above * np.nan, width, real, np.ones(3))).all()


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("sizes", [(16, 4, 24), (6, 20, 40), (20, 5, 40)])
def test_multipliers_of_a_short_step_are_those_of_the_flow(sizes):
    """2 p_i / |sum_i p_i y_i g_i|^2 at theta_hat, with p = softmax(-margins).

    Where samples are many and dimensions few the systems of Newton's method are nearly singular.
    """
    m, d, k = sizes
    params, data = trained(start=-0.5, m=m, d=d, k=k)

    def log_loss(params):
        return jax.nn.logsumexp(-networks.margins(params, *data))

    start, gradient = jax.value_and_grad(log_loss)(params)
    p = jax.nn.softmax(-margins(params, *data))
    expected = -2 * start * p / sum(jnp.sum(leaf**2) for leaf in gradient)
    trace = follow_flow(params, *data, float(start), (float(start) * (1 + 3e-5),), 1e-5)
    assert trace.status.tolist() == [LimitStatus.FOLLOWED]
    np.testing.assert_allclose(trace.multipliers[0], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2e-2, 1e-3])
def test_many_samples_of_few_dimensions(step):
    params, data = trained(start=-3.0, m=24, d=3, k=60)
    start = float(jax.nn.logsumexp(-margins(params, *data)))
    trace = follow_flow(params, *data, start, (start * np.exp(60 * step),), step)
    assert trace.status.tolist() == [LimitStatus.FOLLOWED]


@pytest.mark.slow
def test_steps_too_long_to_follow_are_told(monkeypatch):
    """Margins that a step misses by far were rescaled by a bound, and log s was off by 1.4."""
    params, data = trained(start=-3.0, m=24, d=3, k=60)
    start = float(jax.nn.logsumexp(-margins(params, *data)))
    follow = partial(follow_flow, params, *data, start, (1e3 * start,))
    assert follow(0.05).status.tolist() == [LimitStatus.FOLLOWED]
    trace = follow(0.6)
    off = abs(trace.log_s[0] - np.log(-1e3 * start))
    assert trace.status.tolist() == [LimitStatus.NON_FINITE] or off < 0.3
    # Which steps are too long hangs on rounding: of this bound all are.
    monkeypatch.setattr(limit, "LEAST_LEVEL", 1.5)
    limit._follow.clear_cache()
    assert follow(0.05).status.tolist() == [LimitStatus.NON_FINITE]
    limit._follow.clear_cache()


@pytest.mark.slow
def test_short_steps_have_the_multipliers_of_long_ones():
    """Newton's method had not come to its end in six trips: they were hundreds of times larger."""
    params, data = trained(start=-3.0, m=4, d=6, k=12)
    start = float(jax.nn.logsumexp(-margins(params, *data)))
    follow = partial(follow_flow, params, *data, log_loss=start, levels=(start - 0.3,))
    long, short = (float(follow(step=step).multipliers.sum()) for step in (5e-3, 1e-4))
    assert short == pytest.approx(long, rel=0.02)


@pytest.mark.usefixtures("float64")
def test_levels_nearer_than_a_step_are_come_to():
    params, data = trained()
    start = float(np.log(np.exp(-np.asarray(margins(params, *data), float)).sum()))
    levels = (1.003 * start, 1.03 * start)
    trace = follow_flow(params, *data, start, levels, 0.02)
    np.testing.assert_allclose(-np.exp(trace.log_s), levels, rtol=1e-4)


@pytest.mark.usefixtures("float64")
def test_margins_far_down_are_those_of_infinite_loss():
    """They differ by 1/s log(lambda_i / lambda_l), and by no more than 1e-6 for it."""
    params, data = trained()
    trace = follow_flow(params, *data, START, (-300.0, -1e9), 0.1)
    assert trace.status.tolist() == [LimitStatus.FOLLOWED] * 2
    multipliers = np.asarray(trace.multipliers[-1])
    heavy = multipliers > 1e-2 * multipliers.max()
    assert (multipliers[heavy] < 0.5 * multipliers.max()).any()
    q = margins(lane(jax.tree.map(np.asarray, trace.params), -1), *data)
    np.testing.assert_allclose(q[heavy], 1, atol=1e-6 * np.log(100))
