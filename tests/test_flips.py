"""Flips along a ray against float64, where they are not monotone, and what must not change them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import normal
from rays import EPS, classified, line, on_line, outputs64, reference, rounding

from jaxkkt import datasets, networks, perturbations, single, training
from jaxkkt.networks import Params
from jaxkkt.perturbations import (
    FlipStatus,
    flip_size_bisection,
    flip_sizes_exact,
    rays,
    universal,
)

# --- flips that are not monotone ---

# +1 for t >= 2, -1 at 1, +1 at 0, -1 for t <= -1: zero at 1.5, 0.5, -0.5. A sample at p is flipped
# for c in (p - 1.5, p - 0.5) and beyond p + 0.5.
ZIGZAG = line((1, 1, 2), (1, 0, -4), (1, -1, 4), (1, -2, -2), constant=-1.0)


@pytest.mark.parametrize(
    ("points", "size"),
    [
        ([3.0], 1.5),
        ([3.0, 3.5], 2.0),  # before the first un-flips
        ([3.0, 4.2], 3.5),  # the first un-flipped at 2.7; flips again at 3.5
        ([4.2, 3.0], 3.5),
        ([3.0, 4.0], 4.5),  # one un-flips at 2.5 and 3.5 where the other flips
        ([3.0, 4.999], 3.5),  # the first flips again 0.001 later
        ([4.2, 4.5, 5.3], 5.8),  # one is un-flipped at each of 3.8, 4.7 and 5.0
    ],
)
def test_all_at_once_where_samples_unflip(points, size):
    flips = on_line(ZIGZAG, points)
    points = np.array(points)
    np.testing.assert_allclose(flips.sizes, points - 1.5, rtol=8 * EPS)
    np.testing.assert_allclose(flips.unflips, points - 0.5, rtol=8 * EPS)
    assert flips.size == pytest.approx(size, rel=8 * EPS)
    assert flips.status == FlipStatus.FLIPPED
    assert not flips.monotone


def test_misclassified_that_unflips():
    flips = on_line(ZIGZAG, [1.0])
    assert flips.sizes[0] == flips.size == 0
    assert flips.unflips[0] == pytest.approx(0.5, rel=8 * EPS)
    # Together with one flipped from 1.0 on, they meet where the first flips again.
    assert on_line(ZIGZAG, [1.0, 2.5]).size == pytest.approx(1.5, rel=8 * EPS)


def test_never_all_at_once():
    flips = on_line(ZIGZAG, [3.0, 4.2], bracket=3.4)
    np.testing.assert_allclose(flips.sizes, [1.5, 2.7], rtol=8 * EPS)
    assert flips.size == jnp.inf
    assert flips.status == FlipStatus.NO_FLIP
    assert not flips.monotone


def test_monotone_only_up_to_the_bracket():
    assert on_line(ZIGZAG, [3.0], bracket=2.4).monotone
    assert not on_line(ZIGZAG, [3.0], bracket=2.6).monotone


def test_unchosen_samples_have_sizes_but_no_say():
    params, x, y, u, chosen = jax.tree.map(np.asarray, classified(2))
    flips = flip_sizes_exact(params, x, y, u, chosen)
    sizes = flips.sizes.tolist()
    assert len(set(sizes)) > 2
    for i in range(y.size):
        alone = flip_sizes_exact(params, x, y, u, np.arange(y.size) == i)
        np.testing.assert_array_equal(alone.sizes, flips.sizes)
        assert float(alone.size) == sizes[i]


@pytest.mark.slow
def test_random_networks_against_float64():
    """Among them flips that are not monotone, not at once, or missing."""
    bracket = 12.0
    many = [classified(seed, d=2, m=5, k=12) for seed in range(400)]
    cases = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    found = jax.jit(jax.vmap(partial(flip_sizes_exact, bracket=bracket)))(*cases)
    cases, found = jax.tree.map(np.asarray, (cases, found))
    intersected = unflipped = missing = 0
    for seed in range(400):
        params, x, y, u, chosen, flips = jax.tree.map(lambda a, i=seed: a[i], (*cases, found))
        sizes, unflips, size = reference(params, x, y, u, chosen, bracket)
        for mine, exact in ((flips.sizes, sizes), (flips.unflips, unflips)):
            real = np.isfinite(exact)
            np.testing.assert_array_equal(np.isfinite(mine), real)
            c = np.where(real, exact, 1.0)
            error = np.abs(np.where(real, mine, 1.0) - c)
            assert np.all(error <= rounding(params, x, y, u, c)), (seed, mine, exact)
        assert flips.size == pytest.approx(size, rel=1e-5), seed
        first, stay = sizes[chosen].max(), np.isinf(unflips[chosen]).all()
        assert flips.monotone == (stay and np.isfinite(first))
        intersected += first < size < np.inf
        unflipped += not stay
        missing += np.isinf(size)
    assert intersected >= 3
    assert unflipped >= 30
    assert missing >= 30


def test_exact_against_a_fine_grid():
    params, x, y, u, chosen = jax.tree.map(np.asarray, classified(5))
    bracket = 4 * float(np.linalg.norm(x, axis=1).max())
    flips = flip_sizes_exact(params, x, y, u, chosen)
    grid, spacing = np.linspace(0, bracket, 20_001, retstep=True)
    flipped = outputs64(params, x, y, u, grid) < 0
    first = np.where(flipped.any(0), grid[flipped.argmax(0)], np.inf)
    assert np.isfinite(first).any()
    real = np.isfinite(first)
    np.testing.assert_array_equal(np.isfinite(flips.sizes), real)
    late = first[real] - np.asarray(flips.sizes)[real]
    assert np.all((late >= -1e-5) & (late <= spacing))


# --- trained networks ---


@pytest.fixture(
    scope="module",
    params=[(20, 11, 50), pytest.param((100, 100, 300), marks=pytest.mark.slow)],
    ids=str,
)
def trained(request):
    d, m, k = request.param

    @jax.jit
    def drawn():
        params = networks.torch_linear(jax.random.key(k), k, d)
        return params, *datasets.sphere(jax.random.key(d), m, d)

    @jax.jit
    def attacked(params, x, y):
        chosen = perturbations.on_margin(networks.margins(params, x, y))
        return params, x, y, perturbations.universal_direction(x, y, chosen), chosen

    params, x, y = drawn()
    run = single.train(params, x, y)
    assert run.status == training.Status.CONVERGED
    return attacked(run.params, x, y)


def test_bisection_equals_exact_on_trained_networks(trained):
    exact, bisected = flip_sizes_exact(*trained), flip_size_bisection(*trained)
    assert exact.monotone
    assert exact.status == bisected.status == FlipStatus.FLIPPED
    assert float(bisected.size) == pytest.approx(float(exact.size), rel=1e-5)
    params, x, y, u, chosen = jax.tree.map(np.asarray, trained)
    assert float(exact.size) == np.asarray(exact.sizes)[chosen].max()
    # Beyond the size all are flipped, before it they are not; in float64, so no rounding in it.
    around = outputs64(params, x, y, u, float(exact.size) * np.array([1 - 1e-5, 1 + 1e-5]))
    assert around[0, chosen].max() > 0 > around[1, chosen].max()


def test_exact_sizes_of_trained_networks_against_float64(trained):
    params, x, y, u, chosen = jax.tree.map(np.asarray, trained)
    flips = flip_sizes_exact(*trained, bracket=20.0)
    some = slice(0, 25)
    sizes = reference(params, x[some], y[some], u, chosen[some], 20.0)[0]
    error = np.abs(np.asarray(flips.sizes)[some] - sizes)
    assert np.all(error <= rounding(params, x[some], y[some], u, sizes))
    assert np.all(error <= 1e-5 * sizes)


# --- what must not change the answer ---


def assert_same(a, b, tolerance):
    for one, other in ((a.sizes, b.sizes), (a.unflips, b.unflips), (a.size, b.size)):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert a.monotone == b.monotone
    assert a.status == b.status


@pytest.fixture(params=[0, 5, 12])
def case(request):
    """A classified network, its flips, and how far rounding alone may move them."""
    params, x, y, u, chosen = jax.tree.map(np.asarray, classified(request.param))
    flips = jax.tree.map(np.asarray, flip_sizes_exact(params, x, y, u, chosen))
    tolerance = 0.0
    for sizes in (flips.sizes, flips.unflips):
        c = np.where(np.isfinite(sizes), sizes, 1.0)
        bound = rounding(params, x, y, u, c)
        tolerance = max(tolerance, 2 * bound[np.isfinite(sizes)].max(initial=0))
    assert np.isfinite(flips.sizes).sum() >= 2
    assert tolerance < 1e-3
    return params, x, y, u, chosen, flips, tolerance


def test_permuted_neurons_and_samples(case):
    params, x, y, u, chosen, flips, tolerance = case
    neurons = np.random.default_rng(0).permutation(params.v.size)
    shuffled = Params(*(p[neurons] for p in params))
    assert_same(flip_sizes_exact(shuffled, x, y, u, chosen), flips, tolerance)
    order = np.random.default_rng(1).permutation(y.size)
    moved = flip_sizes_exact(params, x[order], y[order], u, chosen[order])
    as_before = flips._replace(sizes=flips.sizes[order], unflips=flips.unflips[order])
    assert_same(moved, as_before, tolerance)


def test_inputs_rotated_with_the_weights(case):
    params, x, y, u, chosen, flips, tolerance = case
    q = np.linalg.qr(np.random.default_rng(2).normal(size=(x.shape[1],) * 2))[0].astype(np.float32)
    rotated = flip_sizes_exact(params._replace(w=params.w @ q), x @ q, y, u @ q, chosen)
    assert_same(rotated, flips, 4 * tolerance)  # the weights themselves are rounded again


@pytest.mark.parametrize("scale", [4.0, 1 / 3])
def test_rescaled_parameters(case, scale):
    params, x, y, u, chosen, flips, tolerance = case
    scaled = Params(*(p * np.float32(scale) for p in params))
    assert_same(flip_sizes_exact(scaled, x, y, u, chosen), flips, tolerance)


def test_many_neurons_that_switch_off_one_by_one_flip_nothing():
    """Outputs that fall to exactly 0 and are nowhere negative: a quarter of them flipped, where
    sums of 40,000 bends are below 0 by their rounding."""
    rng = np.random.default_rng(0)
    w, x = (np.abs(rng.normal(size=(n, 3))).astype(np.float32) for n in (40_000, 16))
    b, v = (rng.normal(size=40_000).astype(np.float32) for _ in range(2))
    params, u = Params(w, 0.1 * b, np.abs(v)), np.full(3, 3**-0.5, np.float32)
    flips = flip_sizes_exact(params, x + 0.5, np.ones(16, np.float32), u, np.ones(16, bool))
    assert np.isinf(flips.sizes).all()


def test_outputs_too_large_to_tell_their_rounding_are_no_missing_flips():
    """A flip at 1 was NO_FLIP, with the advice to raise the bracket."""
    v = jnp.array([1e19, -1e19], jnp.float32)
    x, one = jnp.ones((1, 1), jnp.float32), jnp.ones(1, jnp.float32)
    params = networks.Params(v[:, None], 0 * v, v)  # N(x) = 1e38 x
    flips = flip_sizes_exact(params, x, one, one, jnp.array([True]), 3.0)
    assert flips.status == FlipStatus.NON_FINITE
    assert np.isnan(flips.size)
    assert (
        perturbations.gradient_steps(params, x, 3.0).status == perturbations.StepStatus.NON_FINITE
    )


@pytest.mark.parametrize("unit", [2.0**-70, 2.0**62])
def test_points_in_units_whose_squares_are_not_representable(case, unit):
    """The direction was 0 or NaN, and the default bracket 0 or infinite."""
    params, x, y, u, chosen, flips, _ = case
    direction = perturbations.universal_direction(unit * x, y, chosen)
    np.testing.assert_allclose(direction, u, rtol=0, atol=4 * EPS)
    moved = params._replace(b=unit * params.b)
    for size in (
        flip_sizes_exact(moved, unit * x, y, u, chosen).size,
        flip_size_bisection(moved, unit * x, y, u, chosen).size,
    ):
        assert size / unit == pytest.approx(flips.size, rel=1e-5)


def test_flipped_labels_with_flipped_outputs(case):
    params, x, y, u, chosen, flips, tolerance = case
    u_back = perturbations.universal_direction(x, -y, chosen)
    np.testing.assert_array_equal(u_back, -u)
    assert_same(
        flip_sizes_exact(params._replace(v=-params.v), x, -y, u_back, chosen), flips, tolerance
    )


def test_padding_is_inert(case):
    params, x, y, u, chosen, flips, tolerance = case
    (m, d), k = x.shape, params.v.size
    data = jax.jit(lambda data: datasets.pad(data, m + 3, d + 2))(datasets.Dataset(x, y))
    wide = jax.jit(lambda params: networks.pad(params, k + 24, d + 2))(params)
    everybody = np.append(chosen, [True] * 3)  # padded samples chosen by mistake
    arguments = (wide, *data, np.pad(u, (0, 2)), everybody)
    padded = jax.tree.map(np.asarray, flip_sizes_exact(*arguments))
    assert np.isnan(padded.sizes[m:]).all()
    assert np.isnan(padded.unflips[m:]).all()
    cut = padded._replace(sizes=padded.sizes[:m], unflips=padded.unflips[:m])
    assert_same(cut, flips, tolerance)
    bisected = flip_size_bisection(params, x, y, u, chosen)
    assert flip_size_bisection(*arguments).size == pytest.approx(float(bisected.size), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [5], indirect=True)
def test_blocks_of_samples_change_nothing(case, monkeypatch):
    params, x, y, u, chosen, flips, tolerance = case
    monkeypatch.setattr(
        perturbations.universal, "BLOCK_ELEMENTS", 4 * params.v.size
    )  # 4 + 4 + 1 samples
    x = jnp.asarray(x)
    arguments = (params, x, y, u, chosen, perturbations.universal._bracket(x, None))

    def anew(*arguments):  # JAX would reuse the trace of the function itself
        return perturbations.universal._exact.__wrapped__(*arguments)

    assert "f32[4,40]" in str(jax.make_jaxpr(anew)(*arguments))
    assert_same(jax.jit(anew)(*arguments), flips, tolerance)
    # Blocks of padding alone are skipped.
    x, y, chosen = (jnp.concatenate([jnp.zeros_like(a[:8]), a]) for a in (x, y, chosen))
    padded = jax.jit(anew)(params, x, y, u, chosen, arguments[-1])
    assert_same(
        padded._replace(sizes=padded.sizes[8:], unflips=padded.unflips[8:]), flips, tolerance
    )
    assert jnp.isnan(padded.sizes[:8]).all()


# --- without a sort ---


def test_rays_that_stay_negative_for_certain_do():
    """Rays of random neurons: of those that are told to stay below 0 from their first flip on none
    is above 0 again, and of those that stay most are told."""
    n, k, bracket = 2000, 12, 6.0
    signs = np.sign(normal(0, n))
    weight = np.array(normal(1, k))
    weight[0] = 2
    pre, slope = normal(2, n, k), normal(3, n, k)
    signs = np.where(signs * (np.maximum(pre, 0) @ weight) < 0, -signs, signs)
    along = rays.Ray(pre, slope, signs[:, None] * weight[None])
    zeros, brackets = np.zeros(n, np.float32), np.full(n, bracket, np.float32)
    flips, unflips = jax.jit(jax.vmap(rays.first_flip))(along, zeros, brackets)
    told = jax.jit(rays.stay_negative)(pre, slope, weight, signs, flips, brackets)
    stays = np.isinf(unflips) & np.isfinite(flips)
    assert stays.sum() > 100
    assert (np.isfinite(flips) & ~stays).sum() > 20
    assert not np.any(np.asarray(told) & ~stays)
    assert np.asarray(told).sum() > 0.8 * stays.sum()


def test_a_rise_after_the_flip_is_not_overlooked():
    """1 - c + 3 relu(c - 2) - 4 relu(c - 2.75): above 0 between 2.5 and 3.125, at 4 below."""
    neurons = [(1.0, 0.0, 1.0), (0.0, 1.0, -1.0), (-2.0, 1.0, 3.0), (-2.75, 1.0, -4.0)]
    pre, slope, weight = np.array(neurons, np.float32).T
    one = np.ones(1, np.float32)
    stay_negative = jax.jit(rays.stay_negative)

    def stay(bracket):
        told = stay_negative(pre[None], slope[None], weight, one, one, np.float32(bracket) * one)
        return told.item()

    assert stay(1.9)
    assert stay(2.4)
    assert not stay(2.6)
    assert not stay(4.0)
    # The same along a line, whose first flip is certain.
    params = line((1, 5, 1), (-1, -1, 3), (-1, -1.75, -4), constant=-5.0)
    flips = on_line(params, [1.0], bracket=5.0)
    assert (flips.sizes[0], flips.unflips[0]) == pytest.approx((1.0, 2.5), rel=8 * EPS)
    assert not flips.monotone
    assert on_line(params, [1.0], bracket=2.4).monotone


def test_trained_networks_need_no_sort(trained, monkeypatch):
    exact = flip_sizes_exact(*trained)
    sorts = []

    def sort(ray, after, bracket):
        sorts.append(ray)
        return jnp.nan * after, jnp.nan * after

    monkeypatch.setattr(universal, "first_flip", sort)
    universal._exact.clear_cache()
    again = flip_sizes_exact(*trained)
    universal._exact.clear_cache()
    assert sorts  # it is there, for those that need it
    for mine, other in zip(again, exact, strict=True):
        np.testing.assert_allclose(mine, other, rtol=8 * EPS)
    assert np.isfinite(again.sizes).all()
