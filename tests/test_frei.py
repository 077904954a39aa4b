"""The claims of Frei, Vardi, Bartlett, Srebro (2023), on a KKT network solved by hand."""

import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np
import pytest
from frei_cases import SIGMA, TEST, D, clustered, ledger, nice

from jaxkkt import theory
from jaxkkt.theory import KKTPoint, frei

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def setting():
    with jax.enable_x64(True):
        return clustered()


def test_nice_points_are_near_what_is_expected_of_each_product(setting):
    # |mu_0| = 3, <mu_0, mu_1> = p = 3, Delta = 0.53; x_0 is far from mu_0, at a right angle.
    clusters = frei.clusters([[3.0, 0.0], [1.0, 8**0.5]], [1.0, -1.0], 0.02, 9.0)
    x, test_x = np.array([[3.0, 10.0], [1.0, 8**0.5]]), np.array([[3.0, 0.0], [2.7, 0.09]])
    point = setting.point._replace(x=x, y=np.asarray(setting.point.y)[:2])
    own, nobody = np.array([0, 1]), np.array([0, 0])
    found = nice(frei.Setting(point, clusters, own, test_x, nobody))
    # The other's noise is at a right angle to x_0, and has a product of 0.9 with its noise.
    assert found.tolist() == [True, False]
    sample = frei.Sample(test_x + np.array([[0.0, 1.0], [0.3, -1.09]]), nobody)
    told = jax.jit(frei.properties)(clusters, sample)
    told = [told[name] for name in frei.PROPERTIES]
    np.testing.assert_allclose(told[1].measured, 1)  # of -1
    sigma, d, p, log = 0.02, 9, 3, np.log(9)
    delta, root = 4 * sigma * d**0.5 * log, (2 * d) ** 0.5
    bounds = (sigma * root, sigma**2 * root * log, sigma * d**0.5 * log, p + delta, d - delta)
    np.testing.assert_allclose([one.bound for one in told], [*bounds, 3 * d + delta, 1])


def test_outputs_are_bounded_whatever_their_signs(setting, found):
    params = setting.point.params
    turned = setting.point._replace(params=params._replace(v=-params.v))
    check = jax.jit(frei.outputs)(setting._replace(point=turned))
    np.testing.assert_allclose(check.measured, found["D.2: outputs at fresh points"].measured)


@pytest.fixture(scope="module")
def found(setting):
    with jax.enable_x64(True):
        return ledger(setting)


def test_every_claim_holds_at_a_kkt_point(setting, found):
    assert np.all(nice(setting))
    assert {"A.13: share of fresh points that are nice", *frei.THEOREMS} < set(found)
    for name, check in found.items():
        applies = not name.startswith(("3.1", "4.2"))  # those ask for more samples
        assert check.assumed == applies, (name, check.assumptions)
        assert check.holds == applies, (name, check)
        told = theory.table({name: check})
        assert ("does not apply (k ln(d)^2 <= n: 143 against 3)" in told) != applies


def test_the_numbers_are_those_of_the_formulas(setting, found):
    d, k, c, p = D, 3, 1 / 3, 0
    delta = 4 * SIGMA * d**0.5 * np.log(d)
    told = jax.jit(lambda c: (c.delta, c.c_prime, c.etas))(setting.clusters)
    np.testing.assert_allclose(told[0], delta)
    c_prime = k * (p + delta + 1) / (d - delta + 1)
    np.testing.assert_allclose(told[1], c_prime)
    room = d - delta - k * p - k * delta
    eta1 = (2 * delta + p + 1) / room
    eta2 = 3 * (3 * d + delta + 1) * (1 - 2 * c_prime) / (room * (1 - 3 * c_prime) * c * k)
    np.testing.assert_allclose(told[2], (eta1, eta2))
    w, b, v = kkt_cases.arrays(setting.point.params)
    x, y = np.asarray(setting.point.x), np.asarray(setting.point.y)
    pulls = np.asarray(setting.point.multipliers)[:, None] * np.asarray(setting.point.slopes)
    mass = np.stack([(pulls * v**2)[:, side].sum(axis=1) for side in (v > 0, v < 0)])
    np.testing.assert_allclose(found["A.10: mass of a cluster, at most"].measured, mass.max())
    np.testing.assert_allclose(
        found["A.10: mass of a cluster, at most"].bound,
        1 / ((1 - 2 * c_prime) * (d - delta + 1)),
    )
    own = np.where(y > 0, mass[0], mass[1])
    np.testing.assert_allclose(found["A.11: mass of a cluster, at least"].measured, own.min())
    np.testing.assert_allclose(
        found["A.11: mass of a cluster, at least"].bound,
        (1 - c_prime / (1 - 2 * c_prime)) / (3 * d + delta + 1),
    )
    u = y @ x
    z = (eta1 + eta2) * u
    test_x, test_y = np.asarray(setting.test_x), y[np.asarray(setting.test_cluster)]

    def outputs(points):
        return np.maximum(points @ w.T + b, 0) @ v

    q = test_y * outputs(test_x)
    np.testing.assert_allclose(found["A.12: signs at fresh points"].measured, q.min())
    np.testing.assert_allclose(found["D.2: outputs at fresh points"].measured, q.max())
    moved = test_y * outputs(test_x - test_y[:, None] * z)
    for name, label in (("D.7: fresh positive", 1), ("D.8: fresh negative", -1)):
        largest = moved[test_y == label].max()
        np.testing.assert_allclose(found[f"{name} points flipped"].measured, largest)
    weight = np.abs(v) * pulls.sum(axis=0)
    below = test_x @ w.T + b + weight * (2 * delta + p + 1)
    np.testing.assert_allclose(found["D.3: preactivations from below"].slack, below.min())
    along = np.sign(v) * (w @ u)
    np.testing.assert_allclose(
        found["D.4: weights along u"].slack, (along - weight * room).min(), rtol=1e-9
    )
    np.testing.assert_allclose(found["D.5: d - Delta - kp - k Delta > 0"].measured, room)
    active = (test_x @ w.T + b + eta1 * along).min()
    np.testing.assert_allclose(found["D.6: opposing neurons active"].measured, active)
    np.testing.assert_allclose(found["D.9: size of z"].measured, np.linalg.norm(z))
    # The explicit constant is one: the etas of any setting that meets the assumption stay below.
    assert found["D.9: size of z"].bound > np.linalg.norm(z)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: c._replace(means=1.1 * np.asarray(c.means)), "|mu_q| = sqrt(d)"),
        (lambda c: c._replace(sigma=np.array(1.5)), "sigma <= 1"),
        (lambda c: c._replace(sigma=np.array(0.5)), "k (p + Delta + 1) <= (d - Delta + 1) / 10"),
        (lambda c: c._replace(labels=np.ones(3)), "both labels"),
    ],
)
def test_assumptions_on_the_clusters(setting, change, name):
    broken = change(setting.clusters)
    size = jax.jit(frei.size)(broken)
    assert not size.assumptions[name].holds
    assert np.isnan(size.bound)


@pytest.mark.slow
def test_properties_of_a_sample(setting):
    """Each of P1 to P6 fails where it should, and the lemmas then promise nothing."""
    c, x = setting.clusters, setting.point.x
    noisy = x.at[0, 5:].add(3 * SIGMA)
    found = frei.properties(c, frei.Sample(noisy, setting.cluster))
    assert not found["P1: |xi_i| <= sigma sqrt(2d)"].holds
    missing = frei.properties(c, frei.Sample(x[:2], setting.cluster[:2]))
    assert not missing["P6: every cluster has a sample"].holds
    towards = x.at[0].add(0.5 * x[1])
    found = frei.properties(c, frei.Sample(towards, setting.cluster))
    assert not found["P3: |<mu_q, xi_i>| <= sigma sqrt(d) ln(d)"].holds
    assert not found["P4: |<x_i, x_l>| <= p + Delta across clusters"].holds
    both = frei.Sample(x.at[0].add(0.2 * x[2]).at[1].add(0.2 * x[2]), setting.cluster)
    found = frei.properties(c, both)
    assert not found["P2: |<xi_i, xi_l>| <= sigma^2 sqrt(2d) ln(d)"].holds
    shrunk = frei.properties(c, frei.Sample(0.9 * x, setting.cluster))
    assert not shrunk["P5: <x_i, x_l> >= d - Delta within one"].holds
    grown = frei.properties(c, frei.Sample(1.8 * x, setting.cluster))
    assert not grown["P5: <x_i, x_l> <= 3d + Delta within one"].holds
    promised = frei.mass_from_above(setting._replace(clusters=c._replace(sigma=jnp.array(1e-9))))
    assert promised.assumed  # the means themselves obey them for any noise
    far = setting._replace(point=setting.point._replace(x=noisy))
    assert np.isnan(frei.mass_from_above(far).bound)


def test_points_that_are_not_nice_are_left_out(setting):
    away = np.array(setting.test_x)
    away[0] += setting.clusters.means[1]
    moved = setting._replace(test_x=away)
    assert nice(moved).tolist() == [False] + [True] * (TEST - 1)
    assert ledger(moved)["A.12: signs at fresh points"].holds


ABOUT_FRESH = (
    "A.12: signs at fresh points",
    "D.2: outputs at fresh points",
    "D.3: preactivations from below",
    "D.6: opposing neurons active",
    "D.7: fresh positive points flipped",
    "D.8: fresh negative points flipped",
    "4.1: margins of the robust network",
    "4.1: radius of the robust network",
)


def says_nothing(check):
    broken = check.holds or not np.isnan([check.measured, check.slack]).all()
    return check.assumed and check.vacuous and check.empty and not broken


def test_claims_about_nice_points_say_nothing_where_none_is_nice(setting):
    """They held, with inf, -inf and 0 measured."""
    u = np.asarray(setting.clusters.labels) @ np.asarray(setting.clusters.means)
    away = setting._replace(test_x=np.asarray(setting.test_x) - 9 * u)
    assert not np.any(nice(away))
    found = ledger(away)
    lines = dict(zip(found, theory.table(found).splitlines()[2:], strict=True))
    for claim in ABOUT_FRESH:
        assert says_nothing(found[claim]), claim
        assert lines[claim].endswith("| says nothing |"), claim
        assert lines[claim].startswith(f"| {claim} | nan | ")
    assert found["D.4: weights along u"].holds  # of no fresh point
    # Where the assumptions do not hold either, it is that which is told.
    broken = ledger(away._replace(clusters=setting.clusters._replace(sigma=np.array(1.5))))
    assert "does not apply" in theory.table({"A.12": broken[ABOUT_FRESH[0]]})
    assert not broken[ABOUT_FRESH[0]].vacuous


def test_claims_about_points_of_a_label_say_nothing_where_no_nice_one_has_it(setting):
    """The other label's points were taken for those of a claim that holds."""
    sides = np.asarray(setting.test_y)
    moved = np.array(setting.test_x)
    moved[sides > 0] += 9 * np.asarray(setting.clusters.means)[2]
    found = ledger(setting._replace(test_x=moved))
    assert says_nothing(found["D.7: fresh positive points flipped"])
    for claim in ABOUT_FRESH:
        if not claim.startswith("D.7"):
            assert found[claim].holds, claim
            assert not found[claim].vacuous, claim


@pytest.mark.parametrize("label", [0, 2, -2])
def test_points_of_no_label_are_not_flipped(setting, label):
    """No point has it, and so the lemma held."""
    with pytest.raises(ValueError, match=f"fresh points to be flipped is -1 or 1, got {label}"):
        frei.flipped(setting, label)


def test_no_fresh_points_are_refused(setting):
    test_x, test_cluster = (np.asarray(a)[:0] for a in (setting.test_x, setting.test_cluster))
    none = setting._replace(test_x=test_x, test_cluster=test_cluster)
    for ask in (frei.ledger, *frei.THEOREMS.values()):
        with pytest.raises(ValueError, match=r"test_x must hold at least one point, got shape \(0"):
            jax.eval_shape(lambda s, ask=ask: ask(s, 0.05), none)


def test_clusters_that_there_are_not_are_refused(setting):
    """They were taken for the last one, or dropped."""
    sample = frei.Sample(setting.test_x, setting.test_cluster + 1)
    with pytest.raises(ValueError, match="cluster is numbered from 0 to 2, got"):
        frei.properties(setting.clusters, sample)
    for name, ask in (("test_cluster", lambda s: s.nice), ("cluster", frei.cluster_mass)):
        places = getattr(setting, name)
        for bad in (places + 1, places - 1):
            with pytest.raises(ValueError, match=f"{name} is numbered from 0 to 2, got"):
                ask(setting._replace(**{name: bad}))
        for bad in (places[:1], places.astype(float)):
            with pytest.raises(ValueError, match=f"{name} must be {len(places)} whole numbers"):
                ask(setting._replace(**{name: bad}))
    with pytest.raises(ValueError, match="test_cluster is numbered from 0 to 2"):
        _ = setting._replace(test_cluster=setting.test_cluster - 1).test_y


def test_padding_is_no_sample(setting, found):
    """Rows of zeros were samples far from all means: no assumption held, and no point was nice."""

    def padded(a):  # to the number of samples of the theorems' tests, whose program is there
        return np.pad(a, [(0, 141)] + [(0, 0)] * (a.ndim - 1))

    more = KKTPoint(setting.point.params, *map(padded, setting.point[1:]))
    longer = setting._replace(point=more, cluster=padded(setting.cluster))
    for name, check in ledger(longer).items():
        assert check.holds == found[name].holds, name
        np.testing.assert_allclose(check.measured, found[name].measured, err_msg=name, atol=1e-12)
        assert check.assumed == found[name].assumed, name


def test_a_table_of_several_networks_is_refused(found):
    several = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), found)
    with pytest.raises(ValueError, match=r"claims about one network, and .* holds \(2,\) of them"):
        theory.table(several)
    assert theory.table(jax.tree.map(lambda leaf: leaf[0], several)) == theory.table(found)


@pytest.mark.usefixtures("unchecked")
def test_clusters_of_lists_of_whole_numbers_keep_their_noise():
    c = frei.clusters([[2, 0, 0, 0], [0, 2, 0, 0]], [1, -1], 0.5)
    assert float(c.sigma) == 0.5
    assert float(c.delta) == pytest.approx(4 * 0.5 * 2 * np.log(4))
    assert {leaf.dtype for leaf in frei.robust_network(c)} == {jnp.dtype("float64")}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("means", "labels", "sigma", "message"),
    [
        (np.eye(3), np.array([1.0, -1.0, 1.0]), 0.0, "sigma must be positive and finite, got 0"),
        (np.eye(3), np.array([1.0, -1.0]), 1.0, r"means must be \(k, d\) and labels \(k,\), got"),
        (np.eye(2), np.array([1.0, 2.0]), 1.0, "the labels of clusters must be -1 or 1"),
    ],
)
def test_bad_clusters_are_refused(means, labels, sigma, message):
    with pytest.raises(ValueError, match=message):
        frei.clusters(means, labels, sigma)


def test_more_than_nothing_is_not_nothing():
    """Strict claims held at 0."""
    checks = theory.checks
    assert checks.at_least(0.0, 0.0, {}).holds
    assert not checks.above(0.0, 0.0, {}).holds
    assert checks.above(1e-9, 0.0, {}).holds


@pytest.fixture(scope="module")
def correlated():
    """<mu_0, mu_1> = 3, while the samples are orthogonal as before: the second has a noise."""
    with jax.enable_x64(True):
        setting = clustered(sigma=0.5 * D**-0.5)
        cosine = 3 / D
        turned = cosine * setting.point.x[0] + (1 - cosine**2) ** 0.5 * setting.point.x[1]
        means = setting.clusters.means.at[1].set(turned)
        setting = setting._replace(clusters=setting.clusters._replace(means=means))
        return setting, ledger(setting)


def test_products_of_means_are_in_every_formula(correlated):
    """Means of all other cases are orthogonal: p = 0."""
    setting, found = correlated
    d, k, c, p, sigma = D, 3, 1 / 3, 3, 0.5 * D**-0.5
    delta = 4 * sigma * d**0.5 * np.log(d)
    c_prime = k * (p + delta + 1) / (d - delta + 1)
    room = d - delta - k * p - k * delta
    eta1 = (2 * delta + p + 1) / room
    eta2 = 3 * (3 * d + delta + 1) * (1 - 2 * c_prime) / (room * (1 - 3 * c_prime) * c * k)
    told = jax.jit(lambda c: (c.p, c.c_prime, c.room, *c.etas))(setting.clusters)
    np.testing.assert_allclose(told, (p, c_prime, room, eta1, eta2))
    assert found["A.10: mass of a cluster, at most"].assumed
    np.testing.assert_allclose(
        found["A.10: mass of a cluster, at most"].bound, 1 / ((1 - 2 * c_prime) * (d - delta + 1))
    )
    w, b, v = kkt_cases.arrays(setting.point.params)
    pulls = np.asarray(setting.point.multipliers)[:, None] * np.asarray(setting.point.slopes)
    nice = np.asarray(jax.jit(lambda s: s.nice)(setting))
    assert nice.any()
    pre = np.asarray(setting.test_x)[nice] @ w.T + b
    slack = pre + np.abs(v) * pulls.sum(axis=0) * (2 * delta + p + 1)
    np.testing.assert_allclose(found["D.3: preactivations from below"].slack, slack.min())
    assert found["D.2: outputs at fresh points"].bound == 2
    rest = 20 * d / 21 - (d + 1) / 10
    etas = (d + 1) / (5 * k * rest) + 24 * (64 * d / 21 + 1) / (7 * c * k * rest)
    size = etas * (k * d + c_prime * k * (d - delta + 1)) ** 0.5
    np.testing.assert_allclose(found["D.9: size of z"].bound, size)


@pytest.mark.parametrize(
    ("d", "p", "holds"), [(30, 0, True), (28, 0, False), (61, 1, True), (58, 1, False)]
)
def test_the_assumption_on_the_number_of_clusters(d, p, holds):
    """3 (p + 1) <= (d + 1) / 10 where there is next to no noise."""
    means = d**0.5 * np.eye(3, 4)
    means[1] = [p / d**0.5, (d - p**2 / d) ** 0.5, 0, 0]
    c = frei.clusters(means, np.array([1.0, 1.0, -1.0]), 1e-9, float(d))
    assumed = jax.jit(lambda c: c.assumptions())(c)
    assert assumed["k (p + Delta + 1) <= (d - Delta + 1) / 10"].holds == holds


@pytest.mark.parametrize(("c_prime", "ratio"), [(0.3, 4.0), (0.4, np.nan)])
def test_etas_are_those_of_c_prime_below_a_third(c_prime, ratio):
    """(1 - 2 c') / (1 - 3 c'), which turns negative; two orthogonal clusters without noise."""
    d = 2 / c_prime - 1
    c = frei.clusters(d**0.5 * np.eye(2), np.array([1.0, -1.0]), 1e-12, d)
    expected = np.array([1 / d, 3 * (3 * d + 1) * ratio / d]) + 0 * ratio
    np.testing.assert_allclose(jax.jit(lambda c: c.etas)(c), expected, rtol=1e-9)
