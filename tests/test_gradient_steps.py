"""The smallest gradient step that flips a prediction."""

from importlib import import_module

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, normal

from jaxkkt import networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements import StepFlips
from jaxkkt.networks import Params, value_and_input_gradient
from jaxkkt.perturbations import GradientSteps, StepStatus, gradient_steps, input_gradient, rays
from jaxkkt.perturbations.rays import Ray, first_crossings, first_flip


def neuron_and_constant(constant):
    """f(x) = 3 relu(w . x + 1) - constant for w = (2, -1)."""
    w, b, v = [[2.0, -1.0], [0.0, 0.0]], [1.0, 1.0], [3.0, -constant]
    return jax.device_put(Params(*map(np.array, (w, b, v))))


@pytest.fixture(scope="module")
def lazy():
    x = np.asarray(normal(4, 20, 8)) * np.linspace(0.3, 2, 20)[:, None]
    return cases.lazy(3, 60, 8, biases=True), jax.device_put(x)


@pytest.mark.parametrize(("constant", "sign"), [(6.0, -1), (30.0, 1)])
def test_one_neuron(constant, sign):
    # f(x + eta g) = 3 (w.x + 1 + eta 3 |w|^2) - constant, g = 3 w, |w|^2 = 5; w.x + 1 = 4.
    x = np.array([[2.0, 1.0]] * 3, np.float32)
    found = gradient_steps(neuron_and_constant(constant), x, bracket=10.0)
    eta = (constant / 3 - 4) / (3 * 5)
    assert np.sign(eta) == sign
    assert_close(found.output, 12 - constant)
    assert_close(found.gradient_norm, 3 * 5**0.5, rtol=1e-6)
    assert_close(found.eta, abs(eta), rtol=1e-6)
    assert_close(found.size, abs(eta) * 3 * 5**0.5, rtol=1e-6)
    assert found.status.tolist() == [StepStatus.FLIPPED] * 3


def test_a_sign_that_never_changes_is_told():
    x = np.array([[2.0, 1.0], [-2.0, 0.0], [-3.0, 0.0]], np.float32)
    found = gradient_steps(neuron_and_constant(0.0), x, 100.0)
    assert found.status.tolist() == [StepStatus.NO_FLIP, *[StepStatus.NO_GRADIENT] * 2]
    np.testing.assert_array_equal(found.eta, [np.inf, np.nan, np.nan])


def test_an_output_or_a_gradient_of_0_is_no_prediction_or_no_direction():
    # a relu(x) - 1 at x = 1: for a = 1 it is 0 and its gradient is not, for a = 0 only that is 0.
    x = np.array([[1.0]], np.float32)
    for a in (1.0, 0.0):
        params = Params(*map(np.array, ([[a], [0.0]], [0.0, 1.0], [1.0, -1.0])))
        found = gradient_steps(jax.device_put(params), x, 10.0)
        assert (found.output, found.gradient_norm) == (a - 1, a)
        assert found.status.tolist() == [StepStatus.NO_GRADIENT]
        assert np.isnan([found.eta, found.size]).all()


def test_what_rounding_may_hide_of_too_large_terms_is_told():
    # The neuron of weight 1e30 is off, by 1e10: neither output nor gradient overflows.
    params = Params(*map(np.array, ([[1.0], [1e-3]], [0.0, -1e10], [1.0, 1e30])))
    found = gradient_steps(jax.device_put(params), np.array([[1.0]], np.float32), 10.0)
    assert found.output[0] == found.gradient_norm[0] == 1
    assert found.status.tolist() == [StepStatus.NON_FINITE]
    assert np.isnan([found.eta, found.size]).all()


def test_steps_are_the_first_of_a_fine_grid(lazy):
    params, x = lazy
    found = jax.device_get(gradient_steps(params, x))
    w, b, v, points = (np.asarray(a, np.float64) for a in (*params, x))

    def f(z):
        return np.maximum(z @ w.T + b, 0) @ v

    flipped = 0
    for i, point in enumerate(points):
        gradient = (v * (w @ point + b > 0)) @ w
        toward = -np.sign(f(point)) * gradient
        limit = np.linalg.norm(point) / np.linalg.norm(gradient)
        changes = f(point + np.linspace(0, limit, 4001)[:, None] * toward) * f(point) < 0
        if not changes.any():
            assert found.status[i] == StepStatus.NO_FLIP
            continue
        flipped += 1
        first = np.argmax(changes) * limit / 4000
        assert first - limit / 4000 <= found.eta[i] <= first + 1e-5
    assert flipped >= 10


def test_gradients_are_those_of_autodiff(lazy):
    params, x = lazy
    expected = jax.jit(jax.vmap(jax.grad(lambda z: networks.apply(params, z))))(x)
    assert_close(jax.jit(input_gradient)(params, x), expected, rtol=1e-4, atol=1e-5)
    found = jax.device_get(gradient_steps(params, x))
    assert_close(found.gradient_norm, np.linalg.norm(expected, axis=1), rtol=1e-5)
    assert_close(found.size, found.eta * found.gradient_norm, rtol=1e-5)


@pytest.mark.slow
def test_blocks_padding_and_lanes_change_nothing(lazy, monkeypatch):
    params, x = lazy
    found = gradient_steps(params, x)
    module = import_module("jaxkkt.perturbations.gradient_steps")
    with monkeypatch.context() as patched:
        patched.setattr(module, "BLOCK_ELEMENTS", 7 * 60)
        patched.setattr(module, "BLOCK_POINTS", 1)
        module._blocks.clear_cache()
        assert_close(gradient_steps(params, x), found, rtol=1e-4)
    module._blocks.clear_cache()
    padded = gradient_steps(networks.pad(params, 70, 11), jnp.pad(x, ((0, 0), (0, 3))))
    assert_close(padded, found, rtol=1e-4)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), params, params._replace(v=-params.v))
    lanes = jax.vmap(gradient_steps, in_axes=(0, None))(both, x)
    for i in range(2):
        alone = gradient_steps(jax.tree.map(lambda a, i=i: a[i], both), x)
        assert_close(jax.tree.map(lambda a, i=i: a[i], lanes), alone, rtol=1e-4)
    assert_close(gradient_steps(params, x[:7]), jax.tree.map(lambda a: a[:7], found), rtol=1e-4)


def test_rescaled_networks_take_the_same_perturbation(lazy):
    params, x = lazy
    found, scaled = (gradient_steps(params._replace(v=c * params.v), x) for c in (1.0, 7.0))
    assert_close(scaled.size, found.size, rtol=1e-4)
    assert_close(scaled.eta, found.eta / 7, rtol=1e-4)


def test_shares_of_a_broken_network_are_unknown(lazy):
    params, x = lazy
    y = jax.device_put(np.where(np.arange(20) % 3 == 0, 1.0, -1.0))
    w = np.array(params.w)
    w[0, 0] = np.nan
    broken = params._replace(w=jax.device_put(w))
    measure = jax.jit(StepFlips().measure)
    found = measure(broken, Dataset(x, y), params)
    for name in ("step_needed_share", "step_flipped_share", "step_size"):
        assert np.isnan(found[name]), name
    whole = measure(params, Dataset(x, y), params)
    assert 0 < whole["step_needed_share"] < 1


def test_how_far_neurons_moved_where_v_is_trained_too(lazy):
    """Distances were divided by the trained |v|, which is 1/sqrt(k) only where v stays."""
    params, x = lazy
    y = jax.device_put(np.where(np.arange(20) % 3 == 0, 1.0, -1.0))
    moved = params._replace(w=params.w.at[1, 0].add(0.5), v=3 * params.v)
    found = StepFlips().measure(moved, Dataset(x, y), params)
    assert found["furthest"] == pytest.approx(0.5 * params.v.size**0.5)


@pytest.mark.parametrize("bracket", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bracket_that_is_none_is_refused(bracket):
    with pytest.raises(ValueError, match=f"bracket must be positive and finite, got {bracket:g}"):
        StepFlips(bracket=bracket)


@pytest.mark.parametrize(
    ("published", "means"), [(False, (1, 3, 3.5, 3.125)), (True, (1.75, 2.5, 3, 2.1875))]
)
def test_what_counts_of_given_steps(published, means, monkeypatch):
    """Points that flip, one misclassified, one that does not flip, one of length 0, padding."""
    rows = [[1, -2, 3, 4, np.nan], [2, 3, 1, 4, 9], [0.5, 8, np.inf, 1.5, 7], [1, 24, np.inf, 6, 9]]
    steps = GradientSteps(*jnp.asarray(rows, jnp.float32), jnp.array([0, 0, 1, 0, 0]))
    brackets = []

    def given(params, x, bracket):
        brackets.append(bracket)
        return steps

    monkeypatch.setattr(perturbations, "gradient_steps", given)
    x, y = jnp.array([[4.0], [1.0], [2.0], [0.0], [0.0]]), jnp.array([1.0, 1, 1, 1, 0])
    w, one, none = jnp.array([[1.0], [2.0], [0.0]]), jnp.array([1.0, 1, 0]), jnp.array([1.0, 0, 0])
    moved, start = Params(w + jnp.array([[5.0], [1.0], [0.0]]), one, none), Params(w, one, one)
    measure = jax.jit(StepFlips(bracket=7.0, published=published).measure)
    measured = measure(moved, Dataset(x, y), start)
    assert brackets == [7.0]
    names = ("step_eta", "step_gradient_norm", "step_size", "step_relative_size")
    names = (*names, "step_needed_share", "step_flipped_share", "furthest")
    expected = (*means, 3 / 4, 2 / 3, 5 * 2**0.5)
    np.testing.assert_allclose([measured[name] for name in names], expected, rtol=1e-6)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.slow
def test_means_are_over_the_points_that_count(lazy, published):
    params, x = lazy
    x = np.array(x).astype(np.float32)
    x[0], bracket = 0, 20.0 if published else 0.3
    y = np.where(np.arange(20) % 3 == 0, 1, -1).astype(np.float32)
    found = jax.device_get(gradient_steps(params, x, bracket))
    needing = y * found.output > 0
    counted, eta = needing & (found.status == StepStatus.FLIPPED), found.eta
    assert counted.sum() < needing.sum() or published
    shares = needing.mean(), counted.sum() / needing.sum()
    if published:
        counted, eta = np.ones(20, bool), np.asarray(found.published_eta(y))
    norm, eta = found.gradient_norm[counted], eta[counted]
    length = np.linalg.norm(x, axis=1)[counted]
    # Padding: points, and neurons, whose start is 0 too.
    data = Dataset(np.pad(x, ((0, 3), (0, 0))), np.pad(y, (0, 3)))
    wide = networks.pad(params, 70, 8)
    start = wide._replace(w=wide.w.at[1, 0].add(0.5))
    got = jax.jit(StepFlips(bracket=bracket, published=published).measure)(wide, data, start)
    means = eta.mean(), norm.mean(), (eta * norm).mean()
    names = ("step_eta", "step_gradient_norm", "step_size", "step_relative_size")
    expected = (*means, (eta * norm / np.where(length > 0, length, 1)).mean(), *shares)
    names = (*names, "step_needed_share", "step_flipped_share")
    np.testing.assert_allclose([got[name] for name in names], expected, rtol=1e-4)
    np.testing.assert_allclose(got["furthest"], 0.5 * 60**0.5, rtol=1e-5)


def test_misclassified_points_need_no_step(lazy):
    params, x = lazy
    found = gradient_steps(params, x)
    needing = np.asarray(found.needs_step(np.ones(20, np.float32)))
    output = np.asarray(jax.jit(networks.apply)(params, x))
    np.testing.assert_array_equal(needing, output > 0)
    assert 0 < needing.sum() < 20


def test_neither_padding_nor_an_output_of_0_needs_a_step():
    output = np.array([0.0, 2.0, 2.0, -1.0], np.float32)
    steps = GradientSteps(output, *np.ones((3, 4), np.float32), np.zeros(4, np.int32))
    y = np.array([1.0, 0.0, 1.0, -1.0], np.float32)
    assert steps.needs_step(y).tolist() == [False, False, True, True]
    np.testing.assert_array_equal(steps.published_eta(y), [0, 0, 1, 1])


@pytest.mark.usefixtures("unchecked")
def test_every_point_needs_a_label():
    found = GradientSteps(*np.ones((5, 20), np.float32))
    for y in ([1.0], np.ones((20, 1), np.float32)):
        for asked in (found.needs_step, found.published_eta):
            with pytest.raises(ValueError, match=r"one label for every point, shape \(20,\), got"):
                asked(y)


def test_the_published_search_goes_by_thousandths_up_to_five():
    eta = np.array([0.0123, 0.002, 7.0, np.inf, np.nan, 0.4, np.nan], np.float32)
    output = np.array([1.0, -2.0, 1.0, 1.0, 1.0, 1.0, np.nan], np.float32)
    steps = GradientSteps(output, eta, eta, eta, np.zeros(7, np.int32))
    y = np.array([1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0], np.float32)
    found = jax.jit(GradientSteps.published_eta)(steps, y)
    np.testing.assert_allclose(found, [0.013, 0.002, 5, 5, 5, 0, np.nan], rtol=1e-6)


def test_a_dip_is_found_where_newton_alone_would_pass_it():
    # As the rays below, from x = 0 with f(0) = 1 and f'(0) = -1/10 on both sides.
    w = np.array([0.0, 1.0, -1.0, 1.0, 1.0, 1.0])[:, None]
    b = np.array([1.0, 0.0, 0.0, -0.3, -0.6, -1.2])
    v = np.array([1.0, -0.1, 0.1, -5.0, 10.0, -20.0])
    params, x = jax.device_put((Params(w, b, v), np.array([[0.01]])))
    found = gradient_steps(params, x, bracket=300.0)
    assert_close(found.size, [0.3 + 0.97 / 5.1 - 0.01], rtol=1e-4)


def test_broken_points_have_a_status():
    x = np.array([[2.0, 1.0], [np.nan, 1.0], [np.inf, 0.0]], np.float32)
    found = gradient_steps(neuron_and_constant(6.0), x)
    assert found.status.tolist() == [StepStatus.FLIPPED, *[StepStatus.NON_FINITE] * 2]
    assert np.isnan(found.eta).tolist() == [False, True, True]


def test_every_status_has_a_sentence():
    assert all(status.describe() for status in StepStatus)


@pytest.mark.parametrize("scale", [1e-24, 1e20])
def test_sizes_do_not_depend_on_the_scale_of_the_output(lazy, scale):
    params, x = lazy
    found, scaled = (gradient_steps(params._replace(v=c * params.v), x) for c in (1.0, scale))
    assert_close(scaled.status, found.status)
    assert_close(scaled.size, found.size, rtol=1e-4)


@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_sizes_scale_with_the_input(lazy, unit):
    params, x = lazy
    found = gradient_steps(params, x)
    scaled = gradient_steps(params._replace(w=params.w / unit), unit * x)
    assert_close(scaled.status, found.status)
    assert_close(scaled.size / unit, found.size, rtol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bracket", [-1.0, 0.0, float("inf"), float("nan")])
def test_bad_brackets_are_refused(lazy, bracket):
    with pytest.raises(ValueError, match="bracket must be positive and finite, got"):
        gradient_steps(*lazy, bracket)


@pytest.mark.parametrize(
    "bend", [*(pytest.param(bend, marks=pytest.mark.slow) for bend in (0.1, 1.0)), 0.3]
)
def test_crossings_that_are_certain_are_the_first(bend):
    """Rays that bend: the more, the more often Newton's method finds a later zero, or none."""
    n, k, bracket = 400, 12, 4.0
    shapes = [(n,), (k,), (n, k), (n, k)]
    signs, weight, start, slope = (np.array(normal(i, *shape)) for i, shape in enumerate(shapes))
    signs, weight[0], slope = np.sign(signs), 2, np.float32(bend) * slope
    # Every sum is positive at 0.
    value = signs * (np.maximum(start, 0) @ weight)
    signs = np.where(value < 0, -signs, signs)
    rays = Ray(start, slope, signs[:, None] * weight[None])
    zeros, brackets = np.zeros(n, np.float32), np.full(n, bracket, np.float32)
    expected = np.asarray(jax.jit(jax.vmap(first_flip))(rays, zeros, brackets)[0])
    crossings = jax.jit(first_crossings)(start, slope, weight, signs, brackets)
    found, certain = map(np.asarray, crossings)
    assert np.isfinite(expected[certain]).sum() > 20
    assert np.isinf(expected[certain]).sum() > 20
    if bend == 1:
        assert (~certain).sum() > 10
    finite = certain & np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found[certain]), np.isfinite(expected[certain]))
    assert_close(found[finite], expected[finite], rtol=2e-3, atol=1e-5)


def test_a_ray_that_bends_is_known_part_by_part(monkeypatch):
    """Along the gradient of a wide network in few dimensions neurons bend the sum, and cancel."""
    params, x = jax.device_get((cases.lazy(3, 20_000, 5), normal(4, 40, 5)))
    output, gradient = map(np.asarray, jax.jit(value_and_input_gradient)(params, x))
    signs, n = np.sign(output), x.shape[0]
    toward = -signs[:, None] * gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
    start, slope, brackets = x @ params.w.T, toward @ params.w.T, np.full(n, 3, np.float32)
    along = Ray(start, slope, signs[:, None] * params.v[None])
    flips = jax.jit(jax.vmap(first_flip))(along, np.zeros(n, np.float32), brackets)
    expected = np.asarray(flips[0])

    def found():
        crossings = jax.jit(lambda *given: first_crossings(*given))
        return map(np.asarray, crossings(start, slope, params.v, signs, brackets))

    sizes, certain = found()
    assert certain.all()
    finite = np.isfinite(expected)
    assert 30 < finite.sum() < n
    assert np.isinf(sizes[~finite]).all()
    # Twenty thousand terms of float32 cancel, in one order here and in another there.
    assert_close(sizes[finite], expected[finite], rtol=3e-5)
    monkeypatch.setattr(rays, "LOOKS", 1)
    _, certain = found()
    assert certain.sum() < 35


def test_a_dip_before_the_zero_that_newton_finds_is_not_overlooked():
    # 1 - c/10 - 5 relu(c - 0.3) + 10 relu(c - 0.6) - 20 relu(c - 1.2): below 0 from 0.490 to 0.714
    # and from 1.358 on, where Newton's method ends.
    neurons = [(1, 0, 1), (0, 1, -0.1), (-0.3, 1, -5), (-0.6, 1, 10), (-1.2, 1, -20)]
    start, slope, weight = np.array(neurons, np.float32).T
    found, certain = jax.jit(first_crossings)(
        start[None], slope[None], weight, np.ones(1, np.float32), np.full(1, 3, np.float32)
    )
    assert_close(found, [1.2 + 2.38 / 15.1], rtol=1e-4)
    assert not certain[0]
    exact = jax.jit(first_flip)(Ray(start, slope, weight), jnp.float32(0), jnp.float32(3))
    assert_close(exact, (0.3 + 0.97 / 5.1, 0.6 + 0.56 / 4.9), rtol=1e-5)


def test_no_points_have_no_steps(lazy):
    found = gradient_steps(lazy[0], jnp.zeros((0, 8)))
    assert {leaf.shape for leaf in found} == {(0,)}
