from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets

EPS = float(np.finfo(np.float32).eps)
DRAWS = [datasets.sphere, datasets.gaussian]
COMPILED = {draw: jax.jit(draw, static_argnums=(1, 2)) for draw in (*DRAWS, datasets.unit_sphere)}
half_distances = jax.jit(datasets.half_distances)
X = np.array([[1.0, 2.0, 0.5], [-1.0, 0.25, 3.0], [0.0, 1.0, -2.0], [4.0, 1.0, 1.0]], np.float32)
Y = np.array([1, -1, -1, 1], np.float32)


def test_sphere_has_radius_sqrt_d_and_no_preferred_direction():
    m, d = 4000, 6
    x = np.asarray(COMPILED[datasets.sphere](jax.random.key(0), m, d).x, np.float64)
    # A norm of d rounded squares, one root and one product.
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), np.sqrt(d), rtol=(d + 3) * EPS)
    five_sigma = 5 / np.sqrt(m)
    assert np.abs(x.mean(axis=0)).max() < five_sigma
    # Entries of x x^T have variance below 1 off the diagonal and below 2 on it.
    assert np.abs(x.T @ x / m - np.eye(d)).max() < five_sigma * np.sqrt(2)
    # The fourth moment tells the sphere from a normalized cube: 3 d / (d + 2), not 9/5 or more.
    assert abs(np.mean(x**4) - 3 * d / (d + 2)) < 0.1


def test_gaussian_has_variance_one_over_d():
    m, d = 3000, 7
    x = np.asarray(COMPILED[datasets.gaussian](jax.random.key(0), m, d).x, np.float64)
    assert abs(x.mean()) < 5 / np.sqrt(m * d) / np.sqrt(d)
    np.testing.assert_allclose(x.var(axis=0) * d, 1, atol=5 * np.sqrt(2 / m))
    norms = np.linalg.norm(x, axis=1)
    assert norms.std() > 0.5 / np.sqrt(2 * d)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("m", [2, 5])
def test_both_labels_occur_at_every_seed(draw, m):
    seeds = 2000
    labels = jax.jit(jax.vmap(lambda key: draw(key, m, 2).y))
    y = np.asarray(labels(jax.random.split(jax.random.key(1), seeds)))
    assert set(np.unique(y)) == {-1.0, 1.0}
    assert np.all(y.min(axis=1) == -1)
    assert np.all(y.max(axis=1) == 1)
    # Fair labels, conditioned on both present: each sample is +1 in half of the draws.
    assert np.abs(y.mean(axis=0)).max() < 5 / np.sqrt(seeds)
    # Two labels agree in this share of the draws: that of fair coins less the 2 forbidden of 2^m.
    share = (2 ** (m - 1) - 2) / (2**m - 2)
    agree = np.mean(y[:, 0] == y[:, 1])
    assert abs(agree - share) < 5 * np.sqrt(0.25 / seeds) + 1e-9


@pytest.mark.parametrize("draw", DRAWS)
def test_labels_are_independent_of_points(draw):
    x, y = COMPILED[draw](jax.random.key(2), 4000, 3)
    signs = np.sign(np.asarray(x)) * np.asarray(y)[:, None]
    assert np.abs(signs.mean(axis=0)).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize(
    "draw", [datasets.sphere, pytest.param(datasets.gaussian, marks=pytest.mark.slow)]
)
def test_padded_draw_has_the_same_numbers_at_traced_sizes(draw):
    key, solo = jax.random.key(3), COMPILED[draw]
    for shape in [(5, 6), (12, 20)]:
        padded = jax.jit(lambda m, d, shape=shape: draw(key, m, d, shape))
        for m, d in [(4, 3), (5, 6)]:
            expected, got = solo(key, m, d), jax.device_get(padded(m, d))
            rows, columns = (0, shape[0] - m), (0, shape[1] - d)
            x, y = np.pad(expected.x, (rows, columns)), np.pad(expected.y, rows)
            np.testing.assert_array_equal(got.y, y)
            # Norms may add their d squares in another order.
            np.testing.assert_allclose(got.x, x, rtol=(d + 4) * EPS)
            np.testing.assert_array_equal(got.x == 0, x == 0)
        assert padded._cache_size() == 1


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_depend_on_the_key(draw):
    one, other = (COMPILED[draw](jax.random.key(seed), 50, 3) for seed in (4, 5))
    assert not np.any(np.asarray(one.x) == np.asarray(other.x))
    assert np.any(np.asarray(one.y) != np.asarray(other.y))
    assert len(np.unique(np.asarray(one.x))) == one.x.size


def test_pad_adds_zeros_and_refuses_to_shrink():
    data = datasets.Dataset(jnp.asarray(X), jnp.asarray(Y))
    padded = datasets.pad(data, 6, 5)
    expected = np.zeros((6, 5))
    expected[:4, :3] = X
    np.testing.assert_array_equal(padded.x, expected)
    np.testing.assert_array_equal(padded.y, [1, -1, -1, 1, 0, 0])
    for m, d in [(3, 3), (4, 2)]:
        with pytest.raises(ValueError, match=r"cannot pad 4 samples .* ask for at least \(4, 3\)"):
            datasets.pad(data, m, d)
    with pytest.raises(ValueError, match="has no part of shape"):
        datasets.unpad(data, len(data.y) + 1, 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("draw", DRAWS)
def test_sizes_that_are_no_whole_numbers_are_refused(draw):
    for samples, dim in ((20**0.8, 20), (4, 3.5), (4, float("nan"))):
        with pytest.raises(ValueError, match=r"must be a whole number, got .*: round it first"):
            draw(jax.random.key(0), samples, dim)


@pytest.mark.parametrize("draw", DRAWS)
def test_bad_sizes_are_refused(draw):
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="need at least 2 samples, one of each label, got 1"):
        draw(key, 1, 3)
    with pytest.raises(ValueError, match="dimension must be at least 1, got 0"):
        draw(key, 4, 0)
    with pytest.raises(ValueError, match=r"samples 8 does not fit the shape \(7, 9\)"):
        draw(key, 8, 9, (7, 9))
    with pytest.raises(ValueError, match="static `shape` to pad to: samples"):
        jax.jit(lambda m: draw(key, m, 3))(4)


def test_validate_accepts_good_data():
    for x, y in [(X, Y), (jnp.asarray(X), jnp.asarray(Y)), (X.tolist(), Y.tolist())]:
        data = datasets.validate(x, y)
        np.testing.assert_array_equal(data.x, X)
        np.testing.assert_array_equal(data.y, Y)
        assert data.x.dtype == data.y.dtype == jnp.float32


def test_validate_accepts_lists_of_whole_numbers():
    assert datasets.validate([[1, 0], [0, 1]], [1, -1]).y.dtype == jnp.float32


def replaced(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[0], Y, r"x must have the shape \(samples, dimension\), got \(3,\)"),
        (X[None], Y, r"x must have the shape \(samples, dimension\), got \(1, 4, 3\)"),
        (X[:0], Y[:0], r"x needs at least one sample and one dimension, got shape \(0, 3\)"),
        (X[:, :0], Y, r"x needs at least one sample and one dimension, got shape \(4, 0\)"),
        (X, Y[:3], r"one label per sample, shape \(4,\), got \(3,\): .* so transpose it"),
        (X, Y[:2], r"one label per sample, shape \(4,\), got \(2,\)$"),
        (X, Y[:, None], r"one label per sample, shape \(4,\), got \(4, 1\)"),
        (X.astype(int), Y, r"x must hold floating-point numbers, got int64.*x.astype\(y\.dtype\)"),
        (X, Y.astype(np.int32), r"y must hold floating-point.*int32: for .* y\.astype\(x\.dtype\)"),
        (X, Y > 0, "y must hold floating-point numbers, got bool"),
        (X.astype(np.float64), Y, "x is float64, which JAX would round to float32"),
        (X, Y.astype(np.float64), "y is float64, .* call jax.config.update"),
        (replaced(X, (2, 1), np.nan), Y, "x must be finite, but 1 rows .* first row 2"),
        (replaced(X, ([1, 3], 0), np.inf), Y, "x must be finite, but 2 rows .* first row 1"),
        (replaced(X, (3, 2), -np.inf), Y, "first row 3"),
        ([[1.0, 2.0], [3.0]], [1, -1], "x must be an array, or lists of numbers that make one"),
        (X.tolist(), [1, -1, -1, 0], r"labels must be -1 or 1, got \[0.0\]"),
        (X, replaced(Y, 1, 0), r"labels must be -1 or 1, got \[0.0\]"),
        (
            X,
            np.maximum(Y, 0),
            r"got \[0.0\]: of 0 and 1 they are 2 \* y - 1",
        ),
        (X, replaced(Y, 1, 2), r"labels must be -1 or 1, got \[2.0\]"),
        (X, replaced(Y, 0, np.nan), r"labels must be -1 or 1, got \[nan\]"),
        (X, np.abs(Y), "both labels must occur, but every sample has y = 1"),
        (X, -np.abs(Y), "both labels must occur, but every sample has y = -1"),
    ],
)
def test_validate_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        datasets.validate(x, y)


def test_validate_accepts_float64_in_float64_mode(float64):
    data = datasets.validate(X.astype(np.float64), Y.astype(np.float64).tolist())
    assert data.x.dtype == data.y.dtype == jnp.float64


def test_validate_refuses_mixed_precision(float64):
    with pytest.raises(ValueError, match="y is float32, but what it is used with is float64"):
        datasets.validate(X.astype(np.float64), Y)


def test_validate_sees_the_shapes_of_traced_arrays():
    jax.jit(lambda x, y: datasets.validate(x, 0 * y))(X, Y)  # labels of 0: only values are wrong
    with pytest.raises(ValueError, match="y must have one label per sample"):
        jax.jit(datasets.validate)(X, Y[1:])


def test_the_unit_sphere_is_the_sphere_rescaled():
    x, y = COMPILED[datasets.sphere](jax.random.key(0), 9, 5)
    unit = jax.device_get(COMPILED[datasets.unit_sphere](jax.random.key(0), 9, 5))
    np.testing.assert_allclose(np.linalg.norm(unit.x, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit.x * 5**0.5, x, rtol=1e-6)
    np.testing.assert_array_equal(unit.y, y)


def points_and_others():
    gaussian = COMPILED[datasets.gaussian](jax.random.key(0), 7, 5)
    return jax.device_get((gaussian, COMPILED[datasets.sphere](jax.random.key(1), 9, 5)))


def test_half_distances_are_to_the_nearest_point_of_the_other_class():
    (x, y), (others, labels) = points_and_others()
    padded = np.pad(others, ((0, 2), (0, 0))), np.pad(labels, (0, 2))
    found = np.asarray(half_distances(x, y, *padded))
    for i in range(7):
        away = np.linalg.norm(others - x[i], axis=1)
        expected = away[labels == -y[i]].min() / 2
        assert found[i] == pytest.approx(expected, rel=1e-4)
    same = half_distances(x, np.ones(7, "f"), others, np.ones(9, "f"))
    assert np.isposinf(same).all()


@pytest.mark.usefixtures("unchecked")
def test_half_distances_of_other_dimensions_are_refused():
    (x, y), (others, labels) = points_and_others()
    with pytest.raises(ValueError, match="others must have the points' dimension"):
        half_distances(x, y, others[:, :1], labels)


@pytest.mark.parametrize("unit", [0.0, 1e-25, 1e25])
def test_half_distances_scale_with_the_points(unit):
    (x, y), (others, labels) = points_and_others()
    unit = np.float32(unit)
    expected = half_distances(x, y, others, labels)
    found = half_distances(unit * x, y, unit * others, labels)
    np.testing.assert_allclose(found, unit * np.asarray(expected), rtol=1e-4)
    none = half_distances(unit * x, np.ones(7, "f"), unit * others, np.ones(9, "f"))
    assert np.isposinf(none).all()


@pytest.mark.parametrize(
    "draw",
    [
        datasets.sphere,
        pytest.param(datasets.unit_sphere, marks=pytest.mark.slow),
        datasets.gaussian,
    ],
)
def test_of_traced_sizes_the_scale_is_in_the_precision_of_the_data(draw, float64):
    """Their roots were rounded to 32 bits, as traced whole numbers are."""
    key, sizes = jax.random.key(0), (6, 7)
    traced = jax.jit(partial(draw, shape=sizes))(key, *jnp.array(sizes, jnp.int32))
    known = jax.jit(draw, static_argnums=(1, 2))(key, *sizes)
    np.testing.assert_allclose(traced.x, known.x, rtol=1e-15)


@pytest.mark.slow
def test_half_distances_have_derivatives_beside_padding_and_equal_points():
    """A row of padding, whose distance is inf, made the derivative of all NaN."""
    x = jnp.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    y = jnp.array([1.0, -1.0, 0.0])
    found = jax.grad(lambda x: datasets.half_distances(x, y, x, y)[0])(x)
    np.testing.assert_allclose(
        found, np.array([[1, -2], [-1, 2], [0, 0]]) / (2 * 5**0.5), rtol=1e-5
    )
    same, labels = jnp.ones((2, 2)), jnp.array([1.0, -1.0])
    assert not jax.grad(lambda x: datasets.half_distances(x, labels, x, labels).sum())(same).any()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("change", [datasets.pad, datasets.unpad])
def test_padding_is_of_one_dataset(change):
    """Of several that are stacked it cut the first of their axes."""
    with pytest.raises(ValueError, match=r"stacked, map over them by jax\.vmap"):
        change(datasets.Dataset(jnp.ones((4, 3, 2)), jnp.ones((4, 3))), 3, 2)
    one = datasets.Dataset(np.ones((3, 2), np.float32), np.ones(3, np.float32))
    for sizes in ((0, 2), (-1, 2), (3, 0)):
        with pytest.raises(ValueError, match=r"has no part of shape|padding only adds"):
            change(one, *sizes)


@pytest.mark.usefixtures("unchecked")
def test_padding_rounds_nothing():
    with pytest.raises(ValueError, match="x is float64, which JAX would round to float32"):
        datasets.pad(datasets.Dataset(np.ones((3, 2)), np.ones(3)), 4, 2)
