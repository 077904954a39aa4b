import functools
import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxkkt import losses

EPS = float(np.finfo(np.float32).eps)
LOSSES = [losses.exponential, losses.logistic]
log_loss = jax.jit(losses.log_loss, static_argnames=("loss", "reduction"))
ZERO_CROSSING = -np.log(np.e - 1)  # where log log(1 + exp(-q)) = 0
GRID = np.unique(
    np.concatenate(
        [
            np.linspace(-1e3, 1e3, 401),
            np.linspace(-30, 40, 701),
            20 + 1e-6 * np.arange(-40, 41),
            ZERO_CROSSING + np.linspace(-1e-3, 1e-3, 101),
            np.geomspace(1e3, 1e6, 60),
        ]
    ).astype(np.float32)
)


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


def exact_loss(q, loss):
    """l(q) and -l'(q)."""
    q = mpmath.mpf(float(q))
    if loss is losses.exponential:
        return mpmath.exp(-q), mpmath.exp(-q)
    return mpmath.log1p(mpmath.exp(-q)), 1 / (1 + mpmath.exp(q))


def exact_log_loss(margins, loss):
    """log of the sum, and the weights."""
    values, slopes = zip(*(exact_loss(q, loss) for q in np.asarray(margins)), strict=True)
    total = mpmath.fsum(values)
    return mpmath.log(total), [slope / total for slope in slopes]


@functools.cache
def exact_grid(loss):
    values, slopes = zip(*(exact_loss(q, loss) for q in GRID), strict=True)
    return [mpmath.log(v) for v in values], [s / v for s, v in zip(slopes, values, strict=True)]


def errors(got, exact, absolute=0, eps=EPS):
    """|got - exact| over (absolute + |exact|), in units of `eps`."""
    return np.array(
        [
            float(abs(mpmath.mpf(float(a)) - b) / (absolute + abs(b))) / eps
            for a, b in zip(np.asarray(got), exact, strict=True)
        ]
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_sample_losses_match_mpmath(loss, transform):
    log_values, slopes = transform(loss)(jnp.asarray(GRID))
    exact_values, exact_slopes = exact_grid(loss)
    # log l = log(value): the relative error of `value` (exp and log1p, about 1 EPS each) becomes
    # absolute, and the logarithm adds its own relative one; the slope is a quotient of such two.
    assert errors(log_values, exact_values, absolute=1).max() < 3
    assert errors(slopes, exact_slopes).max() < 5


@pytest.mark.usefixtures("float64")
def test_logistic_in_float64():
    grid = np.concatenate([np.linspace(-40, 60, 301), [np.nextafter(20, 0), np.nextafter(20, 21)]])
    log_values, slopes = jax.jit(losses.logistic)(jnp.asarray(grid))
    exact_values, exact_slopes = zip(*(exact_loss(q, losses.logistic) for q in grid), strict=True)
    eps = float(np.finfo(np.float64).eps)
    logs = [mpmath.log(v) for v in exact_values]
    ratios = [s / v for s, v in zip(exact_slopes, exact_values, strict=True)]
    assert errors(log_values, logs, absolute=1, eps=eps).max() < 3
    assert errors(slopes, ratios, eps=eps).max() < 5


def test_exponential_is_exact():
    log_values, slopes = losses.exponential(jnp.asarray(GRID))
    np.testing.assert_array_equal(log_values, -GRID)
    np.testing.assert_array_equal(slopes, 1)


OFFSETS = np.array([0.5, -1.25, 3.0, 0.0, 7.75, 0.0], np.float32)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("centre", [-990.0, -20.0, 0.0, 2.0, 20.0, 60.0, 1e3, 1e6])
def test_log_loss_matches_mpmath(loss, centre):
    margins = np.float32(centre) + OFFSETS
    value, weights = log_loss(margins, loss=loss)
    exact, exact_weights = exact_log_loss(margins, loss)
    assert errors([value], [exact], absolute=1)[0] < 4
    # Weights are exponentials of differences of numbers of the size of log L.
    assert errors(weights, exact_weights).max() < 8 * (1 + abs(float(exact)))
    mean, mean_weights = log_loss(margins, loss=loss, reduction="mean")
    assert errors([mean], [exact - mpmath.log(6)], absolute=3)[0] < 4
    np.testing.assert_array_equal(weights, mean_weights)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("centre", [1e4, 1e6])
def test_weights_are_accurate_at_large_margins(loss, centre):
    margins = np.float32(centre) + OFFSETS
    _, weights = log_loss(margins, loss=loss)
    assert errors(weights, exact_log_loss(margins, loss)[1]).max() < 16


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("exponent", [-30, -300, -3000])
def test_log_loss_far_below_the_smallest_float(loss, exponent):
    # Margins whose exponentials sum to 10^exponent, shared 4 : 2 : 1.
    shares = np.log(np.array([4, 2, 1]) / 7)
    margins = (-exponent * np.log(10) - shares).astype(np.float32)
    value, weights = log_loss(margins, loss=loss)
    exact, exact_weights = exact_log_loss(margins, loss)
    assert errors([value], [exact])[0] < 2
    np.testing.assert_allclose(float(value), exponent * np.log(10), rtol=4 * EPS)
    assert errors(weights, exact_weights).max() < 8 * abs(float(exact))
    np.testing.assert_allclose(weights, np.array([4, 2, 1]) / 7, rtol=4 * EPS * abs(float(exact)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("masked", [-1e3, -1.0, 0.0, 25.0, 1e6])
@pytest.mark.parametrize("centre", [0, 5000])
def test_masked_samples_take_no_part(loss, masked, centre):
    real = np.array([0.5, -2.0, 3.0], np.float32) + np.float32(centre)
    margins = np.array([real[0], masked, real[1], real[2], masked], np.float32)
    mask = np.array([True, False, True, True, False])
    exact, exact_weights = exact_log_loss(real, loss)
    value, weights = jax.device_get(log_loss(margins, loss=loss, mask=mask))
    assert errors([value], [exact], absolute=1)[0] < 4
    np.testing.assert_array_equal(weights[[1, 4]], 0)
    assert errors(weights[[0, 2, 3]], exact_weights).max() < 8 * (1 + abs(exact))
    mean, _ = log_loss(margins, loss=loss, mask=mask, reduction="mean")
    assert errors([mean], [exact - mpmath.log(3)], absolute=2)[0] < 4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_weights_are_minus_the_gradient(loss, reduction):
    margins = np.array([-6.5, -2.0, 0.0, 0.75, 4.0, 11.0, -6.25], np.float32)

    def value(q):
        loss_values = jnp.exp(-q) if loss is losses.exponential else jnp.log1p(jnp.exp(-q))
        return jnp.log(loss_values.sum() / (1 if reduction == "sum" else 7))

    def ours(q):
        return losses.log_loss(q, loss, reduction=reduction)[0]

    _, weights = log_loss(margins, loss=loss, reduction=reduction)
    by_hand, by_autodiff = jax.jit(lambda q: (jax.grad(value)(q), jax.grad(ours)(q)))(margins)
    # Both are a few operations on numbers of size log L < 8.
    np.testing.assert_allclose(-weights, by_hand, rtol=32 * EPS)
    np.testing.assert_allclose(by_autodiff, by_hand, rtol=32 * EPS)


@pytest.mark.parametrize("loss", LOSSES)
def test_logistic_and_exponential_agree_at_large_margins_and_differ_at_small(loss):
    far, near = np.array([40, 43.5], np.float32), np.array([0.5, -2], np.float32)
    assert log_loss(far, loss=loss)[0] == log_loss(far)[0]
    assert (log_loss(near, loss=loss)[0] == log_loss(near)[0]) == (loss is losses.exponential)


@pytest.mark.parametrize("loss", LOSSES)
def test_of_no_samples_the_loss_is_0(loss):
    """A traced mask may choose none, as that of a block of padding."""
    assert log_loss(np.ones(3, np.float32), loss, np.zeros(3, bool))[0] == -np.inf


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mask", [[True], [1.0, -1.0, 1.0], [1, 0, 1]])
def test_a_mask_that_is_not_a_truth_value_a_sample_is_refused(mask):
    """Labels for a mask would choose every sample, and divide the mean by their sum."""
    with pytest.raises(ValueError, match=r"mask must hold True or False .*, shape \(3,\), got"):
        losses.log_loss(jnp.ones(3), mask=jnp.array(mask), reduction="mean")


def test_a_mask_that_chooses_no_sample_is_refused():
    with pytest.raises(ValueError, match="mask must choose a sample, but all of it is False"):
        losses.log_loss(np.ones(3, np.float32), mask=np.zeros(3, bool))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (), (0,)])
def test_margins_are_those_of_one_network(shape):
    message = rf"of one network, shape \(m,\) with m >= 1, got {re.escape(str(shape))}.*jax\.vmap"
    with pytest.raises(ValueError, match=message):
        losses.log_loss(jnp.ones(shape), reduction="mean")


@pytest.mark.parametrize("loss", LOSSES)
def test_networks_are_mapped_over(loss):
    margins = np.array([[0.5, -2.0, 3.0], [1.0, 40.0, 0.0]], np.float32)
    for mapped in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        totals, weights = jax.device_get(mapped(lambda q: losses.log_loss(q, loss))(margins))
        for lane, q in enumerate(margins):
            total, alone = log_loss(q, loss=loss)
            np.testing.assert_allclose(totals[lane], total, rtol=8 * EPS)
            np.testing.assert_allclose(weights[lane], alone, rtol=32 * EPS)


@pytest.mark.usefixtures("unchecked")
def test_float64_margins_are_not_rounded():
    with pytest.raises(ValueError, match="margins is float64, which JAX would round to float32"):
        losses.log_loss(np.array([1.0, 2.0]))
    with jax.enable_x64(True):
        value, weights = losses.log_loss(np.array([1.0, 2.0]))
        assert value.dtype == weights.dtype == jnp.float64
    listed, expected = losses.log_loss([1, 2]), losses.log_loss(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(listed[1], expected[1])
    assert listed[0] == expected[0]


def test_unknown_reduction_is_refused(unchecked):
    with pytest.raises(ValueError, match="reduction must be 'sum' or 'mean', got 'max'"):
        losses.log_loss(jnp.ones(3), reduction="max")


def test_a_loss_by_name_is_refused(unchecked):
    """It was called, and could not be."""
    with pytest.raises(ValueError, match=r"a function of margins, got 'logistic': jk\.losses"):
        losses.log_loss(jnp.ones(3), "logistic")


def test_losses_are_listed_by_name():
    assert {"exponential": losses.exponential, "logistic": losses.logistic} == losses.LOSSES
