"""Guarantees and attacks on a point's nearest neighbour, against brute force."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plane_cases import SIZES, plane, smallest

from jaxkkt import datasets
from jaxkkt.theory import constructions

pytestmark = pytest.mark.usefixtures("float64")
neighbour_guarantees = jax.jit(constructions.neighbour_guarantees)


def neighbour_margin(x, y, at, label):
    away = np.linalg.norm(at[..., None, :] - x, axis=-1)
    own, other = (away[..., y == s * label].min(axis=-1) for s in (1, -1))
    return other - own


def test_one_nearest_neighbour_in_the_plane():
    checked = 0
    for seed in range(3):
        _, points, _, x, y = plane(seed)
        near = np.linalg.norm(points[:, None] - x[None], axis=2)
        labels = y[near.argmin(axis=1)]
        safe = np.asarray(neighbour_guarantees(points, labels, x, y))
        direction = np.array([0.6, -0.8])
        found = constructions.neighbour_attacks(points, labels, x, y, direction)
        margin = partial(neighbour_margin, x, y)
        for i, point in enumerate(points):
            steps = margin(point - labels[i] * SIZES[:, None] * direction, labels[i]) < 0
            along = SIZES[np.argmax(steps)] if steps.any() else np.inf
            if np.isfinite(along):
                assert along - 0.011 <= found.along[i] <= along
                checked += 1
            if i == 0:
                truth = smallest(partial(margin, label=labels[0]), point)
                assert safe[0] <= truth
                assert found.size[0] >= truth * (1 - 1e-5) - 0.011
        assert (safe > 0).all()
        assert (safe <= np.asarray(found.size)).all()
    assert checked >= 5
    assert safe[0] == pytest.approx(
        (near[0][y != labels[0]].min() - near[0][y == labels[0]].min()) / 2
    )


def test_one_nearest_neighbour_between_two_samples():
    x, y = np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([1.0, -1.0])
    points, labels = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([1.0, 1.0])
    assert neighbour_guarantees(points, labels, x, y).tolist() == [1.0, 0.0]
    found = constructions.neighbour_attacks(points, labels, x, y, [0.0, 1.0])
    assert found.size.tolist() == [1.0, 0.0]
    assert found.along.tolist() == [np.inf, 0.0]


def test_one_nearest_neighbour_flips_where_brute_force_does():
    """Overlapping classes in few dimensions: points that flip late, never, or at once."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(14, 3)), np.where(np.arange(14) < 5, 1.0, -1.0)
    points, labels = 2 * rng.normal(size=(60, 3)), np.where(np.arange(60) < 40, 1.0, -1.0)
    direction = np.array([2.0, -1.0, 0.5])
    found = constructions.neighbour_attacks(points, labels, x, y, direction).along
    sizes = np.linspace(0, 40, 20_001)
    for point, label, size in zip(points, labels, np.asarray(found), strict=True):
        moved = point - label * sizes[:, None] * direction / np.linalg.norm(direction)
        away = ((moved[:, None] - x) ** 2).sum(axis=2)
        flipped = y[away.argmin(axis=1)] != label
        first = sizes[flipped.argmax()] if flipped.any() else np.inf
        assert size == pytest.approx(first, abs=0.003) or (size > 40 and first == np.inf)
    assert (found == 0).any()
    assert np.isinf(found).any()
    assert ((found > 0.01) & (found < 40)).sum() > 10


def test_a_class_without_samples_loses_every_point():
    x, y = np.array([[3.0, 0.0], [-1.0, 0.0]]), np.ones(2)
    points, labels = np.array([[2.5, 7.0], [-2.0, 1.0]]), np.array([1.0, -1.0])
    found = constructions.neighbour_attacks(points, labels, x, y, [1.0, 0.0])
    assert found.along.tolist() == [np.inf, 0]


def test_samples_that_stay_as_near_as_each_other_are_no_flip():
    """Rounding let the other label's be nearer, from 2.83 on."""
    x = np.array([[2, -2, 1], [-1, 1, 1], [1, -1, 1], [-2, 0, 1], [0, 0, 1]], np.float32)
    point, y = np.array([[1, -2, -1]], np.float32), [1, -1, 1, 1, -1]
    found = constructions.neighbour_attacks(point, [1], x, y, [1, 0, 1])
    assert np.isinf(found.along).all()
    np.testing.assert_allclose(found.towards, 2, rtol=1e-6)


def test_samples_as_near_as_each_other_all_along_are_no_flip():
    x, y = np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([1.0, -1.0])
    found = constructions.neighbour_attacks(np.zeros((2, 2)), np.ones(2), x, y, [1.0, 0.0])
    assert found.along.tolist() == [np.inf] * 2
    assert found.towards.tolist() == [0.0] * 2


def test_padding_is_no_neighbour_and_no_point():
    """As the same samples given twice, which change nothing either."""
    params, points, labels, x, y = plane(1)
    points[0], labels[0] = 0.3 * x[2], -y[2]  # misclassified, and nearest to the padding
    labels[4:], points[4:] = 0, 0
    twice = np.append(x[:7], x[:2], axis=0), np.append(y[:7], y[:2])
    padded = np.append(x[:7], 0 * x[:2], axis=0), np.append(y[:7], 0 * y[:2])
    for function, rest in (
        (neighbour_guarantees, ()),
        (constructions.neighbour_attacks, ([-0.6, 0.8],)),
        (partial(constructions.attacks, params), ([-0.6, 0.8],)),
    ):
        one, other = (np.asarray(function(points, labels, *xy, *rest)) for xy in (twice, padded))
        np.testing.assert_allclose(other, one, rtol=1e-9)
        assert np.isnan(one[..., 4:]).all()
        assert not np.isnan(one[..., :4]).any()
    safe = constructions.guaranteed_sizes(params, points, labels)
    assert np.isnan(safe).tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("point", "label", "along"), [([-2, 2, -1], -1, 0.0), ([0, -2, -1], 1, np.inf)]
)
def test_rounding_neither_hides_a_flip_nor_makes_one(point, label, along):
    """Misclassified, beside a sample as far all along; correct, beside one as near at the start."""
    x = np.array([[2, -2, -2], [-1, -2, 2], [2, 0, -2], [-2, -1, 0], [1, 0, -1]], np.float32)
    point, y = np.array([point], np.float32), [1, -1, 1, 1, -1]
    found = constructions.neighbour_attacks(point, [label], x, y, [-1, 1, 1])
    assert found.along.tolist() == [along]


def test_no_samples_are_no_neighbours():
    points, labels, none = np.eye(2), np.array([1.0, -1.0]), (np.zeros((0, 2)), np.zeros(0))
    assert np.all(constructions.neighbour_guarantees(points, labels, *none) == 0)
    assert np.all(jax.jit(datasets.half_distances)(points, labels, *none) == np.inf)


def test_attacks_on_neighbours_have_derivatives_beside_padding():
    """Those of all points were NaN."""
    _, points, labels, x, y = plane(0)
    padded = np.append(x, [[0.0, 0.0]], axis=0), np.append(y, 0.0)
    asked, of = np.append(points, [[0.0, 0.0]], axis=0), np.append(labels, 0.0)

    def size(points, labels, x, y):
        found = constructions.neighbour_attacks(points, labels, x, y, [0.6, -0.8]).towards
        return jnp.where(jnp.isfinite(found), found, 0).sum()

    slopes = jax.jit(jax.grad(size))
    expected = slopes(points, labels, x, y)
    assert (np.abs(expected) > 1e-3).any()
    found = slopes(asked, of, *padded)
    np.testing.assert_allclose(found[:-1], expected, atol=1e-12)
    assert not found[-1].any()
