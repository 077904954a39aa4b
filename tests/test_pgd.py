"""Projected gradient attacks within l2 balls."""

import importlib

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, normal

import jaxkkt as jk
from jaxkkt import networks
from jaxkkt.networks import Params
from jaxkkt.perturbations import gradient_steps, pgd, robust_accuracy, smallest_radii

apply = jax.jit(networks.apply)


@pytest.fixture(scope="module")
def classified():
    params = cases.lazy(0, 200, 10)
    x = np.asarray(normal(1, 30, 10))
    x = jax.device_put(x / np.linalg.norm(x, axis=1, keepdims=True))
    return params, x, jax.device_put(np.sign(apply(params, x)))


def test_where_the_network_is_linear_the_attack_is_the_gradient_step():
    # f(x) = 2 relu(w . x + 9), active in all of the ball: the least margin is f - 2 |w| radius.
    params = jax.device_put(Params(np.array([[3.0, -4.0]]), np.array([9.0]), np.array([2.0])))
    x, y = np.array([[1, 2], [0, 1]], np.float32), np.array([1, -1], np.float32)
    found = pgd(params, x, y, 0.3)
    assert_close(found.margins, y * np.asarray(apply(params, x)) - 2 * 5 * 0.3, rtol=1e-5)
    toward = np.array([[-0.6, 0.8], [0.6, -0.8]])
    assert_close(found.last, x + 0.3 * toward, rtol=1e-5)


def test_the_point_that_an_attack_ends_at_counts(classified):
    params, x, y = classified
    found = pgd(params, x, y, 0.1, steps=1)
    assert_close(found.margins, y * apply(params, found.last), rtol=1e-3, atol=1e-5)
    assert_close(found.x, found.last)


def test_an_output_of_0_is_no_prediction():
    # relu(x1) is 0, and flat, at the first point.
    params = jax.device_put(Params(np.array([[1.0, 0.0]]), np.array([0.0]), np.array([1.0])))
    x, y = np.array([[-1, 0], [2, 0]], np.float32), np.ones(2, np.float32)
    assert robust_accuracy(params, x, y, [0.0, 1.0]).tolist() == [0.5, 0.5]
    assert_close(smallest_radii(params, x, y, 5.0), np.array([0, 2]), rtol=1e-3)
    assert smallest_radii(params, x, y, 5.0, trips=1).tolist() == [0, 2.5]  # it does flip there


def test_at_a_radius_of_0_points_stay(classified):
    params, x, y = classified
    found = pgd(params, x, y, 0.0, starts=2, key=jax.random.key(0))
    assert (found.last == x).all()
    assert_close(found.margins, y * apply(params, x))


def test_steps_are_those_of_the_attack(classified):
    one, default = (pgd(*classified, 1.0, **of).margins > 0 for of in ({"steps": 1}, {}))
    assert one.sum() > default.sum()
    assert_close(robust_accuracy(*classified, 1.0, steps=1), one.mean())
    radii = np.asarray(smallest_radii(*classified, 1.0, steps=1))
    assert (radii < 1).all()  # also of points at which the larger step goes too far
    assert (pgd(*classified, jnp.asarray(radii), steps=1, normalized=True).margins <= 0).all()


def test_one_raw_step_is_the_gradient_of_the_logistic_loss(classified):
    params, x, y = classified

    def loss(z):
        return jnp.sum(jax.nn.softplus(-y * networks.apply(params, z)))

    # 2.5 times the radius in one step: inside the ball where the gradient is below 1/2.5.
    push = 2.5 * 0.1 * np.asarray(jax.jit(jax.grad(loss))(x))
    length = np.linalg.norm(push, axis=1, keepdims=True)
    expected = np.asarray(x) + push * np.minimum(1, 0.1 / length)
    found = pgd(params, x, y, 0.1, steps=1, normalized=False)
    assert_close(found.last, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("radius", [0.01, 0.2, 3.0])
def test_the_ball_is_never_left(classified, radius, normalized):
    params, x, y = classified
    found = jax.device_get(pgd(params, x, y, radius, normalized=normalized))
    for points in (found.last, found.x):
        assert (np.linalg.norm(points - np.asarray(x), axis=1) <= radius * (1 + 1e-5)).all()
    assert_close(found.margins, y * apply(params, found.x), rtol=1e-3, atol=1e-5)
    assert (found.margins <= y * apply(params, x) + 1e-6).all()


def test_accuracy_falls_with_the_radius_from_1_to_0(classified):
    params, x, y = classified
    curve = robust_accuracy(params, x, y, jnp.array([1e-4, 0.05, 0.1, 0.2, 2.0]))
    assert curve[0] == 1
    assert curve[-1] == 0
    assert (np.diff(curve) <= 0).all()
    assert len(set(curve.tolist())) > 2


def test_attacks_on_networks_of_large_margins_move():
    start, data = cases.problem()
    params, (x, y) = jk.train(start, *data).params, data
    assert (robust_accuracy(params, x, y, [0.0, 10.0]) == jnp.array([1.0, 0.0])).all()
    # The gradient of the logistic loss underflows there.
    assert robust_accuracy(params, x, y, 10.0, normalized=False) == 1


def test_attacks_succeed_wherever_the_gradient_step_does(classified):
    params, x, y = classified
    radius = 0.1
    by_step = gradient_steps(params, x).size <= radius
    by_pgd = pgd(params, x, y, radius).margins <= 0
    assert by_step.any()
    assert (by_pgd | ~by_step).all()


def test_lanes_equal_a_loop_and_padding_is_inert(classified):
    params, x, y = classified
    radii = np.array([0.02, 0.1, 0.5], np.float32)
    curve = np.asarray(robust_accuracy(params, x, y, radii))
    lanes = jax.vmap(lambda r: pgd(params, x, y, r).margins)(radii)
    for i, radius in enumerate(radii):
        alone = np.asarray(pgd(params, x, y, float(radius)).margins)
        assert_close(lanes[i], alone, rtol=1e-3, atol=1e-4)
        assert_close(curve[i], (alone > 0).mean())
    more = np.pad(x, ((0, 3), (0, 2))), np.pad(y, (0, 3))
    padded = robust_accuracy(networks.pad(params, 220, 12), *more, radii)
    assert_close(padded, curve, atol=1.01 / 30)


@pytest.fixture(scope="module")
def stuck():
    """f(x) = 1 - relu(x1 - 1) - relu(-x1 - 1), which is flat between -1 and 1, at points there:
    a gradient moves none of them, and each is flipped at |x1| >= 2."""
    w = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    params = Params(w, np.array([-1.0, -1.0, 1.0]), np.array([-1.0, -1.0, 1.0]))
    x = np.array([[-0.5, 0.0], [0.25, 1.0], [0.75, -3.0]], np.float32)
    return jax.device_put((params, x, np.ones(3, np.float32)))


def test_starts_beside_the_points_find_what_one_start_misses(stuck):
    key = jax.random.key(0)
    assert (pgd(*stuck, 3.0).margins == 1).all()
    found = pgd(*stuck, 3.0, starts=10, key=key)
    assert (found.margins <= 0).all()
    assert_close(found.margins, apply(stuck[0], found.x), atol=1e-5)
    assert (np.linalg.norm(found.x - stuck[1], axis=1) <= 3 * (1 + 1e-5)).all()
    assert robust_accuracy(*stuck, [0.5, 3.0], starts=10, key=key).tolist() == [1, 0]
    radii = smallest_radii(*stuck, 3.0, starts=30, key=key)
    assert (smallest_radii(*stuck, 3.0) == np.inf).all()
    assert_close(radii, np.array([1.5, 1.75, 1.25]), rtol=0.05)


def test_more_starts_leave_no_larger_margins():
    params, x, y = cases.lazy(3, 20, 2), normal(4, 40, 2), jnp.ones(40)
    key = jax.random.key(1)
    margins = [pgd(params, x, y, 1.0, 20, starts=n, key=key).margins for n in (1, 2, 6)]
    assert_close(margins[0], pgd(params, x, y, 1.0, 20).margins, rtol=1e-3, atol=1e-5)
    assert (np.diff(np.stack(margins), axis=0) <= 1e-5).all()
    assert (margins[2] < margins[0] - 1e-3).any()


def test_starts_are_uniform_in_the_ball():
    # 1 - relu(x1 - 1) moves those that begin beyond x1 = 1: of a ball of radius 2 in R^3 a cap of
    # height 1, (3 2 - 1) / (4 2^3) of its volume.
    params = Params(np.array([[1.0, 0, 0], [0, 0, 0]]), np.array([-1.0, 1]), np.array([-1.0, 1]))
    x, y = np.zeros((4000, 3), np.float32), np.ones(4000, np.float32)
    found = pgd(jax.device_put(params), x, y, 2.0, starts=2, key=jax.random.key(2))
    assert_close((found.margins < 1).mean(), 5 / 32, atol=0.02)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": 2}, "the 1 starts beside the points themselves are drawn: give a key"),
        ({"starts": 0}, "starts must be at least 1, got 0"),
        ({"starts": 2.0}, "starts must be an integer, got 2.0"),
        ({"radius": -1}, "radius must be at least 0 and finite, got -1"),
        ({"radius": float("nan")}, "radius must be at least 0 and finite, got nan"),
        ({"radius": 1.0, "steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(classified, settings, message):
    with pytest.raises(ValueError, match=message):
        pgd(*classified, **{"radius": 1.0, **settings})


def test_broken_networks_are_not_robust(classified):
    params, x, y = classified
    w = np.array(params.w)
    w[0, 0] = np.nan
    broken = params._replace(w=jax.device_put(w))
    assert np.isnan(pgd(broken, x, y, 0.1).margins).all()
    assert np.isnan(robust_accuracy(broken, x, y, jnp.array([0.1]))).all()
    assert np.isnan(smallest_radii(broken, x, y, 1.0)).all()


@pytest.mark.parametrize("scale", [1e-24, 1e21])
def test_normalized_attacks_do_not_depend_on_the_scale_of_the_output(classified, scale):
    params, x, y = classified
    radii = smallest_radii(params, x, y, 1.0, steps=20)
    scaled = smallest_radii(params._replace(v=scale * params.v), x, y, 1.0, steps=20)
    assert_close(scaled, radii, rtol=1e-2)


def test_padding_has_no_radius(classified):
    """It was 0, as of a point that is misclassified."""
    params, x, y = classified
    radii = smallest_radii(params, x, y, 1.0, steps=5, trips=3)
    more = np.pad(x, ((0, 2), (0, 0))), np.pad(y, (0, 2))
    padded = smallest_radii(params, *more, 1.0, steps=5, trips=3)
    np.testing.assert_array_equal(padded[:-2], radii)
    assert np.isnan(padded[-2:]).all()


def test_smallest_radii_are_those_at_which_attacks_begin_to_succeed(classified):
    params, x, y = classified
    radii = smallest_radii(params, x, y, 1.0)
    assert (radii > 0).all()
    assert (pgd(params, x, y, radii * 1.01).margins <= 0).mean() > 0.9
    assert (pgd(params, x, y, radii * 0.98).margins > 0).mean() > 0.9
    assert (smallest_radii(params, x, -y, 1.0) == 0).all()
    near = np.asarray(smallest_radii(params, x, y, 1e-4))
    assert (near[np.asarray(radii) > 1e-3] == np.inf).all()


@pytest.mark.parametrize("trips", [0, -1])
def test_bad_trips_are_refused(classified, trips):
    with pytest.raises(ValueError, match=f"trips must be at least 1, got {trips}"):
        smallest_radii(*classified, 1.0, trips=trips)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", [2.5, 2.0, True, jnp.float32(2), jnp.array([2, 3])])
def test_steps_and_trips_are_whole(classified, count):
    for call in (
        lambda: pgd(*classified, 0.1, steps=count),
        lambda: robust_accuracy(*classified, [0.1], steps=count),
        lambda: smallest_radii(*classified, 1.0, steps=count),
    ):
        with pytest.raises(ValueError, match="steps must be an integer, got"):
            call()
    with pytest.raises(ValueError, match="trips must be an integer, got"):
        smallest_radii(*classified, 1.0, trips=count)


@pytest.mark.usefixtures("unchecked")
def test_steps_may_be_an_array_and_traced(classified):
    expected = pgd(*classified, 0.1, steps=3).margins
    for steps in (np.int64(3), jnp.array(3)):
        assert_close(pgd(*classified, 0.1, steps=steps).margins, expected)
    mapped = jax.vmap(lambda steps: pgd(*classified, 0.1, steps=steps).margins)(jnp.array([3, 4]))
    assert_close(mapped[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="steps must be an integer, got"):
        jax.jit(lambda steps: pgd(*classified, 0.1, steps=steps).margins)(3.0)


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_are_points_too(classified):
    params, _, _ = classified
    x, y = np.eye(10, dtype=int)[np.arange(30) % 10] * 3, np.where(np.arange(30) % 3 == 1, -1, 1)
    floats = x.astype(np.float32), y.astype(np.float32)
    assert_close(pgd(params, x, y, 0.5).margins, pgd(params, *floats, 0.5).margins)
    steps = gradient_steps(params, x, 0.9)
    assert_close(steps.eta, gradient_steps(params, floats[0], 0.9).eta)


def test_accuracies_have_the_shape_of_the_radii(classified):
    params, x, y = classified
    curve = robust_accuracy(params, x, y, [0.1, 0.2])
    assert robust_accuracy(params, x, y, 0.1).shape == ()
    assert_close(robust_accuracy(params, x, y, 0.1), curve[0])
    assert_close(robust_accuracy(params, x, y, jnp.array([[0.1], [0.2]])), curve[:, None])


def test_a_radius_of_0_is_no_attack(classified):
    params, x, y = classified
    y = y.at[:6].multiply(-1)
    for normalized in (False, True):
        curve = robust_accuracy(params, x, y, [0.0, 2.0], normalized=normalized)
        assert_close(curve[0], 24 / 30)
        assert curve[1] < curve[0]


@pytest.mark.usefixtures("unchecked")
def test_bad_radii_are_refused(classified):
    with pytest.raises(ValueError, match="radii must be at least 0 and finite, got -1"):
        robust_accuracy(*classified, jnp.array([0.1, -1.0]))
    with pytest.raises(ValueError, match="bracket must be positive and finite, got 0"):
        smallest_radii(*classified, 0.0)


def test_a_radius_that_flips_is_found_whatever_a_larger_one_does(classified, monkeypatch):
    """An attack that gets stuck at the bracket hid what it had found below."""

    def stuck(params, x, y, radii, *_):
        found = (radii >= 0.25) & (radii < 0.75)
        return pgd_module.Attack(x, x, jnp.where(found, -1.0, 1.0))

    pgd_module = importlib.import_module("jaxkkt.perturbations.pgd")
    monkeypatch.setattr(pgd_module, "pgd", stuck)
    assert_close(smallest_radii(*classified, 1.0), np.full(30, 0.25), rtol=1e-3)
    assert (np.asarray(smallest_radii(*classified, 0.2)) == np.inf).all()
