import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import normal

from jaxkkt import networks
from jaxkkt.losses import log_loss
from jaxkkt.networks import Params

EPS = float(np.finfo(np.float32).eps)
DRAWS = [networks.torch_linear, networks.gaussian]
ONE_QUICK = [networks.torch_linear, pytest.param(networks.gaussian, marks=pytest.mark.slow)]


@functools.cache
def compiled(initialization):
    return jax.jit(initialization, static_argnums=(1, 2, 3))


def draw(width=11, dim=5, seed=0):
    return compiled(networks.gaussian)(jax.random.key(seed), width, dim, 1.5)


def points(m=7, d=5, seed=2):
    return normal(seed, m, d)


def float64_outputs(params, x):
    """N(x) and a bound on its float32 error: each of the d + k + 2 roundings loses at most EPS."""
    w, b, v, x = (np.asarray(a, np.float64) for a in (*params, x))
    terms = np.abs(x) @ np.abs(w).T + np.abs(b)
    bound = (x.shape[-1] + len(v) + 2) * EPS * (terms @ np.abs(v))
    return np.maximum(x @ w.T + b, 0) @ v, bound


@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5)])
def test_apply_matches_float64(shape):
    params = draw()
    x = normal(2, *shape)
    expected, bound = float64_outputs(params, x)
    got = np.asarray(networks.apply(params, x))
    assert got.shape == shape[:-1]
    assert np.all(np.abs(got - expected) <= bound)


def test_margins_are_outputs_times_labels():
    params, x = draw(), points().at[4].set(0)
    y = jnp.array([1.0, -1.0, -1.0, 1.0, 0.0, -1.0, 1.0])
    expected, bound = float64_outputs(params, x)
    got = np.asarray(networks.margins(params, x, y))
    assert np.all(np.abs(got - np.asarray(y) * expected) <= bound)
    assert got[4] == 0


def test_squared_norm_adds_all_parameters():
    params = Params(
        jnp.array([[1.0, -2.0], [0.0, 3.0], [0.5, 0.0]]),
        jnp.array([4.0, 0.0, -1.0]),
        jnp.array([-5.0, 6.0, 0.0]),
    )
    assert networks.squared_norm(params) == (1 + 4 + 9 + 0.25) + (16 + 1) + (25 + 36)


def test_relu_has_derivative_zero_at_zero():
    assert jax.grad(networks.relu)(0.0) == 0
    # The same where it matters: a neuron whose preactivation is exactly zero gets no gradient.
    params = Params(jnp.array([[2.0, -1.0], [1.0, 1.0]]), jnp.zeros(2), jnp.array([3.0, -1.0]))
    grads = jax.jit(jax.grad(networks.apply))(params, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(grads.w, [[0, 0], [-1, -2]])
    np.testing.assert_array_equal(grads.v, [0, 3])


@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5)])
def test_values_and_input_gradients_are_those_of_autodiff(shape):
    params = draw()
    x = normal(2, *shape)
    outputs, gradients = networks.value_and_input_gradient(params, x)
    np.testing.assert_array_equal(outputs, networks.apply(params, x))
    expected = jax.jit(jax.grad(lambda x: networks.apply(params, x).sum()))(x)
    np.testing.assert_allclose(gradients, expected, rtol=1e-5, atol=1e-6)


def test_values_and_parameter_gradients_are_those_of_autodiff():
    params, x = draw(), points()
    weights = jnp.linspace(-1, 2, 7)
    outputs, pullback = networks.value_and_pullback(params, x)
    np.testing.assert_array_equal(outputs, networks.apply(params, x))
    expected = jax.jit(jax.grad(lambda p: jnp.vdot(weights, networks.apply(p, x))))(params)
    for got, gradient in zip(pullback(weights), expected, strict=True):
        np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-6)


def test_a_neuron_at_zero_preactivation_pulls_nowhere():
    # The first neuron is exactly 0 at x = (1, 2).
    params = Params(jnp.array([[2.0, -1.0], [1.0, 1.0]]), jnp.zeros(2), jnp.array([3.0, -1.0]))
    x = jnp.array([[1.0, 2.0]])
    np.testing.assert_array_equal(networks.value_and_input_gradient(params, x)[1], [[-1, -1]])
    over_parameters = networks.value_and_pullback(params, x)[1](jnp.ones(1))
    np.testing.assert_array_equal(over_parameters.w, [[0, 0], [-1, -2]])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params(jnp.ones((3, 4)), jnp.ones(3), jnp.ones(2)), r"k >= 1, got w \(3, 4\), b \(3,\)"),
        (Params(jnp.ones((3, 4)), jnp.ones(3), jnp.ones((3, 1))), r"got .* v \(3, 1\)"),
        (Params(jnp.ones((3, 5)), jnp.ones(3), jnp.ones(3)), r"needs w \(k, 4\)"),
        (Params(jnp.ones((0, 4)), jnp.ones(0), jnp.ones(0)), "k >= 1"),
        (Params(*(np.ones(s) for s in ((3, 4), 3, 3))), "w is float64, which JAX would round"),
        (Params(np.ones((3, 4), "f"), np.ones(3, "f"), np.ones(3)), "v is float64, which JAX"),
        (Params(jnp.ones((3, 4)), jnp.ones(3), [1.0]), "v must be an array, got list"),
        ((jnp.ones((3, 4)), jnp.ones(3), jnp.ones(3)), r"Params\(w, b, v\), .* got tuple"),
    ],
)
def test_check_parameters_refuses(params, message):
    with pytest.raises(ValueError, match=message):
        networks.check_parameters(params, 4)


@pytest.mark.parametrize(
    ("initialization", "variance", "spread_of_squares"),
    # The variance of u^2 over (E u^2)^2 is 4/5 for a uniform u and 2 for a normal one.
    [(networks.torch_linear, 1 / 3, 0.8), (networks.gaussian, 1.0, 2.0)],
)
def test_initialization_has_the_stated_mean_and_variance(
    initialization, variance, spread_of_squares
):
    k, d, scale = 4000, 9, 3.0
    params = compiled(initialization)(jax.random.key(3), k, d, scale)
    assert [p.shape for p in params] == [(k, d), (k,), (k,)]
    for values, fan_in in zip(params, (d, d, k), strict=True):
        unit = np.asarray(values, np.float64).ravel() * np.sqrt(fan_in) / scale
        five_sigma = 5 / np.sqrt(unit.size)
        assert abs(unit.mean()) < five_sigma * np.sqrt(variance)
        assert abs(np.mean(unit**2) / variance - 1) < five_sigma * np.sqrt(spread_of_squares)
    correlations = np.corrcoef([params.w[:, 0], params.w[:, 1], params.b, params.v])
    assert np.abs(correlations - np.eye(4)).max() < 5 / np.sqrt(k)


def test_torch_linear_fills_its_range():
    k, d, scale = 4000, 9, 3.0
    params = compiled(networks.torch_linear)(jax.random.key(3), k, d, scale)
    for values, fan_in in zip(params, (d, d, k), strict=True):
        bound = scale / np.sqrt(fan_in)
        largest, smallest = float(values.max()), float(values.min())
        # The largest of n uniform draws misses the bound by more than 20/n with chance e^-10.
        assert bound * (1 - 20 / values.size) < largest <= bound * (1 + 2 * EPS)
        assert -bound * (1 + 2 * EPS) <= smallest < -bound * (1 - 20 / values.size)


@pytest.mark.parametrize("initialization", ONE_QUICK)
def test_draws_depend_on_the_key_and_the_row_alone(initialization):
    key, initialization = jax.random.key(5), compiled(initialization)
    small, wide = initialization(key, 5, 3, 2.0), initialization(key, 9, 3, 2.0)
    small, wide = jax.tree.map(np.asarray, (small, wide))
    np.testing.assert_array_equal(small.w, wide.w[:5])
    np.testing.assert_array_equal(small.b, wide.b[:5])
    np.testing.assert_allclose(small.v * np.sqrt(5), wide.v[:5] * np.sqrt(9), rtol=4 * EPS)
    deep = initialization(key, 5, 8, 2.0)
    np.testing.assert_allclose(
        np.asarray(small.w) * np.sqrt(3), np.asarray(deep.w)[:, :3] * np.sqrt(8), rtol=4 * EPS
    )
    other = np.asarray(initialization(jax.random.key(6), 5, 3, 2.0).w)
    assert not np.any(small.w == other)
    assert len(np.unique(wide.w)) == wide.w.size


@pytest.mark.parametrize("initialization", ONE_QUICK)
def test_padded_draw_has_the_same_numbers_at_traced_sizes(initialization):
    key, shape = jax.random.key(7), (6, 9)

    @jax.jit
    def padded(width, dim):
        return initialization(key, width, dim, 2.0, shape)

    for width, dim in [(4, 7), (6, 9)]:
        solo, got = compiled(initialization)(key, width, dim, 2.0), padded(width, dim)
        expected = networks.pad(jax.device_get(solo), *shape)
        for a, b in zip(jax.device_get(got), jax.device_get(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=4 * EPS)
            np.testing.assert_array_equal(a == 0, b == 0)
    assert padded._cache_size() == 1


def test_padding_is_inert():
    params, x, y = draw(), points(), jnp.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
    padded, padded_x = networks.pad(params, 16, 8), jnp.pad(x, ((0, 0), (0, 3)))
    expected, bound = float64_outputs(params, x)
    got = np.asarray(networks.apply(padded, padded_x))
    # Padding may change the order of a sum, and so its rounding.
    assert np.all(np.abs(got - expected) <= bound)

    def value(p, x):
        return log_loss(networks.margins(p, x, y))[0]

    slopes = jax.jit(jax.grad(value))
    grads, solo = jax.tree.map(np.asarray, (slopes(padded, padded_x), slopes(params, x)))
    np.testing.assert_array_equal(grads.w[11:], 0)
    np.testing.assert_array_equal(grads.w[:, 5:], 0)
    np.testing.assert_array_equal(grads.b[11:], 0)
    np.testing.assert_array_equal(grads.v[11:], 0)
    assert np.all(np.any(solo.w != 0, axis=1))
    for got, expected in zip((grads.w[:11, :5], grads.b[:11], grads.v[:11]), solo, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_pad_refuses_to_shrink():
    for width, dim in [(10, 5), (11, 4)]:
        with pytest.raises(ValueError, match=r"padding only adds; ask for at least \(11, 5\)"):
            networks.pad(draw(), width, dim)
    for got, expected in zip(networks.pad(draw(), 11, 5), draw(), strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match=r"of shape \(11, 5\) has no part of shape \(12, 5\)"):
        networks.unpad(draw(), 12, 5)


@pytest.mark.parametrize("initialization", DRAWS)
def test_bad_sizes_are_refused(initialization):
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        initialization(key, 0, 3)
    with pytest.raises(ValueError, match="dimension must be at least 1, got -2"):
        initialization(key, 3, -2)
    with pytest.raises(ValueError, match=r"width 5 does not fit the shape \(4, 9\)"):
        initialization(key, 5, 9, shape=(4, 9))
    with pytest.raises(ValueError, match=r"dimension 10 does not fit the shape \(5, 9\)"):
        initialization(key, 5, 10, shape=(5, 9))
    with pytest.raises(ValueError, match="static `shape` to pad to: width, dimension"):
        jax.jit(lambda k, d: initialization(key, k, d))(3, 4)
    with pytest.raises(ValueError, match=r"to pad to: dimension\n"):
        jax.jit(lambda d: initialization(key, 3, d))(4)


def test_lazy_networks_may_have_biases():
    start = compiled(functools.partial(networks.lazy, biases=True))(jax.random.key(0), 5, 3)
    assert np.all(start.b != 0)


@pytest.mark.parametrize("draw", [networks.torch_linear, networks.gaussian, networks.lazy])
def test_of_traced_sizes_the_scale_is_in_the_precision_of_the_network(draw, float64):
    """Their roots were rounded to 32 bits, as traced whole numbers are."""
    key, sizes = jax.random.key(0), (6, 7)
    traced = jax.jit(functools.partial(draw, shape=sizes))(key, *jnp.array(sizes, jnp.int32))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-15), traced, draw(key, *sizes)
    )


@pytest.mark.usefixtures("unchecked")
def test_what_is_taken_out_of_padding_is_one_network():
    """Of several that are stacked it left the last out."""
    one = networks.torch_linear(jax.random.key(0), 6, 4)
    stacked = jax.tree.map(lambda a: jnp.stack([a] * 3), one)
    with pytest.raises(ValueError, match=r"stacked, map over them by jax\.vmap"):
        networks.unpad(stacked, 2, 4)
    for sizes in ((-1, 2), (0, 2), (2, 0), (7, 2)):
        with pytest.raises(ValueError, match="has no part of shape"):
            networks.unpad(one, *sizes)
