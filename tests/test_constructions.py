"""Constructions of the papers, and guarantees and attacks against brute force in the plane."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import aligned
from plane_cases import outputs, plane, smallest

from jaxkkt import networks
from jaxkkt.networks import Params
from jaxkkt.theory import constructions, frei, vardi

pytestmark = pytest.mark.usefixtures("float64")
D = 8


@pytest.fixture
def axes():
    return jax.jit(lambda: constructions.axis_data(D))()


def test_both_networks_of_section_5_1(axes):
    x, y = axes
    robust = jax.jit(vardi.robust_network)(x, y, 0.0)
    larger = jax.jit(constructions.larger_margin_network)(x, y)
    np.testing.assert_allclose(np.diag(x), np.full(D, D**0.5))
    assert y.tolist() == [1.0] * 4 + [-1.0] * 4
    for params, squared in ((robust, 2 * D + 4), (larger, D + 1)):
        np.testing.assert_allclose(outputs(params, np.asarray(x)), y, atol=1e-12)
        assert float(networks.squared_norm(params)) == pytest.approx(squared)
    for label in (1, -1):
        z = constructions.opposing_samples(x, y, label)
        assert np.linalg.norm(z) == pytest.approx(8**0.5)
        mine = np.asarray(x)[np.asarray(y) == label]
        np.testing.assert_allclose(outputs(larger, mine + np.asarray(z)), -label)


def test_networks_of_section_5_1_in_a_span():
    """Four axes of R^100 in coordinates of their span: d is not the number of coordinates."""
    x, y = 10 * jnp.eye(4), jnp.asarray([1.0, 1.0, -1.0, -1.0])
    network = constructions.larger_margin_network(x, y, 100)
    np.testing.assert_allclose(outputs(network, np.asarray(x)), y, rtol=1e-12)
    z = constructions.opposing_samples(x, y, 1, 100)
    np.testing.assert_allclose(z, [0, 0, 0.4, 0.4], rtol=1e-12)
    with pytest.raises(ValueError, match="d must be positive and finite, got 0"):
        constructions.opposing_samples(x, y, 1, 0)


@pytest.mark.slow
def test_sizes_in_section_5_1(axes):
    """Within sqrt(d)/2 one neuron decides; beyond, the nearest flip takes one sample to the middle
    of another, sqrt(d/2) away. The network without biases is linear up to its nearest flip."""
    x, y = axes
    u = np.asarray(y) / D**0.5
    robust = vardi.robust_network(x, y, 0.0)
    np.testing.assert_allclose(constructions.guaranteed_sizes(robust, x, y), D**0.5 / 2)
    found = constructions.attacks(robust, x, y, x, y, u)
    np.testing.assert_allclose(found.size, (D / 2) ** 0.5)
    larger = constructions.larger_margin_network(x, y)
    found = constructions.attacks(larger, x, y, x, y, u)
    np.testing.assert_allclose(found.size, (1 / D + 0.5) ** -0.5, rtol=1e-6)
    assert (found.along > 1.02 * found.size).all()


def attacked(params, points, labels, x, y, direction):
    """`attacks`, padded to the sizes of `plane`: one program for all tests of the plane."""
    n, more, missing = len(labels), 6 - len(labels), 9 - len(y)
    found = constructions.attacks(
        networks.pad(params, 7, 2),
        np.pad(points, ((0, more), (0, 0))),
        np.pad(labels, (0, more)),
        np.pad(x, ((0, missing), (0, 0))),
        np.pad(y, (0, missing)),
        direction,
    )
    return constructions.Attacks(*(np.asarray(a)[:n] for a in found))


@pytest.mark.slow
def test_the_linear_predictor_is_framed_exactly():
    means, labels = jnp.asarray([[2.0, 0.0], [0.5, -2.0]]), jnp.asarray([1.0, -1.0])
    clusters = frei.clusters(means, labels, 1.0)
    linear = networks.pad(frei.linear_network(clusters), 7, 2)
    x = np.random.default_rng(0).normal(size=(6, 2))
    u = np.asarray(clusters.u)
    y = np.sign(x @ u)
    y[0] *= -1  # misclassified
    expected = np.abs(x @ u) / np.linalg.norm(u)
    expected[0] = 0
    np.testing.assert_allclose(constructions.guaranteed_sizes(linear, x, y), expected, rtol=1e-9)
    found = attacked(linear, x, y, x, y, u)
    np.testing.assert_allclose(found.along, expected, rtol=1e-9)
    np.testing.assert_allclose(found.searched, expected, rtol=1e-6)


def test_the_truth_is_between_guarantee_and_attack():
    attack_over_truth = []
    for seed in range(3):
        params, points, labels, x, y = plane(seed)
        safe = np.asarray(constructions.guaranteed_sizes(params, points, labels))
        found = attacked(params, points, labels, x, y, [0.6, -0.8])
        for i, point in enumerate(points):
            truth = smallest(lambda at, i=i, p=params, s=labels: s[i] * outputs(p, at), point)
            if np.isfinite(truth):
                assert safe[i] <= truth
                # The grid finds the first size after the infimum, and no direction between two.
                assert found.size[i] >= truth * (1 - 1e-5) - 0.011
                attack_over_truth.append(float(found.size[i]) / truth)
                assert found.searched[i] <= found.towards[i]
    ratios = np.array(attack_over_truth)
    assert len(ratios) >= 10
    # The search is tight at most points; where it misses a pocket it is an upper bound alone.
    assert np.median(ratios) <= 1.02
    assert np.mean(ratios <= 1.05) >= 0.75


def test_the_attack_goes_around_a_corner():
    """The nearest flip is neither along the gradient at the point nor along the way to a sample:
    past x_1 + 2 x_2 = 1 the second neuron turns the slope around. It lies at right angles to
    3 + x_1 - 4 (x_1 + 2 x_2 - 1) = 0, which is 7 / sqrt(73) from the origin."""
    params = Params(
        jnp.asarray([[1.0, 0.0], [1.0, 2.0]]), jnp.asarray([3.0, -1.0]), jnp.asarray([1.0, -4.0])
    )
    x, y = np.array([[4.0, 0.5]]), np.array([-1.0])
    found = attacked(params, np.zeros((1, 2)), np.ones(1), x, y, [1.0, 0.0])
    np.testing.assert_allclose(found.size, 7 / 73**0.5, rtol=1e-4)
    assert found.along[0] == np.inf  # the network falls to 0 along -x_1, and not below
    assert found.towards[0] > 1.2


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_sizes_scale_with_the_input(unit):
    """Also where squares of the inputs are not representable."""
    params, points, labels, x, y = plane(1)
    there = params._replace(w=params.w / unit), unit * points, labels, unit * x, y, [0.6, -0.8]
    here = params, points, labels, x, y, [0.6, -0.8]
    for function, arguments in (
        (constructions.guaranteed_sizes, slice(3)),
        (jax.jit(constructions.neighbour_guarantees), slice(1, 5)),
        (constructions.neighbour_attacks, slice(1, 6)),
        (constructions.attacks, slice(6)),
    ):
        expected, found = (np.asarray(function(*case[arguments])) for case in (here, there))
        np.testing.assert_allclose(found / unit, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("w", "b", "v", "expected"),
    [
        ([0.0, -1.0], [1.0, 0.0], [1.0, -1.0], 1.0),
        ([0.0, 1.0], [100.0, 0.0], [1.0, -1e-3], 1e5),
        ([0.0, 0.0], [1.0, 1.0], [1.0, -2.0], 0.0),
        ([0.0, 1.0], [1.0, 1.0], [2.0, 1.0], np.inf),
        ([0.0, 1e-30], [1.0, 0.0], [1.0, -1.0], 1e30),
        ([0.0, 1.0], [0.0, 0.0], [1.0, -1.0], 0.0),
        ([0.0, 1.0], [-100.0, -5.0], [1.0, -1.0], 5.0),
    ],
)
def test_neurons_without_weights_are_outweighed_in_the_end(w, b, v, expected):
    """What they hold was taken to be guaranteed at any size."""
    params = Params(np.array(w)[:, None], np.array(b), np.array(v))
    found = constructions.guaranteed_sizes(params, np.zeros((1, 1)), np.ones(1))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


@pytest.mark.parametrize(("constant", "size"), [(6.8, 7.8), (7.2, np.inf)])
def test_flips_are_looked_for_up_to_four_times_both_lengths(constant, size):
    """x_1 + the constant turns negative at -constant: of points and samples of length 1 up to 8."""
    params = Params(
        jnp.asarray([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]),
        jnp.asarray([0.0, 0.0, 1.0]),
        jnp.asarray([1.0, -1.0, constant]),
    )
    x, y = np.array([[-1.0, 0.0]]), np.array([1.0])
    found = attacked(params, np.array([[1.0, 0.0]]), np.ones(1), x, y, [1.0, 0.0])
    np.testing.assert_allclose(found.along, size, rtol=1e-9)
    assert found.towards.tolist() == [np.inf]  # no sample has the other label


def test_without_a_direction_only_what_is_misclassified_is_flipped():
    params, points, labels, x, y = plane(1)
    wrong = np.where(np.arange(6) == 0, -labels, labels)
    found = attacked(params, points, wrong, x, y, [0.0, 0.0])
    assert found.along.tolist() == [0.0] + [np.inf] * 5


@pytest.mark.slow
def test_padding_changes_nothing():
    params, points, labels, x, y = plane(1)
    wide = networks.pad(params, 10, 3)

    def padded(x, y):
        return np.pad(x, ((0, 2), (0, 1))), np.pad(y, (0, 2))

    few, many = (points, labels, x, y), (*padded(points, labels), *padded(x, y))
    direction, longer = [0.6, -0.8], [0.6, -0.8, 0.0]
    for one, other in (
        (
            constructions.attacks(params, *few, direction),
            constructions.attacks(wide, *many, longer),
        ),
        (
            constructions.neighbour_attacks(*few, direction),
            constructions.neighbour_attacks(*many, longer),
        ),
    ):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(b[:-2], a, rtol=1e-9)
            assert np.isnan(b[-2:]).all()
    safe = constructions.guaranteed_sizes(wide, *many[:2])
    np.testing.assert_allclose(safe[:-2], constructions.guaranteed_sizes(params, points, labels))
    assert np.isnan(safe[-2:]).all()


def test_attacks_on_what_is_broken_are_unknown():
    """NaN or infinite numbers compare with nothing: inf would say that no flip was found."""
    params, points, labels, x, y = plane(1)
    fine = params, points, labels, x, y, np.array([0.6, -0.8])
    nan = x.copy()
    nan[0, 0] = np.nan
    broken = params._replace(w=params.w.at[0, 0].set(jnp.inf))
    for arguments in ((broken, *fine[1:]), (*fine[:3], nan, *fine[4:]), (*fine[:5], [np.nan, 1.0])):
        assert np.isnan(constructions.attacks(*arguments)).all()
    lost = np.where(np.arange(6)[:, None] == 0, np.nan, points)
    for arguments in (
        (*fine[1:3], nan, *fine[4:]),
        (*fine[1:5], [np.inf, 1.0]),
        (lost, *fine[2:]),
    ):
        assert np.isnan(constructions.neighbour_attacks(*arguments)).all()


def test_a_stack_of_networks_at_once():
    pairs = [plane(seed) for seed in (2, 3)]
    points, labels = pairs[0][1:3]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(pair[0] for pair in pairs))
    found = jax.jit(jax.vmap(constructions.guaranteed_sizes, (0, None, None)))(
        stacked, points, labels
    )
    for row, pair in zip(found, pairs, strict=True):
        alone = constructions.guaranteed_sizes(pair[0], points, labels)
        np.testing.assert_allclose(row, alone, rtol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused(axes):
    x, y = axes
    params = constructions.larger_margin_network(x, y)
    u = np.ones(D)
    for d in (0, 7):
        with pytest.raises(ValueError, match=f"d must be even, got {d}"):
            constructions.axis_data(d)
    with pytest.raises(ValueError, match="is -1 or 1, got 0"):
        constructions.opposing_samples(x, y, 0)
    with pytest.raises(ValueError, match="labels must be -1 or 1, got"):
        constructions.guaranteed_sizes(params, x, 2 * y)
    with pytest.raises(ValueError, match="a network on inputs of dimension 7 needs w"):
        constructions.guaranteed_sizes(params, x[:, 1:], y)
    for attack in (partial(constructions.attacks, params), constructions.neighbour_attacks):
        with pytest.raises(ValueError, match=r"the direction must have shape \(8,\), got \(7,\)"):
            attack(x, y, x, y, u[1:])
        with pytest.raises(ValueError, match="points have dimension 8, the samples 7"):
            attack(x, y, x[:, 1:], y, u)


def test_what_is_constructed_does_not_change_with_what_it_was_made_of():
    x, y = aligned(np.eye(4) * 2), aligned(np.array([1.0, -1.0, 1.0, -1.0]))
    made = {
        "larger": constructions.larger_margin_network(x, y),
        "robust": vardi.robust_network(x, y, 0.0),
        "clusters": frei.clusters(x, y, 0.1),
    }
    before = jax.tree.map(lambda a: np.array(a, copy=True), made)
    x *= -1
    y *= -1
    jax.tree.map(np.testing.assert_array_equal, made, before)
