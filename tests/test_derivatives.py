"""Derivatives of sizes that a search finds, against differences of the sizes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxkkt import datasets, kkt, lazy, networks, perturbations
from jaxkkt.networks import Params
from jaxkkt.theory import constructions


@pytest.fixture(autouse=True)
def in_double_precision():
    with jax.enable_x64(True):
        yield


@partial(jax.jit, static_argnums=(0, 1, 2))
def problem(width=30, dim=7, samples=9):
    """A network, points, the labels that it gives them, and a direction that flips some."""
    params = networks.torch_linear(jax.random.key(1), width, dim)
    x, _ = datasets.sphere(jax.random.key(0), samples, dim)
    params, x = jax.tree.map(lambda a: jnp.asarray(a, float), (params, x))
    y = jnp.sign(networks.apply(params, x))
    direction = jax.random.normal(jax.random.key(2), (dim,))
    return params, x, y, direction


def differs_from_differences(function, argument, steps=4):
    """How far the derivative along random directions is from differences, relative to the largest;
    and how far both modes are apart."""
    flat, back = ravel_pytree(argument)
    found = ravel_pytree(jax.jit(jax.grad(function))(argument))[0]
    forward = ravel_pytree(jax.jit(jax.jacfwd(function))(argument))[0]
    apart = np.abs(found - forward).max()
    along = np.random.default_rng(0).normal(size=(steps, flat.size))
    size = 1e-6
    at = jax.jit(lambda flat: function(back(flat)))
    flat = np.asarray(flat)
    numbers = [at(flat + size * z) - at(flat - size * z) for z in along]
    differences = np.array(numbers) / (2 * size)
    assert np.abs(differences).max() > 1e-3
    off = np.abs(along @ np.asarray(found) - differences).max() / np.abs(differences).max()
    return off, apart


@pytest.mark.slow
@pytest.mark.parametrize("which", ["size", "sizes", "unflips"])
def test_exact_flips_have_the_derivatives_of_where_the_output_is_zero(which):
    """Over network, points and direction."""
    params, x, y, direction = problem()
    found = perturbations.flip_sizes_exact(params, x, y, direction, y != 0)
    flip = jnp.isfinite(found.sizes)
    chosen = flip if which == "size" else y != 0  # the size at which those that flip have flipped
    moves = True if which == "size" else jnp.isfinite(getattr(found, which))
    assert np.any(moves)

    def size(given):
        params, x, direction = given
        flips = perturbations.flip_sizes_exact(params, x, y, direction, chosen, bracket=8.0)
        sizes = getattr(flips, which)
        weights = jnp.arange(1.0, 1 + sizes.size).reshape(sizes.shape)
        return jnp.sum(jnp.where(moves, weights * jnp.where(moves, sizes, 0), 0))

    off, apart = differs_from_differences(size, (params, x, direction))
    assert off < 1e-6
    assert apart < 1e-12


@pytest.mark.slow
def test_bisection_has_the_derivative_of_the_exact_size():
    params, x, y, direction = problem()
    flips = perturbations.flip_sizes_exact(params, x, y, direction, y != 0)
    chosen = jnp.isfinite(flips.sizes) & jnp.isinf(flips.unflips)
    assert chosen.any()

    def size(params, x, by):
        return by(params, x, y, direction, chosen).size

    exact = jax.grad(size, (0, 1))(params, x, perturbations.flip_sizes_exact)
    found = jax.grad(size, (0, 1))(params, x, perturbations.flip_size_bisection)
    assert max(float(jnp.abs(one).max()) for one in jax.tree.leaves(exact)) > 1e-3
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["size", "eta"])
def test_gradient_steps_have_the_derivatives_of_where_the_output_is_zero(which):
    """Over network and points, also where some do not flip."""
    given = problem()[:2]
    flipped = jnp.isfinite(perturbations.gradient_steps(*given, bracket=4.0).size)
    assert 3 < flipped.sum() < flipped.size

    def total(given):
        found = getattr(perturbations.gradient_steps(*given, bracket=4.0), which)
        return jnp.sum(jnp.where(flipped, found, 0))

    off, apart = differs_from_differences(total, given)
    assert off < 1e-6
    assert apart < 1e-10


@pytest.mark.slow
def test_second_derivatives():
    params, x, y, direction = problem()
    flips = perturbations.flip_sizes_exact(params, x, y, direction, y != 0)
    chosen = jnp.isfinite(flips.sizes)

    def size(direction):
        return perturbations.flip_sizes_exact(params, x, y, direction, chosen, bracket=8.0).size

    slope = jax.jit(jax.grad(size))
    found = jax.jit(jax.hessian(size))(direction)
    for row, step in zip(found, 1e-6 * np.eye(7), strict=True):
        difference = (slope(direction + step) - slope(direction - step)) / 2e-6
        np.testing.assert_allclose(row, difference, atol=1e-6 * np.abs(found).max())


@pytest.mark.slow
def test_sizes_that_do_not_move_have_a_derivative_of_zero():
    """What is misclassified, what never flips, padding."""
    params, x, y, direction = problem()
    y = y.at[0].multiply(-1).at[1].set(0)
    x = x.at[1].set(0)

    def sizes(params):
        return perturbations.flip_sizes_exact(params, x, y, direction, y != 0).sizes

    still = sizes(params)
    assert still[0] == 0
    assert np.isnan(still[1])
    assert np.isinf(still).any()
    moved = jax.jit(jax.jacrev(sizes))(params)
    for leaf in moved:
        assert not np.any(leaf[~((still > 0) & (still < np.inf))])
        assert np.isfinite(leaf).all()
    assert np.any(moved.w)


@pytest.mark.slow
def test_derivatives_of_a_batch_are_those_of_each():
    params, x, y, direction = problem()
    batch = jax.tree.map(lambda a: jnp.stack([a, 1.5 * a]), params)
    batch = batch._replace(b=batch.b.at[1].add(0.01))

    def total(params):
        flips = perturbations.flip_sizes_exact(params, x, y, direction, y != 0)
        return jnp.sum(jnp.where(jnp.isfinite(flips.sizes), flips.sizes, 0))

    found = jax.jit(jax.vmap(jax.grad(total)))(batch)
    for i in range(2):
        alone = jax.grad(total)(Params(*(leaf[i] for leaf in batch)))
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-9, atol=1e-12)


def test_radii_of_an_attack_have_no_derivative():
    params, x, y, _ = problem()

    def least(params):
        return perturbations.smallest_radii(params, x, y, 2.0, steps=3, trips=3).sum()

    assert jax.jit(least)(params) > 0
    for mode in (jax.grad, jax.jacfwd):
        with pytest.raises(TypeError, match="bisection finds has no derivative"):
            jax.eval_shape(mode(least), params)


def test_an_attack_has_derivatives_in_either_mode():
    params, x, y, _ = problem()

    def least(given):
        return perturbations.pgd(*given, y, 0.3, steps=5).margins.sum()

    off, apart = differs_from_differences(least, (params, x))
    assert off < 1e-6
    assert apart < 1e-12


@pytest.mark.slow
def test_a_polished_network_has_none_over_the_points():
    """It was NaN."""
    params, x, y, _ = problem()

    def margin(scale, network):
        return kkt.polish(network, scale * x, y).normalized_margin

    with pytest.raises(TypeError, match="has no derivative over the points"):
        jax.jacfwd(lambda scale: margin(scale, params))(1.0)
    over = jax.jacfwd(lambda scale: margin(1.0, params._replace(v=scale * params.v)))(1.0)
    assert np.isfinite(over)


@pytest.mark.slow
def test_distances_of_neurons_that_have_not_moved():
    """Forward mode gave NaN for those at a distance of 0."""
    params, *_ = problem()

    def distances(scale):
        return lazy.distances(params._replace(w=params.w.at[0].multiply(scale)), params)

    for mode in (jax.jacfwd, jax.jacrev):
        found = mode(distances)(1.1)
        assert found[0] > 0
        assert not np.any(found[1:])


@pytest.mark.slow
@pytest.mark.parametrize("side", ["one_sided", "clarke"])
def test_certificates_and_multipliers_have_derivatives_in_either_mode(side):
    """Over network and points, also of padding and of a sample that is there twice. JAX cannot go
    back through the solver's loop, and forwards it ended with rounding of 1e-6."""
    params, x, y, _ = problem(12, 6, 7)
    y = jnp.concatenate([y, y[:1], 0 * y[:2]])

    @jax.jit
    def number(given):
        params, x = given
        x = jnp.concatenate([x, x[:1], jnp.zeros((2, 6))])
        found = getattr(kkt.certificate(params, x, y, kink_tolerance=0.1, budget=(8, 4)), side)
        weights = kkt.multipliers(params, x, y), found.multipliers
        both = [w[:7].at[0].add(w[7]) for w in weights]  # of the two only the sum is unique
        squares = [jnp.vdot(w, jnp.arange(1.0, 8.0) * w) for w in both]
        return found.residual + found.slackness + sum(squares)

    off, apart = differs_from_differences(number, (params, x))
    assert off < 1e-6
    assert apart < 1e-10


@pytest.mark.slow
def test_multipliers_have_derivatives_in_single_precision():
    params, x, y, _ = problem(12, 6, 7)
    found = jax.grad(lambda w: kkt.multipliers(params._replace(w=w), x, y)[0])(params.w)
    with jax.enable_x64(False):
        narrow, x, y = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, x, y))
        single = jax.grad(lambda w: kkt.multipliers(narrow._replace(w=w), x, y)[0])(narrow.w)
    np.testing.assert_allclose(single, found, atol=1e-2 * np.abs(found).max())


def two_neurons(threshold):
    """relu(x) - relu(-x + threshold): 0 from 0 down to the threshold, and negative below."""
    w, v = jnp.array([[1.0], [-1.0]]), jnp.array([1.0, -1.0])
    return Params(w, jnp.stack([0.0 * threshold, threshold]), v)


@pytest.mark.parametrize(
    ("kind", "x64"),
    [("size", True), *((kind, False) for kind in ("size", "bisection", "steps", "guarantee"))],
)
def test_a_flip_behind_a_plateau_moves_with_it(kind, x64):
    """relu has no slope at its kink: the derivative was 0."""
    x, y, chosen = np.array([[1.0], [-3.0]]), np.array([1.0, -1.0]), np.array([True, False])
    direction = np.ones(1)

    def size(threshold):
        params, given = two_neurons(threshold), (x, y)
        if kind == "steps":
            return perturbations.gradient_steps(params, x[:1], 8.0).size[0]
        if kind == "guarantee":
            return constructions.guaranteed_sizes(params, x[:1], y[:1])[0]
        if kind == "bisection":
            found = perturbations.flip_size_bisection(params, *given, direction, chosen, 8.0)
            return found.size
        found = perturbations.flip_sizes_exact(params, *given, direction, chosen, 8.0)
        return (found.size + found.sizes[0]) / 2

    with jax.enable_x64(x64):
        x, y, direction = (a.astype(float if x64 else np.float32) for a in (x, y, direction))
        found, derivative = jax.jit(jax.value_and_grad(size))(np.asarray(-1.0, x.dtype))
    np.testing.assert_allclose((found, derivative), (2, -1), rtol=1e-6)


def test_the_end_of_a_flip_before_a_plateau_moves_with_it():
    """2 relu(x - 0.5) - relu(x - end): positive at 1, negative from 0.9 on down, 0 below `end`."""
    x, y, chosen = np.array([[1.0]]), np.array([1.0]), np.array([True])

    def unflip(end):
        params = Params(jnp.ones((2, 1)), -jnp.stack([0.5 + 0 * end, end]), jnp.array([2.0, -1.0]))
        return perturbations.flip_sizes_exact(params, x, y, jnp.ones(1), chosen, 8.0).unflips[0]

    np.testing.assert_allclose(jax.jit(jax.value_and_grad(unflip))(0.1), (0.9, -1.0))


def test_a_search_has_no_derivative():
    """It was 0."""
    params, x, y, direction = problem()

    def size(params):
        return jnp.min(constructions.attacks(params, x, y, x, y, direction).size)

    with pytest.raises(TypeError, match="a search has no derivative: differentiate flip_sizes_ex"):
        jax.eval_shape(jax.grad(size), params)
