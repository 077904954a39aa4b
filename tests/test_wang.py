"""The lemmas of Wang et al. (2022), held against networks in the lazy ball."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, normal

from jaxkkt import lazy, networks
from jaxkkt.perturbations import input_gradient
from jaxkkt.theory import wang

C0 = 2.0
sign_changes, output = jax.jit(wang.sign_changes), jax.jit(wang.output)
gradient_norm, gradient_difference = jax.jit(wang.gradient_norm), jax.jit(wang.gradient_difference)


@pytest.fixture(scope="module")
def networks_in_ball():
    """Many draws of a start, a network on the edge of its ball, and a point."""
    draws, k, d = 40, 2000, 40
    v = np.sign(normal(0, draws, k)) / np.float32(k**0.5)
    w, b = np.asarray(normal(1, draws, k, d)), np.zeros((draws, k), np.float32)
    start = networks.Params(w, b, v)
    away = start._replace(w=w + normal(2, draws, k, d))
    project = jax.jit(jax.vmap(lambda away, start: lazy.project(away, start, C0 / k**0.5)))
    x = normal(3, draws, d)
    found = start, project(away, start), x / np.linalg.norm(x, axis=1, keepdims=True)
    return jax.tree.map(np.asarray, found)


@pytest.mark.slow
def test_every_bound_holds_with_its_probability(networks_in_ball):
    start, params, x = networks_in_ball
    gamma = 0.05
    checks = {
        "B.4": jax.vmap(lambda s, x: wang.sign_changes(s, x, C0 / 2000**0.5, gamma))(start, x),
        "B.5": jax.vmap(lambda p, s, x: wang.output(p, s, x, C0, gamma))(params, start, x),
        "B.7": jax.vmap(lambda p, s, x: wang.gradient_norm(p, s, x, C0, gamma))(params, start, x),
        "sqrt(d)/4": jax.vmap(lambda p, s, x: wang.quarter_of_the_dimension(p, s, x, C0))(
            params, start, x
        ),
    }
    for name, check in checks.items():
        assert check.assumed.all(), name
        assert check.holds.mean() >= 1 - gamma, name


def test_sign_changes_are_counted(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    radius = C0 / 2000**0.5
    check = sign_changes(start, x, radius, 0.1)
    w = np.asarray(start.w, np.float64)
    assert int(check.measured) == (np.abs(w @ np.asarray(x, np.float64)) <= radius).sum()
    assert check.bound == pytest.approx(radius * 2000 + (2000 * np.log(10) / 2) ** 0.5, rel=1e-5)
    # The network at hand is one of those that the set is about.
    changed = (params.w @ x > 0) != (start.w @ x > 0)
    assert int(changed.sum()) <= int(check.measured)
    assert sign_changes(start, x, 1.0).vacuous
    assert sign_changes(start, 3 * x, radius).measured == check.measured  # V |x|


def test_bounds_are_the_formulas_of_the_paper(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    k, d, gamma, c0 = 2000, 40, 0.1, C0
    assert output(params, start, x, c0, gamma).bound == pytest.approx(
        (2 * np.log(20)) ** 0.5 + 2 * np.log(20) / k**0.5 + c0, rel=1e-6
    )
    # At d = 40 the first term of B.7 needs d > 5 sqrt(d log(8/gamma)): it does not, and is 0.
    check = gradient_norm(params, start, x, c0, gamma)
    second = ((c0 + (np.log(40) / 2) ** 0.5) / k**0.5) ** 0.5
    third = (d + 4 * (d * np.log(8 * k / gamma)) ** 0.5) ** 0.5
    assert check.bound == pytest.approx(-c0 - second * third, rel=1e-5)
    assert check.vacuous
    probability = jax.jit(wang.sign_change_probability, static_argnames="d")
    assert probability(0.1, 0.01, 40, 0.2) == pytest.approx(
        2 * 0.01 * (40**0.5 + 2 * (40 * np.log(200)) ** 0.5) + 1.21 * 0.1, rel=1e-6
    )
    difference = jax.jit(wang.gradient_difference_bound)(2000.0, 16.0, c0, 1.5)
    d, log = 16, np.log(2000 * 16)
    assert difference == pytest.approx(
        9 * (1.5 * d**2 * log**2 * (np.log(d) / d) ** 0.5) ** 0.25
        + 15 * d * log / k**0.5
        + 327 * 4 * d**0.25,
        rel=1e-5,
    )


def test_the_proofs_of_gradient_differences_ask_for_more_than_the_lemmas():
    """B.8 applied at d = 25 and k = 1000, B.9 to perturbations as long as the point."""
    k, d, gamma = 1000, 25, 0.05
    start = jax.jit(lambda: networks.lazy(jax.random.key(1), k, d))()
    x, r = np.eye(d, dtype=np.float32)[:2]
    along = jax.jit(wang.gradient_difference_along)
    check = along(start, start, x, r, np.float32(0.2) * r, C0, gamma)
    least = check.assumptions["log(k/gamma) log(1/gamma) < d"]
    assert least.left == pytest.approx(np.log(k / gamma) * np.log(1 / gamma), rel=1e-5)  # 29.7
    assert not check.assumed
    assert np.isnan(check.bound)
    assert along(start, start, x, r, np.float32(0.2) * r, C0, 0.1).assumed  # 21.2
    for c1, short in ((2.4, True), (2.6, False)):  # |delta| is a fifth of it
        check = gradient_difference(start, start, x, C0, c1, jax.random.key(0), gamma)
        asked = check.assumptions
        assert asked["C1/sqrt(d) <= 1/2"].holds == short
        assert not check.assumed
        assert np.isnan(check.bound)
        expected = {
            "d^2.4 <= k": (d**2.4, k),
            "log(4 k/gamma)^2 <= d": (np.log(4 * k / gamma) ** 2, d),
            "0.33 d log(k d) <= sqrt(k)": (0.33 * d * np.log(k * d), k**0.5),
        }
        for name, (left, right) in expected.items():
            assert asked[name].left == pytest.approx(left, rel=1e-5)
            assert asked[name].right == pytest.approx(right, rel=1e-5)
            assert asked[name].holds == (left <= right)


def test_what_the_proof_of_gradient_differences_takes_for_granted():
    """k >= d^2.4 gives 0.33 d log(k d) <= sqrt(k) only for large d, as the docstring says, and with
    d >= log(4 k/gamma)^2 what else the proof asks of k."""
    d = np.exp(np.linspace(np.log(4), np.log(1e9), 10_000))
    holds = 0.33 * d * np.log(d**3.4) <= d**1.2
    assert not holds[d < 8e5].any()
    assert holds[d > 1.1e6].all()
    gamma, k = 1 - 1e-9, np.arange(1, 58)
    assert (np.log(4 * k / gamma) ** 2 > k ** (1 / 2.4)).all()
    for gamma in (1e-9, 0.05, 1 - 1e-9):
        k = np.geomspace(58, 1e12, 1000)
        assert (np.log(k) + 2 * np.log(8 / gamma) / k**0.5 <= np.log(4 * k / gamma)).all()


def test_the_first_term_of_the_gradient_bound():
    k, d, gamma, c0 = 2000, 200, 0.5, 0.5
    start = jax.jit(lambda: networks.lazy(jax.random.key(0), k, d))()
    found = gradient_norm(start, start, np.eye(d, dtype=np.float32)[0], c0, gamma).bound
    log, changed = np.log(8), (0.5 + (np.log(8) / 2) ** 0.5) / k**0.5
    active, length = 0.5 - (2 * log / k) ** 0.5 - log / k, d - 5 * (d * np.log(16)) ** 0.5
    longest = d + 4 * (d * np.log(8 * k / gamma)) ** 0.5
    expected = (active * length) ** 0.5 - c0 - (changed * longest) ** 0.5
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_gradient_bound_says_something_in_high_dimension():
    k, d = 30_000, 3000
    start = networks.lazy(jax.random.key(0), k, d)
    check = wang.gradient_norm(start, start, jnp.eye(d)[0], 1.0, 0.1)
    assert not check.vacuous
    assert check.holds
    first = (0.5 - (2 * np.log(40) / k) ** 0.5 - np.log(40) / k) ** 0.5 * (
        d - 5 * (d * np.log(80)) ** 0.5
    ) ** 0.5
    second = ((1 + (np.log(40) / 2) ** 0.5) / k**0.5) ** 0.5
    third = (d + 4 * (d * np.log(8 * k / 0.1)) ** 0.5) ** 0.5
    assert check.bound == pytest.approx(first - 1 - second * third, rel=1e-4)


def test_assumptions_are_checked(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    assert not output(params, start, 2 * x, C0).assumed
    assert not output(params, start, x, 0.9 * C0).assumed
    assert output(params, start, x, C0).assumed
    delta = np.eye(40, dtype=np.float32)[0]
    share = jax.jit(wang.sign_change_share)
    assert not share(start, x, delta).assumed
    assert share(start, x, np.float32(0.1) * delta).assumed


@pytest.mark.parametrize(
    "change",
    [
        lambda start: start._replace(b=5 * start.v),
        lambda start: start._replace(v=np.sign(start.v)),
        lambda start: start._replace(v=start.v * np.float32(1.01)),
    ],
    ids=["biases", "tops of 1", "other tops"],
)
def test_other_networks_than_those_of_the_lemmas_are_told(networks_in_ball, change):
    """Of these the bounds say nothing, and were called refuted."""
    start, params, x = (jax.tree.map(lambda a: a[0], one) for one in networks_in_ball)
    assert output(params, start, x, C0).assumed
    assert not output(change(params), start, x, C0).assumed
    assert not output(change(params), change(start), x, C0).assumed
    assert not output(params._replace(v=-params.v), start, x, C0).assumed  # v was trained
    if change(start).b.any():
        assert not sign_changes(change(start), x, 0.1).assumed
        share = jax.jit(wang.sign_change_share)
        assert share(start, x, np.float32(0.1) * x).assumed
        assert not share(change(start), x, np.float32(0.1) * x).assumed


def test_the_edge_of_a_small_ball_of_many_neurons_is_inside():
    k = 100_000
    start = jax.jit(lambda: networks.lazy(jax.random.key(0), k, 20))()
    away = start._replace(w=start.w + normal(1, k, 20))
    edge = jax.jit(lazy.project)(away, start, k**-0.5)
    furthest = np.max(jax.jit(lazy.distances)(edge, start))
    assert furthest * k**0.5 > 1 + wang.ROUNDING  # the rounding of w
    x = np.eye(20, dtype=np.float32)[0]
    assert output(edge, start, x, 1.0).assumed
    assert not output(edge, start, x, 0.99).assumed


@pytest.mark.parametrize("sign", [1, -1])
def test_measured_is_what_the_lemmas_speak_of(networks_in_ball, sign):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    start, params = (one._replace(v=np.float32(sign) * one.v) for one in (start, params))
    assert_close(output(params, start, x, C0).measured, abs(networks.apply(params, x)), rtol=1e-4)
    norm = np.linalg.norm(jax.grad(lambda z: networks.apply(params, z))(x))
    assert_close(gradient_norm(params, start, x, C0).measured, norm, rtol=1e-5)
    quarter = jax.jit(wang.quarter_of_the_dimension)(params, start, x, C0)
    assert_close((quarter.measured, quarter.bound), (norm, np.sqrt(40) / 4), rtol=1e-5)
    delta = np.float32(0.2) * np.eye(40, dtype=np.float32)[0]
    share = jax.jit(wang.sign_change_share)(start, x, delta)
    changed = (start.w @ x > 0) != (start.w @ (x + delta) > 0)
    expected = changed.mean(), np.float64(0.2 * (2 * np.log(40)) ** 0.5 + 1 / 40)
    assert_close((share.measured, share.bound), expected, rtol=1e-5)


def test_gradient_differences_are_looked_for_along_the_gradient(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[:5], part) for part in networks_in_ball)

    def one(start, params, x):
        here = input_gradient(params, x)
        step = 1.5 / 40**0.5 * here / jnp.linalg.norm(here)
        ends = [jnp.linalg.norm(input_gradient(params, x + s * step) - here) for s in (1, -1)]
        check = wang.gradient_difference(params, start, x, C0, 1.5, jax.random.key(0), samples=0)
        return check.measured, jnp.stack(ends)

    measured, ends = jax.jit(jax.vmap(one))(start, params, x)
    assert len(set(np.argmax(ends, axis=1).tolist())) == 2
    assert_close(measured, np.max(ends, axis=1), rtol=1e-4)


def test_gradient_differences_grow_with_the_perturbation(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    key = jax.random.key(0)
    sizes = [
        float(gradient_difference(params, start, x, C0, c1, key).measured)
        for c1 in (0.01, 1.0, 3.0)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 3


def test_the_gradient_difference_along_a_direction(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    _, r, delta, *_ = np.eye(40, dtype=np.float32)
    delta *= np.float32(0.1)
    difference = jax.jit(wang.gradient_difference_along)
    check = difference(params, start, x, r, delta, C0, 0.1)
    gradient = jax.jit(jax.grad(lambda z: networks.apply(params, z)))
    here, there = np.asarray(gradient(x)), np.asarray(gradient(x + delta))
    assert check.measured == pytest.approx(float(r @ (here - there)), abs=1e-4)
    log, k, d = np.log(40), 2000, 40
    assert check.bound == pytest.approx(
        2 * log**0.5 * ((4 * 0.1 * np.log(d) ** 0.5) ** 0.25 + (log / k) ** 0.5)
        + C0
        + 5 * (C0 + log**0.5) * (np.log(4 * k / 0.1) ** 0.5 + 3)
        + 3
        * ((C0 + (log / 2) ** 0.5) / k**0.5) ** 0.5
        * (d + 4 * (d * np.log(8 * k / 0.1)) ** 0.5) ** 0.5,
        rel=1e-5,
    )
    assert check.assumed
    assert check.holds
    assert not difference(params, start, x, 2 * r, delta, C0).assumed


def test_the_gradient_difference_is_that_of_short_perturbations(networks_in_ball):
    """It applied whatever their length."""
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    unit = np.eye(40, dtype=np.float32)[0]
    along = jax.jit(wang.gradient_difference_along)
    found = [along(params, start, x, unit, np.float32(r) * unit, C0).assumed for r in (0.4, 0.6)]
    assert found == [True, False]


def test_the_step_constant_and_the_cone(networks_in_ball):
    _start, params, x = networks_in_ball
    constants = jax.jit(jax.vmap(wang.step_constant))(params, x)
    assert np.isfinite(constants).all()
    assert (constants > 0).all()
    # Where the network were linear the constant would be |f|.
    outputs = np.abs(jax.jit(jax.vmap(networks.apply))(params, x))
    assert 0.5 < np.median(constants / outputs) < 2
    cone = jax.jit(jax.vmap(lambda p, x: wang.cone(p, x, 30.0)))(params, x)
    assert cone.holds.all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-1.0, 0.1, 0.2), "weight_radius must be at least 0 and finite, got -1"),
        ((0.1, 0.0, 0.2), "epsilon must be positive and finite, got 0"),
        ((0.1, 0.1, -0.2), "perturbation must be at least 0 and finite, got -0.2"),
        ((0.1, 0.1, 0.6), "asks for a perturbation of at most 1/2, got 0.6"),
    ],
)
def test_probabilities_outside_of_the_lemma_are_refused(numbers, message):
    radius, epsilon, perturbation = numbers
    with pytest.raises(ValueError, match=message):
        wang.sign_change_probability(radius, epsilon, 40, perturbation)


def test_the_cone_scales_biases_too():
    # relu(x1 + 1) - 1.5 is 0.5 at x1 = 1.
    params = networks.Params(*map(jnp.array, ([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0], [1.0, -1.5])))
    check = jax.jit(wang.cone)(params, jnp.array([1.0, 0.0]), 3.0)
    assert_close((check.bound, check.measured), (0.5 * 1.001, 0.5), rtol=1e-5)


def test_a_point_that_no_step_flips_is_none_on_the_cone_either():
    x, one = np.array([1, 0], np.float32), np.ones(1, np.float32)
    check = jax.jit(wang.cone)(networks.Params(x[None], 0 * one, one), x, 3.0)
    assert np.isinf(check.bound)
    assert check.empty  # it held, of inf
    assert not check.holds


@pytest.mark.parametrize(("w", "b"), [([-1.0, 0.0], 0.0), ([0.0, 0.0], 1.0)])
def test_where_the_gradient_is_0_no_step_flips(w, b):
    """The constant was NaN, and the claim of the cone failed, or held of no step."""
    params = networks.Params(jnp.array([w]), jnp.array([b]), jnp.ones(1))
    x = jnp.array([1.0, 0.0])
    assert float(wang.step_constant(params, x)) == np.inf
    assert wang.cone(params, x, 2.0).empty
    broken = params._replace(b=jnp.array([np.nan]))
    assert np.isnan(wang.step_constant(broken, x))
    found = wang.cone(broken, x, 2.0)
    assert not found.holds
    assert not found.vacuous


def test_steps_longer_than_the_point_are_looked_for_where_asked():
    """The constant was inf for a network that such a step flips, and nothing said how far."""
    w, v = jnp.array([[1.1, 1.8], [-2.6, -0.1]]), jnp.array([2**-0.5, -(2**-0.5)])
    params, x = networks.Params(w, jnp.zeros(2), v), jnp.array([1.0, 0.0])
    assert float(wang.step_constant(params, x)) == np.inf
    # Along -(1.1, 1.8) the first neuron is off at |delta| = 1.1 / 2.11, the second then on.
    c = np.linspace(0, 4, 400_001)
    moved = np.asarray(x, float) - c[:, None] * np.array([1.1, 1.8]) / np.hypot(1.1, 1.8)
    outputs = np.maximum(moved @ np.asarray(w, float).T, 0) @ np.asarray(v, float)
    least = c[np.argmax(outputs < 0)]
    assert least > 1
    norm = np.hypot(1.1, 1.8) * 2**-0.5
    assert float(wang.step_constant(params, x, 10.0)) == pytest.approx(least * norm, rel=1e-4)


def test_the_window_of_widths_does_not_overflow():
    assert wang.width_window(10**9)[1] == pytest.approx(np.exp(1e9**0.24))
    assert wang.width_window(10**13)[1] == np.inf


def test_the_window_of_widths():
    least, most = wang.width_window(100, gamma=0.05)
    assert least == pytest.approx(100**2.4)
    assert most == pytest.approx(np.exp(100**0.24), rel=1e-5)
    assert most < least
    least, most = wang.width_window(10_000_000)
    assert least < most
    assert wang.width_window(2, gamma=1e-9, c3=5.0)[0] == pytest.approx(5 * np.log(1e9), rel=1e-5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"c0": 0.0}, "c0 must be positive and finite, got 0"),
        ({"c0": 1.0, "gamma": 1.5}, "gamma is a probability below 1, got 1.5"),
        ({"c0": 1.0, "gamma": 0.0}, "gamma must be positive and finite, got 0"),
    ],
)
def test_bad_constants_are_refused(networks_in_ball, settings, message):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    with pytest.raises(ValueError, match=message):
        wang.output(params, start, x, **settings)


def test_the_bound_of_gradient_differences_in_a_small_ball():
    """max(1, C0) C0 is C0 below 1."""
    k, d, c0 = 2000, 16, 0.5
    found = jax.jit(wang.gradient_difference_bound)(float(k), float(d), c0, 1.5)
    log = np.log(k * d)
    expected = (
        9 * (1.5 * d**2 * log**2 * (np.log(d) / d) ** 0.5) ** 0.25
        + 15 * d * log / k**0.5
        + 327 * c0 * d**0.25
    )
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("size", "vacuous"), [(0.1, False), (0.5, True)])
def test_a_share_of_all_says_nothing(size, vacuous):
    """0.5 sqrt(2 log 4) + 1/4 is 1.08."""
    start = jax.jit(lambda: networks.lazy(jax.random.key(1), 50, 4))()
    x, delta = np.eye(4, dtype=np.float32)[:2]
    check = jax.jit(wang.sign_change_share)(start, x, np.float32(size) * delta)
    assert check.assumed
    assert check.vacuous == vacuous


def test_the_ledger_asks_each_lemma_at_its_own_size():
    """V = C0/sqrt(k) of weights, |delta| = 1/sqrt(d) of points."""
    k, d, c0 = 400, 40, 1.0
    start = jax.jit(lambda: networks.lazy(jax.random.key(1), k, d))()
    x = np.asarray(normal(2, 3, d))
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = jax.jit(wang.ledger)(start, start, x, c0)
    changed, around, _, share, eq4, *_, along, _ = (found[name] for name in wang.LEMMAS)
    near = np.sum(np.abs(x @ np.asarray(start.w).T) <= c0 / k**0.5, axis=1)
    assert (near > 0).all()
    np.testing.assert_allclose(changed.measured, near, atol=1)
    bound = c0 * k**0.5 + (k * np.log(20) / 2) ** 0.5
    np.testing.assert_allclose(changed.bound, bound, rtol=1e-5)
    np.testing.assert_allclose(around.bound, bound * (1 + d**-0.5), rtol=1e-5)
    epsilon = (k * d) ** (-4 / 7)
    probability = wang.sign_change_probability(c0 / k**0.5, epsilon, d, d**-0.5)
    np.testing.assert_allclose(eq4.bound, probability, rtol=1e-5)
    bound = (2 * np.log(d) / d) ** 0.5 + 1 / d
    np.testing.assert_allclose(share.bound, bound, rtol=1e-5)
    log = np.log(4 / 0.05)
    bound = (
        2 * log**0.5 * ((4 * (np.log(d) / d) ** 0.5) ** 0.25 + (log / k) ** 0.5)
        + c0
        + 5 * (c0 + log**0.5) * (np.log(4 * k / 0.05) ** 0.5 + 3)
        + 3
        * ((c0 + (log / 2) ** 0.5) / k**0.5) ** 0.5
        * (d + 4 * (d * np.log(8 * k / 0.05)) ** 0.5) ** 0.5
    )
    np.testing.assert_allclose(along.bound, bound, rtol=1e-5)
    assert along.assumed.all()


@pytest.mark.parametrize("c0", [1.0, 10.0])
def test_padding_changes_no_lemma(c0):
    """B.4 was refuted by zeros, that count as neurons near 0, and B.6 took a share of them."""
    k, d, gamma = 300, 16, 0.05
    draw = jax.jit(networks.lazy, static_argnums=(1, 2), static_argnames="shape")
    start, padded = draw(jax.random.key(0), k, d), draw(jax.random.key(0), k, d, shape=(450, 32))
    assert_close(padded.w[:k, :d], start.w, rtol=1e-6)
    x = np.asarray(normal(1, 3, d))
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    ledger = jax.jit(wang.ledger)
    alone = jax.device_get(ledger(start, start, x, c0, gamma))
    wide = jax.device_get(ledger(padded, padded, np.pad(x, ((0, 0), (0, 16))), c0, gamma))
    near = (np.abs(x @ np.asarray(start.w).T) <= c0 / k**0.5).sum(axis=1)
    np.testing.assert_allclose(wide[wang.LEMMAS[0]].measured, near, atol=1)
    for name, check in alone.items():
        for asked, one in check.assumptions.items():
            sides = jax.tree.map(np.asarray, (one[:2], wide[name].assumptions[asked][:2]))
            np.testing.assert_allclose(*sides, rtol=1e-4, atol=1e-4, err_msg=asked)
        assert (wide[name].assumed == check.assumed).all(), name
        np.testing.assert_allclose(wide[name].bound, check.bound, rtol=1e-4, err_msg=name)
        assert (wide[name].vacuous == check.vacuous).all(), name
    # What is measured with no draw is the same; with draws of 32 coordinates in place of 16, like.
    for i in (1, 2, 5, 6):
        name = wang.LEMMAS[i]
        np.testing.assert_allclose(wide[name].measured, alone[name].measured, rtol=1e-3)
    share = jax.jit(wang.sign_change_share)
    delta = np.float32(0.2) * np.eye(d, dtype=np.float32)[0]
    found = share(padded, np.pad(x[0], (0, 16)), np.pad(delta, (0, 16)))
    assert_close(found.measured, share(start, x[0], delta).measured, rtol=1e-5)
    difference = (one[wang.LEMMAS[-1]].measured.mean() for one in (wide, alone))
    assert next(difference) == pytest.approx(next(difference), rel=0.3)


@pytest.mark.parametrize("d", [2, 25])
def test_neurons_that_can_change_around_a_point_are_found_by_hand(d):
    """Against a fine circle in the plane of x and w_j, where the best delta lies."""
    k, gamma, weights = 400, 0.05, 0.1
    start = jax.jit(lambda: networks.lazy(jax.random.key(3), k, d))()
    x = np.eye(d, dtype=np.float32)[0]
    w = np.asarray(start.w, np.float64)
    along, across = w[:, 0], np.linalg.norm(w[:, 1:], axis=1)
    angle = np.linspace(0, 2 * np.pi, 100_001)
    around = jax.jit(wang.sign_changes_around)
    for radius in (0.01, 0.2, 0.5):
        right, up = 1 + radius * np.cos(angle), radius * np.sin(angle)
        sizes = weights * np.hypot(right, up)
        # A kink inside the disk crosses its edge, too: the least there is not above.
        least = [
            np.min(np.abs(a * right + c * up) - sizes) for a, c in zip(along, across, strict=True)
        ]
        check = around(start, x, weights, radius, gamma)
        assert abs(int(check.measured) - np.sum(np.array(least) <= 0)) <= 1
        expected = (weights * k + (k * np.log(20) / 2) ** 0.5) * (1 + radius)
        assert check.bound == pytest.approx(expected, rel=1e-5)
        assert check.assumed
    assert not around(start, x, weights, 0.6, gamma).assumed
    assert not around(start, 2 * x, weights, 0.5, gamma).assumed


def test_the_second_half_of_the_first_lemma_does_not_hold_as_it_is_printed():
    k, d, c0 = 1000, 100, 1.0
    start = jax.jit(lambda: networks.lazy(jax.random.key(0), k, d))()
    x = np.eye(d, dtype=np.float32)[0]
    check = jax.jit(wang.sign_changes_around)(start, x, c0 / k**0.5, d**-0.5)
    assert check.assumed
    assert not check.vacuous
    assert check.measured > 4 * check.bound
    # For a delta that was fixed before the draw it does.
    moved = x + np.float32(d**-0.5) * np.eye(d, dtype=np.float32)[1]
    near = sign_changes(start, moved, c0 / k**0.5).measured
    assert near <= check.bound


def test_neurons_that_can_change_near_a_moved_point():
    """Equation 4: nets of points, on both sides of which an output may be."""
    k, d, epsilon, radius = 500, 25, 0.02, 0.05
    start = jax.jit(lambda: networks.lazy(jax.random.key(4), k, d))()
    x, delta = np.eye(d, dtype=np.float32)[:2] * np.array([[1], [0.2]], np.float32)
    check = jax.jit(wang.sign_change_share_around)(start, x, delta, epsilon, radius)
    u, w = (x + delta).astype(float), np.asarray(start.w, np.float64)
    rng, changes = np.random.default_rng(0), np.zeros(k, bool)
    # The best v is against w . u, the best point is back along w + v: a search finds no other.
    for sign in (-1, 1):
        moved = w + sign * radius * u / np.linalg.norm(u)
        length = np.linalg.norm(moved, axis=1)
        changes |= np.abs(moved @ u) <= epsilon * length
    tried = rng.normal(size=(200, d))
    tried *= radius / np.linalg.norm(tried, axis=1, keepdims=True)
    for v in tried:
        changes |= np.abs((w + v) @ u) <= epsilon * np.linalg.norm(w + v, axis=1)
    changes |= np.abs(w @ u) <= radius * np.linalg.norm(u)
    assert float(check.measured) * k == pytest.approx(changes.sum(), abs=3)
    assert float(check.measured) * k >= changes.sum() - 1
    expected = wang.sign_change_probability(radius, epsilon, d, 0.2)
    assert check.bound == pytest.approx(float(expected), rel=1e-5)
    assert check.assumed
    assert check.holds
    assert not jax.jit(wang.sign_change_share_around)(start, x, delta, 1.5, radius).assumed


def test_no_network_of_the_ball_has_a_larger_output(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    worst = jax.jit(wang.worst_output)(start, x, C0)
    k = 2000
    moved = np.linalg.norm(worst.w - start.w, axis=1)
    np.testing.assert_allclose(moved, C0 / k**0.5, rtol=1e-3)
    check = output(worst, start, x, C0)
    assert check.assumed
    assert check.measured > 1.5 * output(params, start, x, C0).measured
    # Each neuron alone, at the least and largest w_j . x that its ball has.
    pre, v = np.asarray(start.w, float) @ np.asarray(x, float), np.asarray(start.v, float)
    ends = [v * np.maximum(pre + s * C0 / k**0.5, 0) for s in (-1, 1)]
    largest = max(np.maximum(*ends).sum(), -np.minimum(*ends).sum())
    assert check.measured == pytest.approx(largest, rel=1e-4)
    # Of a point that is longer, and of the other sign.
    for one in (start, start._replace(v=-start.v)):
        longer = jax.jit(wang.worst_output)(one, 3 * x, C0)
        assert abs(networks.apply(longer, x)) == pytest.approx(largest, rel=1e-4)


def test_the_output_of_wide_networks(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    wide = jax.jit(wang.output_of_wide)
    check = wide(params, start, x, C0, 0.1)
    assert check.bound == pytest.approx(2 * np.log(20) ** 0.5 + C0, rel=1e-5)
    assert check.assumed
    assert check.holds
    assert check.measured == output(params, start, x, C0, 0.1).measured
    for k, applies in ((34, False), (36, True)):  # 34.9
        small = jax.jit(lambda key, k=k: networks.lazy(key, k, 40))(jax.random.key(0))
        check, sharp = wide(small, small, x, C0, 0.1), output(small, small, x, C0, 0.1)
        assert check.assumed == applies
        if applies:
            assert check.bound >= sharp.bound


def test_gradient_differences_as_a_share_of_the_root_of_d(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    key = jax.random.key(0)
    share = jax.jit(wang.gradient_difference_share)
    check = share(params, start, x, C0, 1.5, 0.9, key)
    same = gradient_difference(params, start, x, C0, 1.5, key)
    assert check.measured == pytest.approx(float(same.measured), rel=1e-5)
    assert check.bound == pytest.approx(0.9 * 40**0.5, rel=1e-5)
    assert check.assumed
    assert check.holds
    assert not share(params, start, x, C0, 1.5, 0.01, key).holds
    assert not share(params, start, x, C0, 3.5, 0.9, key).assumed


def test_one_step_of_the_constant_flips_and_a_shorter_one_does_not(networks_in_ball):
    start, params, x = (jax.tree.map(lambda a: a[0], part) for part in networks_in_ball)
    constant = float(jax.jit(wang.step_constant)(params, x))
    step = jax.jit(wang.one_step)
    for c2, flips in ((1.02 * constant, True), (0.98 * constant, False)):
        check = step(params, start, x, C0, c2)
        assert check.holds == flips
        assert check.assumed
        f, gradient = networks.apply(params, x), np.asarray(input_gradient(params, x))
        there = x - np.sign(f) * np.float32(c2) / np.sum(gradient**2) * gradient
        expected = -np.sign(f) * networks.apply(params, there)
        assert check.measured == pytest.approx(float(expected), abs=1e-4)
    assert not step(params, start, x, 0.9 * C0, constant).assumed
    flat = params._replace(w=-np.ones_like(params.w) * x)
    assert not step(flat, start, x, C0, 1.0).holds  # no step
