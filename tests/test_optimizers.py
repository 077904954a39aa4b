"""Rules of the package and linear ones: learning rates, schedules, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizer_cases import problem

import jaxkkt as jk
from jaxkkt import losses, networks, optimizers, representations

EPS = float(np.finfo(np.float32).eps)
NAN, INF = float("nan"), float("inf")


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


@pytest.mark.parametrize("bad", [0, -1.0, NAN, INF])
def test_numbers_that_are_not_positive_are_refused(bad):
    for make, name in [
        (optimizers.loss_scaled, "learning_rate"),
        (optimizers.paper_schedule, "learning_rate"),
        (lambda value: optimizers.paper_schedule(growth=value), "growth"),
        (optimizers.log_loss_time, "delta"),
        (lambda value: optimizers.log_loss_time(largest=value), "largest"),
        (lambda value: optimizers.log_loss_time(stiffness=value), "stiffness"),
        (lambda value: optimizers.log_loss_time(proportion=value), "proportion"),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got {bad:g}"):
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


@pytest.mark.parametrize("bad", [1, 0, -1])
def test_stages_must_be_a_count(bad):
    with pytest.raises(ValueError, match=f"stages must be a whole number, at least 2, got {bad}"):
        optimizers.log_loss_time(stages=bad)


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


@pytest.mark.parametrize("make", [optimizers.log_loss_time, optimizers.loss_scaled])
def test_numbers_may_be_numpys(make):
    """As measurements on the host are given those of their run's protocol."""
    assert isinstance(make(np.array(0.01, np.float32)), optimizers.LinearTransformation)


def test_a_rule_is_told_no_more_than_it_takes():
    """Of optax's rules with arguments of their own not all take those that they do not use."""
    rule = optax.contrib.sam(optax.sgd(0.01), optax.sgd(0.05))
    (run,) = jk.grid(d=6, samples=4, width=10, seed=0, optimizer=rule, max_steps=20, measure=[])
    params, data = jk.draw(run)
    with jax.numpy_dtype_promotion("standard"):  # which optax asks for
        assert run.name
        found = jk.train(params, *data, run.protocol)
    assert found.log_loss < jk.losses.log_loss(jk.networks.margins(params, *data))[0]


@pytest.mark.usefixtures("unchecked")
def test_a_learning_rate_that_is_text_is_refused():
    """As of a command line: it came as far as the sweep."""
    with pytest.raises(ValueError, match="must be a number or a schedule, got '0"):
        jk.optimizer(optax.sgd, learning_rate="0.1")
