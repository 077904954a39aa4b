"""The claims of Vardi, Yehudai, Shamir (2022), on KKT networks solved by hand and polished."""

import jax
import jax.numpy as jnp
import kkt_cases
import mpmath
import numpy as np
import pytest
import scipy.integrate
from cases import problem

from jaxkkt import datasets, kkt, networks, single, spans, theory
from jaxkkt.networks import Params
from jaxkkt.theory import KKTPoint, frei, kkt_point, vardi

ledger, summary, margins = map(jax.jit, (vardi.ledger, vardi.summary, networks.margins))
pytestmark = pytest.mark.usefixtures("float64")


def exact(case):
    """A network of `kkt_cases`, with its own multipliers and slopes."""
    return KKTPoint(
        jax.tree.map(jnp.asarray, case.params),
        *map(jnp.asarray, (case.x, case.y, case.multipliers, case.slopes)),
    )


@pytest.fixture
def orthogonal():
    """x_i = sqrt(d) e_i for i <= 4 of d = 12, three positive: m = 4 of 13/3 allowed."""
    case = kkt_cases.orthogonal(3, 1, 12**0.5)
    x = np.pad(case.x, ((0, 0), (0, 8)))
    params = case.params._replace(w=np.pad(case.params.w, ((0, 0), (0, 8))))
    return exact(case._replace(params=params, x=x))


def test_of_many_entries_those_that_a_claim_is_about_count():
    measured, bound = jnp.array([-3.0, 2.0, 1e6]), jnp.array([0.0, 1.0, 0.0])
    found = theory.checks.tightest(measured, bound, {}, jnp.array([False, True, True]))
    assert (found.measured, found.bound, found.slack, found.holds) == (2, 1, 1, True)
    nothing = theory.checks.tightest(measured, bound, {}, jnp.zeros(3, bool))
    assert (nothing.holds, nothing.vacuous, nothing.empty) == (False, True, True)
    assert np.isnan([nothing.measured, nothing.slack]).all()
    assert (found.vacuous, found.empty) == (False, False)
    # Rounding is in units of the largest entry that it is about.
    for where, holds in (([True, True, False], False), ([True, True, True], True)):
        found = theory.checks.tightest(measured, bound, {}, jnp.array(where), rounding=1e-5)
        assert (found.slack, found.holds) == (-3, holds)


def test_every_lemma_holds_at_a_kkt_point(orthogonal):
    s = summary(orthogonal.x, orthogonal.y)
    assert (int(s.m), int(s.d), float(s.p), float(s.share)) == (4, 12, 0.0, 0.25)
    for name, check in ledger(orthogonal, s).items():
        assert check.assumed, (name, check.assumptions)
        assert check.holds, (name, check)


def test_the_numbers_are_those_of_the_formulas(orthogonal):
    s = summary(orthogonal.x, orthogonal.y)
    c, p, m, d = 0.25, 0.0, 4, 12
    c_prime = m * (p + 1) / (d + 1)
    eta1, eta2 = 1 / d, 2 * (c * c_prime + 1) * (d + 1) / (m * c * d)
    np.testing.assert_allclose(jax.jit(lambda s: s.etas)(s), (eta1, eta2))
    found = ledger(orthogonal, s)
    z = (eta1 + eta2) * np.asarray(orthogonal.y) @ np.asarray(orthogonal.x)
    np.testing.assert_allclose(jax.jit(vardi.perturbation)(orthogonal, s), z)
    np.testing.assert_allclose(found["C.9: size of z"].measured, np.linalg.norm(z))
    np.testing.assert_allclose(found["C.9: size of z"].bound, 18 * 24**0.5 / (c * 2))
    assert found["C.9: size of z"].vacuous  # far beyond sqrt(12)
    np.testing.assert_allclose(found["C.5: d - m p > 0"].measured, 12)
    w, b, v = kkt_cases.arrays(orthogonal.params)
    pulls = np.asarray(orthogonal.multipliers)[:, None] * np.asarray(orthogonal.slopes)
    masses = [np.sum(v[side] ** 2 * pulls[:, side]) for side in (v >= 0, v < 0)]
    np.testing.assert_allclose(found["C.2: mass of the multipliers"].measured, min(masses))
    bound = m * c / ((c * c_prime + 1) * (d + 1))
    np.testing.assert_allclose(found["C.2: mass of the multipliers"].bound, bound)
    x, y = np.asarray(orthogonal.x), np.asarray(orthogonal.y)
    moved = y * (np.maximum((x - y[:, None] * z) @ w.T + b, 0) @ v)
    np.testing.assert_allclose(found["C.7: positive samples flipped"].measured, moved[:3].max())
    np.testing.assert_allclose(found["C.8: negative samples flipped"].measured, moved[3])
    slack = x @ w.T + b + (p + 1) * np.abs(v) * pulls.sum(axis=0)
    np.testing.assert_allclose(
        found["C.3: preactivations from below"].slack, slack.min(), atol=1e-12
    )
    gain = np.sign(v) * (w @ (y @ x)) - np.abs(v) * pulls.sum(axis=0) * (d - m * p)
    np.testing.assert_allclose(found["C.4: weights along u"].slack, gain.min(), atol=1e-12)
    active = x @ w.T + b + eta1 * np.sign(v) * (w @ (y @ x))
    np.testing.assert_allclose(
        found["C.6: opposing neurons active"].slack, active.min(), atol=1e-12
    )


@pytest.mark.slow
def test_a_polished_network_obeys_every_lemma():
    key = jax.random.key(3)
    data = datasets.Dataset(*map(jnp.asarray, datasets.sphere(key, 3, 400)))
    data = data._replace(y=jnp.array([1.0, -1.0, 1.0]))
    start = networks.torch_linear(jax.random.key(1), 12, 400)
    trained = single.train(start, *data).params
    polished = kkt.polish(trained, *data)
    point = kkt_point(polished.params, *data, kkt.certificate(polished.params, *data))
    s = vardi.summary(*data)
    for name, check in ledger(point, s).items():
        assert check.assumed, (name, check.assumptions)
        assert check.holds, (name, check)
    # The trained network is no KKT point yet: nothing is promised about it.
    early = kkt_point(trained, *data, kkt.certificate(trained, *data))
    assert not vardi.mass(early, s).assumed
    assert np.isnan(vardi.mass(early, s).bound)


def broken(point, what):
    if what == "multiplier":
        return point._replace(multipliers=point.multipliers.at[1].multiply(1.1))
    if what == "sign":
        return point._replace(multipliers=-point.multipliers)
    if what == "weight":
        return point._replace(params=point.params._replace(w=point.params.w.at[0].multiply(1.05)))
    if what == "scale":
        return point._replace(params=Params(*(1.1 * leaf for leaf in point.params)))
    return point._replace(params=point.params._replace(b=point.params.b - 0.3))


@pytest.mark.parametrize("what", ["multiplier", "sign", "weight", "scale", "bias"])
def test_what_is_no_kkt_point_is_told(orthogonal, what):
    s = summary(orthogonal.x, orthogonal.y)
    found = ledger(broken(orthogonal, what), s)
    failed = {
        n for n, a in found["C.2: mass of the multipliers"].assumptions.items() if not a.holds
    }
    assert failed & {"residual = 0", "q_i >= 1", "lambda_i >= 0", "slackness = 0"}
    assert not found["C.7: positive samples flipped"].assumed
    assert np.isnan(found["C.7: positive samples flipped"].bound)


def twice(point, slopes):
    """The first sample, which only the first neuron is on at, as two of these slopes there."""
    first = jnp.asarray([0, 0, 1, 2, 3])
    half = jnp.asarray([0.5, 0.5, 1, 1, 1])
    return KKTPoint(
        point.params,
        point.x[first],
        point.y[first],
        point.multipliers[first] * half,
        point.slopes[first].at[:2, 0].set(jnp.asarray(slopes)),
    )


@pytest.mark.parametrize(
    ("slopes", "holds"), [((1.0, 1.0), True), ((1.5, 0.5), False), ((3.0, -1.0), False)]
)
def test_slopes_that_relu_does_not_have_are_told(orthogonal, slopes, holds):
    """Their sum is right, and so is the residual."""
    found = jax.jit(KKTPoint.conditions)(twice(orthogonal, slopes))
    assert {name for name, one in found.items() if not one.holds} == (
        set() if holds else {"sigma'_ij is relu's"}
    )


def test_at_a_kink_slopes_are_between_0_and_1(orthogonal):
    """All of the second neuron's but the last are at kinks, with the slope 0.12 each."""
    for part, holds in ((0.1, True), (0.15, False)):
        point = twice(orthogonal, (1.0, 1.0))
        here = point.slopes.at[0, 1].add(part).at[1, 1].add(-part)
        found = jax.jit(KKTPoint.conditions)(point._replace(slopes=here))
        assert bool(found["sigma'_ij is relu's"].holds) == holds
        assert found["residual = 0"].holds


def test_assumptions_on_the_samples(orthogonal):
    x, y = orthogonal.x, orthogonal.y
    assumptions = jax.jit(lambda x, y: vardi.summary(x, y).assumptions())
    outside = assumptions(1.1 * np.asarray(x), y)
    assert not outside["|x_i| = sqrt(d)"].holds
    crowded = assumptions(12**0.5 * np.eye(12), np.resize([1.0, -1.0], 12))
    assert not crowded["m <= (d+1) / (3 (p+1))"].holds
    with pytest.raises(ValueError, match="samples of both labels, got 3 of one"):
        vardi.summary(x, y, y > 0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("chosen", [[True], np.array([1, 1, 0, 1]), np.array([0, 3])])
def test_a_choice_that_is_not_one_truth_value_a_sample_is_refused(orthogonal, chosen):
    with pytest.raises(ValueError, match=r"chosen must hold True or False .*shape \(4,\), got"):
        vardi.summary(orthogonal.x, orthogonal.y, chosen)


def test_the_corollary_is_about_the_samples_on_the_margin(orthogonal):
    """A fifth sample far inside its class has no multiplier, another norm, and changes nothing."""
    w = np.asarray(orthogonal.params.w)
    far = 3 * w[0] / np.linalg.norm(w[0]) * 12**0.5
    more = KKTPoint(
        orthogonal.params,
        np.concatenate([orthogonal.x, far[None]]),
        np.append(orthogonal.y, 1.0),
        np.append(orthogonal.multipliers, 0.0),
        np.concatenate([orthogonal.slopes, [[1.0, 0.0]]]),
    )
    everybody = jax.jit(lambda x, y: vardi.summary(x, y).assumptions())(more.x, more.y)
    assert not everybody["|x_i| = sqrt(d)"].holds
    some = jax.jit(vardi.on_margin)(more)
    assert some.chosen.tolist() == [True] * 4 + [False]
    alone = ledger(orthogonal, summary(orthogonal.x, orthogonal.y))
    for name, check in ledger(more, some).items():
        assert check.assumed, name
        np.testing.assert_allclose(check.slack, alone[name].slack, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_padding_is_inert(orthogonal):
    wide = networks.pad(orthogonal.params, 5, 12)
    padded = KKTPoint(
        wide,
        jnp.pad(orthogonal.x, ((0, 2), (0, 0))),
        jnp.pad(orthogonal.y, (0, 2)),
        jnp.pad(orthogonal.multipliers, (0, 2)),
        jnp.pad(orthogonal.slopes, ((0, 2), (0, 3))),
    )
    alone = ledger(orthogonal, summary(orthogonal.x, orthogonal.y))
    for name, check in ledger(padded, summary(padded.x, padded.y)).items():
        assert check.holds, name
        np.testing.assert_allclose(check.measured, alone[name].measured, atol=1e-9, err_msg=name)


# --- Theorem 3.1 and Lemma 3.1 ---


def test_the_robust_network_keeps_its_promise():
    _, (x, y) = jax.tree.map(np.asarray, problem(20, 60, 5))
    x = x * 60**0.5 / np.linalg.norm(x, axis=1, keepdims=True)
    s = summary(x, y)
    network = vardi.robust_network(x, y, float(s.p / s.d))
    np.testing.assert_allclose(margins(network, x, y), 1)
    radius = float(jax.jit(vardi.robust_radius)(s))
    assert radius == pytest.approx((1 - float(s.p) / 60) * 60**0.5 / 4)
    # By its own argument a sample's neuron stays at least half on, and all others off.
    for direction in np.random.default_rng(0).normal(size=(50, 60)):
        away = radius * direction / np.linalg.norm(direction)
        assert np.min(margins(network, x + away, y)) >= 0.5 - 1e-9
    # Towards 0 its margin is half at the radius itself, where x is worst.
    inward = margins(network, x * (1 - radius / 60**0.5), y)
    np.testing.assert_allclose(inward, 0.5)
    with pytest.raises(ValueError, match=r"c is a share of d in \[0, 1\), got 1"):
        vardi.robust_network(x, y, 1.0)


@pytest.mark.slow
def test_outside_of_the_theorems_there_is_no_number():
    """A radius was promised to points near 0, and z pointed the other way."""
    off = summary(*datasets.gaussian(jax.random.key(0), 6, 50))
    assert np.isnan(vardi.robust_radius(off))
    many = summary(*datasets.sphere(jax.random.key(0), 40, 50))
    assert many.room < 0
    assert np.isnan(many.etas).all()
    means = np.eye(4, 40, dtype=np.float32) * np.float32(40**0.5)
    noisy = frei.clusters(means, np.array([1, 1, -1, -1], np.float32), 1.0)
    assert noisy.room < 0
    assert np.isnan(noisy.etas).all()


def test_the_robust_network_of_points_in_their_span():
    """Their d is not the number of coordinates."""

    @jax.jit
    def found():
        x, y = spans.sphere(jax.random.key(0), 4, 1e4)
        s = summary(x, y, d=1e4)
        return margins(vardi.robust_network(x, y, s.p / s.d, s.d), x, y)

    np.testing.assert_allclose(found(), 1, rtol=1e-4)


def test_densities_of_many_dimensions_and_at_the_end():
    """They were 14% off in float32, 0 at d = 1e16, and an error at 1."""
    t = np.array([3e-4, 1e-3])
    np.testing.assert_allclose(vardi.correlation_density([0, 0.5], 3), [1, 1])
    exact = vardi.correlation_density(t, 10**7)
    np.testing.assert_allclose(exact, [1608.8, 17.0], rtol=1e-3)
    np.testing.assert_allclose(vardi.correlation_density(t.astype(np.float32), 10**7), exact, 1e-3)
    for d in (5, 10**6, 10**12, 10**16):
        exact = 2 / mpmath.beta(0.5, mpmath.mpf(d - 1) / 2)
        assert float(vardi.correlation_density(0.0, d)) == pytest.approx(float(exact), rel=1e-13)
    assert vardi.correlation_density(1.0, 2) == np.inf
    assert vardi.correlation_density(1.0, 3) == pytest.approx(1)
    assert vardi.correlation_density(1.0, 4) == 0


@pytest.mark.usefixtures("unchecked")
def test_the_robust_network_of_lists_of_whole_numbers_is_not_rounded():
    network = vardi.robust_network([[2, 0, 0, 0], [0, 2, 0, 0]], [1, -1], 0.25)
    np.testing.assert_allclose(network.b, -1.25 / 0.75)
    assert {leaf.dtype for leaf in network} == {jnp.dtype("float64")}


@pytest.mark.parametrize("d", [3, 10, 100])
def test_the_density_of_correlations(d):
    total, _ = scipy.integrate.quad(lambda t: float(vardi.correlation_density(t, d)), 0, 1)
    assert total == pytest.approx(1, abs=1e-8)
    points = np.random.default_rng(d).normal(size=(2, 20_000, d))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    above = np.mean(np.abs(np.sum(points[0] * points[1], axis=1)) > 0.3)
    tail, _ = scipy.integrate.quad(lambda t: float(vardi.correlation_density(t, d)), 0.3, 1)
    assert above == pytest.approx(tail, abs=5 * (tail * (1 - tail) / 20_000) ** 0.5 + 1e-9)


@pytest.mark.usefixtures("unchecked")
def test_correlations_that_cannot_be_are_refused():
    for t in (1.5, -0.5, float("nan"), np.array([0.5, 1.1])):
        with pytest.raises(ValueError, match=r"t is the size .*, in \[0, 1\], got"):
            vardi.correlation_density(t, 3)
    at_a_trace = jax.vmap(lambda t: vardi.correlation_density(t, 5))(jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(at_a_trace, [1.5, 1.125])
    for half in (True, False):
        with pytest.raises(ValueError, match="the lemma is one of dimensions d >= 2, got 0"):
            vardi.uncorrelated(10, 0, half=half)


def test_the_lemma_of_correlations_is_a_lower_bound():
    # d^2 (d) (3/4)^((d-3)/2) for m = d = 100: 1e6 times 8.7e-7.
    expected = 1 - 100**3 * 0.75**48.5
    assert vardi.uncorrelated(100, 100, half=True) == pytest.approx(expected, rel=1e-9)
    failing = 10**2 * 200 * 0.75**98.5  # 9.9e-9: in float32 it was 0
    assert 1 - vardi.uncorrelated(10, 200, half=True) == pytest.approx(failing, rel=1e-6)
    least = vardi.uncorrelated(30, 60, half=True)
    assert least < 0  # says nothing
    m, d, draws = 8, 80, 400
    points = np.random.default_rng(0).normal(size=(draws, m, d))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    products = np.abs(points @ points.transpose(0, 2, 1))[:, ~np.eye(m, dtype=bool)]
    promised = vardi.uncorrelated(m, d, half=True)
    assert 0 < promised <= np.mean(products.max(axis=1) <= 0.5) + 1e-12
    assert vardi.uncorrelated(100, 10**6, half=False) > 0.999
    assert vardi.uncorrelated(100, 4, half=False) == -np.inf
    assert vardi.uncorrelated(10**20, 10**20, half=False) == 1


def test_the_table_says_why_a_claim_does_not_apply(orthogonal):
    s = summary(orthogonal.x, orthogonal.y)
    lines = theory.table(ledger(orthogonal, s)).splitlines()
    assert len(lines) == 2 + 9
    assert lines[2].startswith("| C.1: all on the margin | 1 | 1 | holds |")
    assert lines[-1].endswith("| holds, says nothing |")
    low = ledger(orthogonal, s)["C.5: d - m p > 0"]._replace(holds=jnp.array(False))
    assert "DOES NOT HOLD" in theory.table({"x": low})
    x = 1.1 * np.asarray(orthogonal.x)
    outside = ledger(orthogonal._replace(x=x), summary(x, orthogonal.y))
    text = theory.table(outside)
    assert "does not apply (" in text
    assert "|x_i| = sqrt(d): 0.1 against 1e-05" in text
    assert "nan" not in text


def told(m, d, p, share=0.25):
    return vardi.Summary(jnp.ones(m, bool), *map(jnp.asarray, map(float, (m, d, p, share, 0.0))))


def test_products_of_samples_are_in_every_formula():
    """Samples of all other cases are orthogonal: p = 0."""
    s = told(4, 60, 3)
    c, c_prime, room = 0.25, 4 * 4 / 61, 60 - 4 * 3
    np.testing.assert_allclose((s.c_prime, s.room), (c_prime, room))
    eta2 = 2 * (c * c_prime + 1) * 61 / (4 * c * room)
    np.testing.assert_allclose(jax.jit(lambda s: s.etas)(s), (4 / room, eta2))


@pytest.mark.parametrize(("d", "holds"), [(47, True), (46, False)])
def test_the_assumption_on_the_number_of_samples(d, holds):
    """4 <= (d+1) / (3 (3+1)) from d = 47 on."""
    assert told(4, d, 3).assumptions()["m <= (d+1) / (3 (p+1))"].holds == holds


def test_bounds_of_correlated_samples(orthogonal):
    """The same network, with a p and a d that are told: C.3 and C.4."""
    p, d = 2.0, 1000.0
    s = summary(orthogonal.x, orthogonal.y)._replace(p=jnp.asarray(p), d=jnp.asarray(d))
    found = ledger(orthogonal, s)
    w, b, v = kkt_cases.arrays(orthogonal.params)
    x, y = np.asarray(orthogonal.x), np.asarray(orthogonal.y)
    pulls = np.asarray(orthogonal.multipliers)[:, None] * np.asarray(orthogonal.slopes)
    weight = np.abs(v) * pulls.sum(axis=0)
    slack = x @ w.T + b + (p + 1) * weight
    np.testing.assert_allclose(found["C.3: preactivations from below"].slack, slack.min())
    gain = np.sign(v) * (w @ (y @ x)) - weight * (d - 4 * p)
    np.testing.assert_allclose(found["C.4: weights along u"].slack, gain.min())


def test_p_is_the_size_of_a_product():
    x = np.array([[2.0, 0.0], [-1.5, 3**0.5], [0.0, 1.0]])
    s = summary(x, np.array([1.0, -1.0, 1.0]))
    np.testing.assert_allclose(s.p, 3)  # of -3, beside 0 and sqrt(3)


def test_samples_a_little_inside_are_not_on_the_margin(orthogonal):
    more = KKTPoint(
        orthogonal.params,
        np.concatenate([orthogonal.x, 1.02 * np.asarray(orthogonal.x[:1])]),
        np.append(orthogonal.y, 1.0),
        np.append(orthogonal.multipliers, 0.0),
        np.concatenate([orthogonal.slopes, [[1.0, 0.0]]]),
    )
    assert 1 < jax.jit(lambda point: point.margins)(more)[-1] < 1.1
    assert jax.jit(vardi.on_margin)(more).chosen.tolist() == [True] * 4 + [False]


def test_the_lemma_of_small_correlations_begins_at_6_dimensions():
    assert vardi.uncorrelated(1, 5, half=False) == -np.inf
    for m, d in ((1, 6), (3, 100)):
        expected = 1 - m**2 * d ** (1 - np.log(d) / 4)
        assert vardi.uncorrelated(m, d, half=False) == pytest.approx(expected, rel=1e-9)


def alone(conditions):
    """The names of the conditions that fail."""
    return {name for name, one in conditions.items() if not one.holds}


def test_a_multiplier_below_0_is_told_where_nothing_else_fails(orthogonal):
    """The first sample twice, with 3/2 and -1/2 of its multiplier: their sum is right."""
    first = jnp.asarray([0, 0, 1, 2, 3])
    point = KKTPoint(
        orthogonal.params,
        orthogonal.x[first],
        orthogonal.y[first],
        orthogonal.multipliers[first] * jnp.asarray([1.5, -0.5, 1, 1, 1]),
        orthogonal.slopes[first],
    )
    assert alone(jax.jit(KKTPoint.conditions)(point)) == {"lambda_i >= 0"}


def test_a_multiplier_inside_the_margin_is_told_where_nothing_else_fails():
    """One neuron along z = (2, 0, 1) with weight a^2 = v^2, which is stationary at any scale with
    lambda = 1/|z| there; the other sample, (1, 0, 1), is the one on the margin."""
    length, inner = 5**0.5, 3 / 5**0.5  # |z|, and that of the other along z
    a = inner**-0.5
    z = a * np.array([2.0, 0.0, 1.0]) / length
    point = KKTPoint(
        Params(jnp.asarray(z[None, :2]), jnp.asarray(z[2:]), jnp.asarray([a])),
        jnp.asarray([[2.0, 0.0], [1.0, 0.0]]),
        jnp.ones(2),
        jnp.asarray([1 / length, 0.0]),
        jnp.ones((2, 1)),
    )
    found = jax.jit(KKTPoint.conditions)(point)
    assert alone(found) == {"slackness = 0"}
    np.testing.assert_allclose(found["slackness = 0"].left, length / inner - 1)


@pytest.mark.slow
def test_padding_has_a_derivative():
    x, y = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]]), jnp.array([1.0, -1.0, 0.0])
    found = jax.grad(lambda x: vardi.summary(x, y).off_sphere)(x)
    np.testing.assert_allclose(found, [[0, 0], [0, 0.5**0.5], [0, 0]], atol=1e-6)
