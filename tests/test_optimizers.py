from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxkkt import datasets, losses, networks, optimizers, representations

EPS = float(np.finfo(np.float32).eps)
NAN, INF = float("nan"), float("inf")


@partial(jax.jit, static_argnums=0)
def problem(scale=1.0):
    data = datasets.gaussian(jax.random.key(0), 5, 3)
    return networks.torch_linear(jax.random.key(1), 6, 3, scale), data


def learning_rates(optimizer, counts, log_loss):
    """The factor between the gradient of log L and the step, at these step counts."""
    update = jax.jit(
        lambda state: optimizer.update(
            jnp.array([1.0, -2.0]), state, log_loss=jnp.float32(log_loss), squared_norm=5.0
        )
    )
    rates = []
    for count in counts:
        updates, state = update(optimizers.CountState(jnp.int32(count)))
        assert state.steps == count + 1
        np.testing.assert_allclose(updates[1], -2 * updates[0], rtol=EPS)
        rates.append(-float(updates[0]))
    return np.array(rates)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_loss_scaled_is_gradient_descent_on_the_loss(loss):
    params, data = problem()

    def total(params):
        q = networks.margins(params, *data)
        return jnp.sum(jnp.exp(-q) if loss == "exponential" else jnp.log1p(jnp.exp(-q)))

    optimizer = optimizers.loss_scaled(0.03)

    @jax.jit
    def step(params, state):
        here = representations.gradient(params, data, losses.LOSSES[loss])
        updates, state = optimizer.update(
            here.gradient, state, params, log_loss=here.log_loss, squared_norm=here.squared_norm
        )
        return optax.apply_updates(params, updates), state, updates, jax.grad(total)(params)

    state = optimizer.init(params)
    for _ in range(3):
        params, state, updates, slopes = step(params, state)
        for got, slope in zip(updates, slopes, strict=True):
            np.testing.assert_allclose(got, -0.03 * np.asarray(slope), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("log_loss", [0.0, 1.5, -60.0])
def test_paper_schedule_grows_once_in_a_hundred_steps(log_loss):
    rates = learning_rates(optimizers.paper_schedule(), [0, 99, 100, 199, 250, 1000], log_loss)
    expected = 1e-5 * 1.1 ** np.array([0, 0, 1, 1, 2, 10]) * np.exp(log_loss)
    # The exponential turns the absolute error of its argument into a relative one.
    np.testing.assert_allclose(rates, expected, rtol=2 * EPS * (np.log(1e5) + abs(log_loss) + 2))


def test_paper_schedule_takes_other_settings():
    rates = learning_rates(optimizers.paper_schedule(0.5, growth=2.0, every=3), [2, 3, 8, 9], 0.0)
    np.testing.assert_allclose(rates, [0.5, 1.0, 2.0, 4.0], rtol=8 * EPS)


def test_loss_scaled_takes_a_schedule():
    schedule = optax.exponential_decay(0.2, transition_steps=10, decay_rate=0.5)
    rates = learning_rates(optimizers.loss_scaled(schedule), [0, 10, 25], -3.0)
    expected = 0.2 * 0.5 ** np.array([0, 1, 2.5]) * np.exp(-3.0)
    np.testing.assert_allclose(rates, expected, rtol=16 * EPS)
    assert isinstance(optimizers.loss_scaled(schedule), optimizers.LinearTransformation)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_a_flow_step_lowers_the_log_loss_by_its_size(scale):
    params, data = problem(scale)

    @partial(jax.jit, static_argnums=0)
    def shortfall(delta):
        optimizer = optimizers.log_loss_time(delta)
        here = representations.gradient(params, data, losses.exponential)
        updates, _ = optimizer.update(
            here.gradient,
            optimizer.init(params),
            log_loss=here.log_loss,
            squared_norm=here.squared_norm,
        )
        moved = optax.apply_updates(params, updates)
        after, _ = losses.log_loss(networks.margins(moved, *data))
        return 1 - (here.log_loss - after) / delta

    coarse, fine = float(shortfall(2e-5)), float(shortfall(1e-5))
    assert abs(fine) < 1e-3
    assert fine != 0
    np.testing.assert_allclose(coarse / fine, 2, rtol=0.01)  # an error of second order in h


def reference_step_sizes(log_losses, delta, largest, realized, gain):
    h, sizes = delta, []
    for i, now in enumerate(log_losses):
        share = 1 if i == 0 else (log_losses[i - 1] - now) / h
        h = h * min(max(1 + gain * (share - realized), 0.7), 1.1)
        h = max(min(h, delta * (1 + log_losses[0] - now), largest), delta)
        sizes.append(h)
    return np.array(sizes)


def step_sizes(optimizer, log_losses):
    """The fall of log L that each step aims at, from the length of its update."""
    gradient = jnp.array([3.0, -4.0])
    update = jax.jit(
        lambda state, log_loss: optimizer.update(
            gradient, state, log_loss=log_loss, squared_norm=jnp.float32(25)
        )
    )
    state, sizes = optimizer.init(gradient), []
    for log_loss in log_losses:
        updates, state = update(state, np.float32(log_loss))
        updates = np.asarray(updates)
        np.testing.assert_allclose(updates[1], updates[0] * (-4 / 3), rtol=4 * EPS)
        sizes.append(-float(updates @ np.array([3.0, -4.0])))
    return np.array(sizes)


def falls(sizes_from, shares, first=2.0, **settings):
    """Log losses of a run in which step i realizes the share `shares[i]` of its size."""
    values = [first]
    for share in shares:
        h = sizes_from(values, **settings)[-1]
        values.append(values[-1] - share * h)
    return np.array(values, np.float32).astype(float).tolist()


SETTINGS = {"delta": 0.0075, "largest": 0.3, "realized": 0.7, "gain": 0.5}


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, {"delta": 0.05, "largest": 2.0, "realized": 0.3, "gain": 0.8}],
)
def test_step_sizes_follow_the_documented_rule(settings):
    shares = [1.0] * 250 + [0.1] * 5 + [1.0] * 20 + [-3.0] * 4 + [0.75, 0.65, 0.85] * 5
    log_losses = falls(reference_step_sizes, shares, **settings)
    expected = reference_step_sizes(log_losses, **settings)
    got = step_sizes(optimizers.log_loss_time(**settings), log_losses)
    assert expected.max() > 4 * settings["delta"]
    # Log losses round at 1e-6 and steps are at least 0.0075: each share is off by 1e-4 or so, and
    # a step size hands its error on to the next.
    np.testing.assert_allclose(got, expected, rtol=5e-3)


def test_step_size_grows_by_a_tenth_up_to_the_ceilings():
    shares = [1.0] * 700
    log_losses = falls(reference_step_sizes, shares, **SETTINGS)
    sizes = step_sizes(optimizers.log_loss_time(**SETTINGS), log_losses)
    fall = log_losses[0] - np.array(log_losses)
    assert sizes[0] == pytest.approx(0.0075, rel=4 * EPS)
    assert np.all(sizes[1:] / sizes[:-1] < 1.1 + 1e-5)
    assert np.all(sizes <= np.minimum(0.0075 * (1 + fall), 0.3) * (1 + 1e-5))
    assert sizes[-1] == pytest.approx(0.3, rel=4 * EPS)
    # With steps that keep what they promise only the ceilings hold the size down.
    np.testing.assert_allclose(sizes, np.minimum(0.0075 * (1 + fall), 0.3), rtol=1e-5)


def test_step_size_shrinks_where_little_is_realized_but_not_below_delta():
    shares = [1.0] * 700
    log_losses = falls(reference_step_sizes, shares, **SETTINGS)
    for share, factor in [(0.5, 0.9), (0.0, 0.7), (-5.0, 0.7)]:
        longer = [*log_losses, log_losses[-1] - share * 0.3]
        sizes = step_sizes(optimizers.log_loss_time(**SETTINGS), longer)
        assert sizes[-1] / sizes[-2] == pytest.approx(factor, rel=1e-4)
    rising = [*log_losses, *(log_losses[-1] + np.arange(1, 30))]
    sizes = step_sizes(optimizers.log_loss_time(**SETTINGS), rising)
    assert sizes[-1] == pytest.approx(0.0075, rel=4 * EPS)
    assert sizes.min() >= 0.0075 * (1 - 4 * EPS)


@pytest.mark.parametrize("bad", [0, -1.0, NAN, INF])
def test_numbers_that_are_not_positive_are_refused(bad):
    for make, name in [
        (optimizers.loss_scaled, "learning_rate"),
        (optimizers.paper_schedule, "learning_rate"),
        (lambda value: optimizers.paper_schedule(growth=value), "growth"),
        (optimizers.log_loss_time, "delta"),
        (lambda value: optimizers.log_loss_time(largest=value), "largest"),
        (lambda value: optimizers.log_loss_time(gain=value), "gain"),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got {bad}"):
            make(bad)


@pytest.mark.parametrize("bad", [0, -3])
def test_growth_interval_must_be_positive(bad):
    with pytest.raises(
        ValueError, match=f"every must be a whole number of steps, at least 1, got {bad}"
    ):
        optimizers.paper_schedule(every=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 2.0, NAN])
def test_realized_share_must_be_a_share(bad):
    with pytest.raises(ValueError, match=r"realized must be in \[0, 1\), got"):
        optimizers.log_loss_time(realized=bad)
    optimizers.log_loss_time(realized=0.0)


@pytest.mark.parametrize("rate", [0.1, optax.exponential_decay(0.1, 2, 0.5)])
def test_linear_wraps_momentum(rate):
    plain = optax.sgd(rate, momentum=0.9)
    wrapped = optimizers.linear(optax.sgd(rate, momentum=0.9))
    assert isinstance(wrapped, optimizers.LinearTransformation)
    assert not isinstance(optax.with_extra_args_support(plain), optimizers.LinearTransformation)
    state, wrapped_state = plain.init(jnp.zeros(2)), wrapped.init(jnp.zeros(2))
    for gradient in jnp.array([[1.0, -2.0], [0.5, 0.25], [-3.0, 1.0]]):
        expected, state = plain.update(gradient, state)
        got, wrapped_state = wrapped.update(
            gradient, wrapped_state, log_loss=jnp.float32(-4), squared_norm=jnp.float32(2)
        )
        np.testing.assert_array_equal(got, expected)


def test_the_packages_own_optimizers_are_linear():
    for optimizer in (
        optimizers.loss_scaled(0.1),
        optimizers.paper_schedule(),
        optimizers.log_loss_time(),
    ):
        assert isinstance(optimizer, optimizers.LinearTransformation)
