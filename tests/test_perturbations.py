"""Flips along a ray: closed forms, float64 references, and what must not change them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets, networks, perturbations, training
from jaxkkt.networks import Params
from jaxkkt.perturbations import FlipStatus, flip_size_bisection, flip_sizes_exact

EPS = float(np.finfo(np.float32).eps)


def line(*neurons, constant=0.0):
    """A network on the real line from at most five (w, b, v), plus a constant."""
    unused = [(0.0, 0.0, 0.0)] * (5 - len(neurons))  # one shape to compile for all
    w, b, v = np.array([*neurons, (0.0, 1.0, constant), *unused], np.float32).T
    return Params(jnp.array(w[:, None]), jnp.array(b), jnp.array(v))


def on_line(params, points, labels=None, bracket=20.0, direction=1.0, search=flip_sizes_exact):
    x = jnp.array(points, jnp.float32)[:, None]
    y = jnp.ones(x.shape[0]) if labels is None else jnp.array(labels, jnp.float32)
    return search(params, x, y, jnp.array([direction]), y != 0, bracket)


def classified(seed=0, d=7, m=9, k=40):
    """A random network, points labelled by its own outputs, a direction, and an odd choice."""
    keys = jax.random.split(jax.random.key(seed), 3)
    params = networks.gaussian(keys[0], k, d, 3.0)
    x = jax.random.normal(keys[1], (m, d)) * jnp.linspace(0.5, 2, m)[:, None]
    y = jnp.where(networks.apply(params, x) > 0, 1.0, -1.0)
    chosen = jax.random.bernoulli(keys[2], 0.7, (m,)).at[0].set(True)
    return params, x, y, perturbations.universal_direction(x, y, chosen), chosen


def outputs64(params, x, y, direction, c):
    """y_i N(x_i - y_i c u) in float64, (sizes, m); 0 where only rounding is left."""
    w, b, v, x, y, u = (np.asarray(a, np.float64) for a in (*params, x, y, direction))
    moved = x - y[:, None] * c[:, None, None] * u
    outputs = y * (np.maximum(moved @ w.T + b, 0) @ v)
    return np.where(np.abs(outputs) < 1e-13 * np.abs(v).sum(), 0.0, outputs)


def zeros64(params, x, y, direction, bracket):
    """Where outputs change sign, 0 and the bracket: between a sample's breakpoints it is linear."""
    w, b, u = (np.asarray(a, np.float64) for a in (params.w, params.b, direction))
    found = [0.0, bracket]
    for xi, yi in zip(np.asarray(x), np.asarray(y), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            at = (w @ xi + b) / (yi * (w @ u))
        at = np.unique([0.0, *at[(at > 0) & (at < bracket)], bracket])
        f = outputs64(params, xi[None], yi[None], direction, at)[:, 0]
        n = np.flatnonzero((f[:-1] < 0) != (f[1:] < 0))
        found.extend(at[n] + (at[n + 1] - at[n]) * f[n] / (f[n] - f[n + 1]))
    return np.unique(found)


def reference(params, x, y, direction, chosen, bracket):
    """First flips, first un-flips and the flip of all at once: the signs between all zeros."""
    at = zeros64(params, x, y, direction, bracket)
    flipped = outputs64(params, x, y, direction, (at[:-1] + at[1:]) / 2) < 0

    def first(where):
        return np.where(where.any(0), at[where.argmax(0)], np.inf)

    seen = np.cumsum(flipped, axis=0) > 0
    everybody = flipped[:, np.asarray(chosen)].all(axis=1)
    return first(flipped), first(seen & ~flipped), first(everybody[:, None])[0]


def rounding(params, x, y, direction, c, slack=8):
    """What float32 may do to a zero at c: the rounding of the terms over the slope there."""
    w, b, v, x, u = (np.asarray(a, np.float64) for a in (*params, x, direction))
    pre, along = np.abs(x) @ np.abs(w.T) + np.abs(b), np.abs(w @ u)
    terms = pre @ np.abs(v) + c * (along @ np.abs(v))
    h = 1e-6 * c
    ends = [np.diagonal(outputs64(params, x, y, direction, c + s * h)) for s in (-1, 1)]
    return slack * EPS * terms / np.abs((ends[1] - ends[0]) / (2 * h))


# --- who is on the margin, and where to ---


def test_on_margin_takes_the_slack_and_leaves_padding_out():
    q = jnp.array([2.0, 2.19, 2.21, 0.0, 5.0])
    mask = jnp.array([True, True, True, False, True])
    np.testing.assert_array_equal(perturbations.on_margin(q, mask=mask), [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(perturbations.on_margin(q, 3.0, mask), [1, 1, 1, 0, 1])


@pytest.mark.parametrize("q", [[1.0, -1.0], [0.0, 1.0], [jnp.nan, 1.0]])
def test_nobody_is_on_the_margin_of_a_network_that_errs(q):
    assert not perturbations.on_margin(jnp.array(q)).any()


def test_slack_below_one_is_refused():
    with pytest.raises(ValueError, match=r"slack must be at least 1, got 0\.9"):
        perturbations.on_margin(jnp.ones(3), 0.9)


def test_universal_direction_is_the_unit_sum_over_the_chosen():
    x = jnp.array([[1.0, 2.0], [3.0, -1.0], [9.0, 9.0]])
    y = jnp.array([1.0, -1.0, 1.0])
    u = perturbations.universal_direction(x, y, jnp.array([True, True, False]))
    np.testing.assert_allclose(u, np.array([-2, 3]) / np.sqrt(13), rtol=1e-6)
    nobody = perturbations.universal_direction(x, y, jnp.zeros(3, bool))
    np.testing.assert_array_equal(nobody, [0, 0])
    cancels = perturbations.universal_direction(x[:1].repeat(2, 0), y[:2], jnp.ones(2, bool))
    np.testing.assert_array_equal(cancels, [0, 0])


# --- closed forms ---


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_two_neurons_that_make_the_identity(search, label):
    identity = line((1, 0, 1), (-1, 0, -1))  # y N(x - y c) = y x - c
    flip = on_line(identity, [3.0 * label], [label], search=search)
    assert flip.size == pytest.approx(3, rel=4 * EPS)
    assert flip.status == FlipStatus.FLIPPED


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_breakpoint_before_the_flip(search):
    # N(t) = 0.7 t - 1.9 relu(0.3 - t) for t > 0: at t = 0.57 / 2.6 the output is 0.
    params = line((1, 0, 0.7), (-1, 0.3, -1.9))
    assert on_line(params, [5.0], search=search).size == pytest.approx(5 - 0.57 / 2.6, rel=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_one_neuron_has_one_sign_and_never_flips(search):
    # At c = 3 the output reaches 0 and stays: exactly 0 is not flipped.
    flip = on_line(line((2.3, -0.1, 0.7)), [3.0], search=search)
    assert flip.size == jnp.inf
    assert flip.status == FlipStatus.NO_FLIP


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("scale", [1.0, 0.37, 1e4])
def test_exactly_zero_is_not_flipped_so_the_size_ends_the_plateau(search, scale):
    # N = 0.3 relu(t/0.7 - 1) - 0.9 relu(-1.1 t - 1) vanishes for -1/1.1 <= t <= 0.7.
    params = line((scale / 0.7, -scale, 0.3), (-1.1 * scale, -scale, -0.9))
    assert on_line(params, [3.1], search=search).size == pytest.approx(3.1 + 1 / 1.1, rel=8 * EPS)


def test_zero_at_the_start_flips_at_once_or_only_later():
    identity = line((1, 0, 1), (-1, 0, -1))
    assert on_line(identity, [0.0]).size == 0
    # N = relu(t) - relu(-t - 1): 0 at the start, and until t = -1.
    assert on_line(line((1, 0, 1), (-1, -1, -1)), [0.0]).size == pytest.approx(1, rel=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_misclassified_has_size_zero(search):
    identity = line((1, 0, 1), (-1, 0, -1))
    assert on_line(identity, [-3.0], search=search).size == 0
    both = on_line(identity, [-3.0, 2.0], search=search)
    assert both.size == pytest.approx(2, rel=4 * EPS)
    assert both.status == FlipStatus.FLIPPED
    if search is flip_sizes_exact:
        np.testing.assert_allclose(both.sizes, [0, 2], rtol=4 * EPS)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_no_flip_within_the_bracket(search):
    identity = line((1, 0, 1), (-1, 0, -1))
    beyond = on_line(identity, [1.0, 3.0], bracket=2.9, search=search)
    assert beyond.size == jnp.inf
    assert beyond.status == FlipStatus.NO_FLIP
    # Weights that do not see the direction have slope 0 along it.
    params = Params(jnp.array([[0.0, 1.0]]), jnp.zeros(1), jnp.ones(1))
    x, y = jnp.ones((1, 2)), jnp.ones(1)
    blind = search(params, x, y, jnp.array([1.0, 0.0]), jnp.ones(1, bool))
    assert blind.size == jnp.inf
    assert blind.status == FlipStatus.NO_FLIP


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_default_bracket_is_four_times_the_longest_input(search):
    identity = line((1, 0, 1), (-1, 0, -1), constant=8.9)  # flips at c = x + 8.9
    assert on_line(identity, [3.0, 1.0], bracket=None, search=search).size == pytest.approx(11.9)
    assert on_line(identity, [2.9, 1.0], bracket=None, search=search).size == jnp.inf


def test_many_neurons_that_die_out_leave_exactly_zero():
    """No flip, though prefix sums of 300 terms end at some rounding below 0."""
    keys = jax.random.split(jax.random.key(3), 3)
    w, b, v = (jax.random.uniform(key, (300,), minval=0.1) for key in keys)
    flips = on_line(Params(w[:, None], b, v), [3.0, 4.0, 5.0, 6.0, 7.0])
    np.testing.assert_array_equal(flips.sizes, jnp.inf)
    np.testing.assert_array_equal(flips.unflips, jnp.inf)
    assert flips.status == FlipStatus.NO_FLIP


def test_zero_far_below_the_first_output_is_exact():
    # N = 1e4 (...) + t - 1, where (...) is of order 1 at the start and 0 at the flip, t = 1.
    high = [(0.7, -1.47, 1e4), (1.3, -2.99, 0.7e4), (1.1, -2.13, 0.3e4)]
    params = line((1, 0, 1), *high, constant=-1.0)
    assert on_line(params, [3.1]).size == pytest.approx(2.1, rel=4 * EPS)


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
    params, x, y, u, chosen = classified(2)
    flips = flip_sizes_exact(params, x, y, u, chosen)
    assert len(set(flips.sizes.tolist())) > 2
    for i in range(y.size):
        alone = flip_sizes_exact(params, x, y, u, jnp.arange(y.size) == i)
        np.testing.assert_array_equal(alone.sizes, flips.sizes)
        assert alone.size == flips.sizes[i]


def test_random_networks_against_float64():
    """Among them flips that are not monotone, not at once, or missing."""
    bracket = 12.0
    cases = jax.vmap(partial(classified, d=2, m=3, k=12))(jnp.arange(400))
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
    params, x, y, u, chosen = classified(5)
    bracket = 4 * float(jnp.linalg.norm(x, axis=1).max())
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


@pytest.fixture(scope="module", params=[(20, 11, 50), (100, 100, 300)], ids=str)
def trained(request):
    d, m, k = request.param
    x, y = datasets.sphere(jax.random.key(d), m, d)
    run = training.train(networks.torch_linear(jax.random.key(k), k, d), x, y)
    assert run.status == training.Status.CONVERGED
    chosen = perturbations.on_margin(networks.margins(run.params, x, y))
    return run.params, x, y, perturbations.universal_direction(x, y, chosen), chosen


def test_bisection_equals_exact_on_trained_networks(trained):
    exact, bisected = flip_sizes_exact(*trained), flip_size_bisection(*trained)
    assert exact.monotone
    assert exact.status == bisected.status == FlipStatus.FLIPPED
    assert float(bisected.size) == pytest.approx(float(exact.size), rel=1e-5)
    params, x, y, u, chosen = trained
    assert float(exact.size) == float(exact.sizes[chosen].max())
    # Beyond the size all are flipped, before it they are not; in float64, so no rounding in it.
    around = outputs64(params, x, y, u, float(exact.size) * np.array([1 - 1e-5, 1 + 1e-5]))
    assert around[0, chosen].max() > 0 > around[1, chosen].max()


def test_exact_sizes_of_trained_networks_against_float64(trained):
    params, x, y, u, chosen = jax.tree.map(np.asarray, trained)
    flips = flip_sizes_exact(*trained, bracket=20.0)
    some = slice(0, 25)
    sizes = reference(params, x[some], y[some], u, chosen[some], 20.0)[0]
    error = np.abs(flips.sizes[some] - sizes)
    assert np.all(error <= rounding(params, x[some], y[some], u, sizes))
    assert np.all(error <= 1e-5 * sizes)


# --- what must not change the answer ---


def assert_same(a, b, tolerance):
    for one, other in ((a.sizes, b.sizes), (a.unflips, b.unflips), (a.size, b.size)):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert a.monotone == b.monotone
    assert a.status == b.status


@pytest.fixture(params=[0, 5, 11])
def case(request):
    """A classified network, its flips, and how far rounding alone may move them."""
    params, x, y, u, chosen = classified(request.param)
    flips = flip_sizes_exact(params, x, y, u, chosen)
    tolerance = 0.0
    for sizes in (flips.sizes, flips.unflips):
        c = np.where(np.isfinite(sizes), sizes, 1.0)
        bound = rounding(params, x, y, u, c)
        tolerance = max(tolerance, 2 * bound[np.isfinite(sizes)].max(initial=0))
    assert jnp.isfinite(flips.sizes).sum() >= 2
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
    scaled = Params(*(p * scale for p in params))
    assert_same(flip_sizes_exact(scaled, x, y, u, chosen), flips, tolerance)


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
    data = datasets.pad(datasets.Dataset(x, y), m + 3, d + 2)
    wide = networks.pad(params, k + 24, d + 2)
    everybody = jnp.concatenate([chosen, jnp.ones(3, bool)])  # padded samples chosen by mistake
    arguments = (wide, *data, jnp.pad(u, (0, 2)), everybody)
    padded = flip_sizes_exact(*arguments)
    assert jnp.isnan(padded.sizes[m:]).all()
    assert jnp.isnan(padded.unflips[m:]).all()
    cut = padded._replace(sizes=padded.sizes[:m], unflips=padded.unflips[:m])
    assert_same(cut, flips, tolerance)
    bisected = flip_size_bisection(params, x, y, u, chosen)
    assert flip_size_bisection(*arguments).size == pytest.approx(float(bisected.size), rel=1e-5)


@pytest.mark.parametrize("case", [5], indirect=True)
def test_blocks_of_samples_change_nothing(case, monkeypatch):
    params, x, y, u, chosen, flips, tolerance = case
    monkeypatch.setattr(perturbations, "BLOCK_ELEMENTS", 4 * params.v.size)  # 4 + 4 + 1 samples
    arguments = (params, x, y, u, chosen, perturbations._bracket(x, None))

    def anew(*arguments):  # JAX would reuse the trace of the function itself
        return perturbations._exact.__wrapped__(*arguments)

    assert "f32[4,40]" in str(jax.make_jaxpr(anew)(*arguments))
    assert_same(jax.jit(anew)(*arguments), flips, tolerance)


# --- degenerate runs, alone and among others ---


def degenerate():
    """Cases of one shape by the status each must have."""
    params, x, y, u, chosen = classified(0)
    one = jnp.zeros_like(chosen).at[0].set(True)
    cases = [(FlipStatus.FLIPPED, (params, x, y, u, one))]
    cases += [(FlipStatus.NO_FLIP, (params._replace(v=jnp.abs(params.v) * y[0]), x, y, u, one))]
    nobody = jnp.zeros_like(chosen)
    cases += [(FlipStatus.NOTHING_TO_FLIP, (params, x, y, u, nobody))]
    cases += [(FlipStatus.NOTHING_TO_FLIP, (params, x, y, 0 * u, chosen))]
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        for name, at in (("w", (3, 1)), ("b", 3), ("v", 3)):
            broken = params._replace(**{name: getattr(params, name).at[at].set(bad)})
            cases.append((FlipStatus.NON_FINITE, (broken, x, y, u, one)))
    cases.append((FlipStatus.NON_FINITE, (params, x.at[0, 0].set(jnp.nan), y, u, one)))
    cases.append((FlipStatus.NON_FINITE, (params, x, y, u.at[0].set(jnp.nan), one)))
    huge = Params(*(p * 1e25 for p in params))  # finite weights, infinite outputs
    cases.append((FlipStatus.NON_FINITE, (huge, x, y, u, one)))
    return [status for status, _ in cases], [case for _, case in cases]


def test_degenerate_runs_have_a_status_and_no_made_up_size():
    statuses, cases = degenerate()
    size = {FlipStatus.NO_FLIP: np.inf, FlipStatus.FLIPPED: None}
    for status, case in zip(statuses, cases, strict=True):
        for search in (flip_sizes_exact, flip_size_bisection):
            flip = search(*case)
            assert flip.status == status
            if status != FlipStatus.FLIPPED:
                np.testing.assert_equal(float(flip.size), size.get(status, np.nan))
        exact = flip_sizes_exact(*case)
        if status == FlipStatus.NON_FINITE:
            assert jnp.isnan(exact.sizes).all()
        if status != FlipStatus.FLIPPED:
            assert not exact.monotone
    nobody = flip_sizes_exact(*cases[2])  # still has sizes, sample by sample
    np.testing.assert_array_equal(nobody.sizes, flip_sizes_exact(*cases[0]).sizes)


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
def test_vmapped_equals_looped(search):
    statuses, cases = degenerate()
    # A lane that needs several trips among lanes that need one.
    cases += [classified(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)
    together = jax.jit(jax.vmap(search))(*stacked)
    np.testing.assert_array_equal(together.status[: len(statuses)], statuses)
    for i, case in enumerate(cases):
        for lane, alone in zip(together, search(*case), strict=True):
            # Rounding moves a crossing by a length that does not shrink with the size.
            np.testing.assert_allclose(lane[i], alone, rtol=1e-5, atol=1e-6)


def test_every_status_has_a_sentence():
    assert all(status.describe() for status in FlipStatus)
    assert "raise the bracket" in FlipStatus.NO_FLIP.describe()
    assert "no sample is chosen or the direction is zero" in FlipStatus.NOTHING_TO_FLIP.describe()
    assert "NaN or infinite" in FlipStatus.NON_FINITE.describe()


@pytest.mark.parametrize("search", [flip_sizes_exact, flip_size_bisection])
@pytest.mark.parametrize("bracket", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_bracket_is_refused(search, bracket):
    with pytest.raises(ValueError, match="bracket must be positive and finite, got"):
        search(*classified(), bracket=bracket)


def test_bad_trips_are_refused():
    with pytest.raises(ValueError, match="trips must be at least 1, got 0"):
        flip_size_bisection(*classified(), trips=0)


def test_trips_bound_the_error():
    identity = line((1, 0, 1), (-1, 0, -1))
    x = jnp.array([[3.0]])
    arguments = (identity, x, jnp.ones(1), jnp.ones(1), jnp.ones(1, bool), 16.0)
    assert flip_size_bisection(*arguments, trips=3).size == 4  # 8, 4 flip, 2 does not
    assert flip_size_bisection(*arguments, trips=5).size == 3.5


def test_second_call_does_not_compile():
    flip_sizes_exact(*classified(0))
    before = perturbations._exact._cache_size()
    flip_sizes_exact(*classified(1), bracket=3.0)
    assert perturbations._exact._cache_size() == before


# --- transfer ---


def test_transfer_tries_the_direction_of_a_on_the_margin_of_b():
    params, x, y, _, _ = classified(0, k=60)
    keys = jax.random.split(jax.random.key(9), 3)
    nearby = [jax.tree.map(lambda p, key=key: p + _noise(key, p), params) for key in keys]
    nearby[2] = nearby[2]._replace(v=-params.v)  # misclassifies: nobody on its margin
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nearby)
    flips = perturbations.transfer_matrix(stacked, x, y, slack=2.0)
    chosen = [perturbations.on_margin(networks.margins(p, x, y), 2.0) for p in nearby]
    assert (chosen[0] != chosen[1]).any()
    for a in range(3):
        u = perturbations.universal_direction(x, y, chosen[a])
        for b in range(3):
            alone = flip_sizes_exact(nearby[b], x, y, u, chosen[b])
            assert flips.status[a, b] == alone.status
            np.testing.assert_allclose(flips.size[a, b], alone.size, rtol=1e-5)
    assert flips.size[0, 1] != flips.size[1, 0]
    assert jnp.isfinite(flips.size[:2, :2]).all()
    np.testing.assert_array_equal(flips.status[2, :], FlipStatus.NOTHING_TO_FLIP)
    np.testing.assert_array_equal(flips.status[:, 2], FlipStatus.NOTHING_TO_FLIP)


def _noise(key, p):
    return 0.05 * jax.random.normal(key, p.shape) * jnp.std(p)
