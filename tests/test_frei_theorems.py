"""Theorems 3.1, 4.1 and 4.2 of Frei, Vardi, Bartlett, Srebro (2023), and their probabilities."""

import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np
import pytest
from frei_cases import SIGMA, TEST, D, clustered, ledger, nice
from scipy import stats

from jaxkkt import networks, theory
from jaxkkt.theory import frei

pytestmark = pytest.mark.usefixtures("float64")
margins, radius = jax.jit(networks.margins), jax.jit(frei.robust_radius)


@pytest.fixture(scope="module")
def setting():
    with jax.enable_x64(True):
        return clustered()


@pytest.fixture(scope="module")
def many():
    """As many samples as Theorems 3.1 and 4.2 ask for: 144 of k ln(d)^2 = 143.2."""
    with jax.enable_x64(True):
        return clustered(copies=48)


def test_every_theorem_holds_of_as_many_samples_as_it_asks_for(many):
    for name, check in ledger(many).items():
        assert check.assumed, (name, check.assumptions)
        assert check.holds, (name, check)
        assert check.vacuous == (name == "D.9: size of z"), name


def test_noise_on_labels_is_outside_of_the_theory(many):
    """Own clusters may have it: their lemmas were told to apply, and to fail."""
    other = many.clusters._replace(labels=many.clusters.labels.at[0].multiply(-1))
    told = ledger(many._replace(clusters=other))  # a KKT point still, of 48 samples of noise
    for name in ("A.12: signs at fresh points", "D.4: weights along u", "3.1: test error"):
        assert not told[name].assumed
        failed = [what for what, one in told[name].assumptions.items() if not one.holds]
        assert failed == ["y_i = y_q"]
        assert told[name].assumptions["y_i = y_q"].left == 48
    assert told["4.1: margins of the robust network"].assumed  # it is made of the means


def test_the_theorems_numbers_are_those_of_the_formulas(many):
    odds, sigma = 4 * 144 * D ** (-np.log(D) / 2), SIGMA
    assert odds == pytest.approx(frei.test_error(144, D))
    x, cluster = np.array(many.test_x), np.asarray(many.test_cluster)
    means, labels = np.asarray(many.clusters.means), np.asarray(many.clusters.labels)
    x[:3] -= 0.6 * means[cluster[:3]]  # right, but not nice
    x[:2] = -means[cluster[:2]]  # wrong, and flipped to what is right by -z or z
    x[4] = -0.05 * means[cluster[4]]
    x[5] = means[labels != labels[cluster[5]]][0]  # the network of the means is wrong there, too
    moved = many._replace(test_x=jnp.asarray(x))
    told = ledger(moved)
    w, b, v = kkt_cases.arrays(many.point.params)

    def outputs(points):
        return np.maximum(points @ w.T + b, 0) @ v

    y = labels[cluster]
    wrong = y * outputs(x) <= 0
    z = np.asarray(many.clusters.z)
    turned = (outputs(x) > 0) != (outputs(x - y[:, None] * z) > 0)
    left = np.asarray(nice(moved))
    assert 0 < wrong.sum() < (~left).sum() < TEST
    assert not turned.all()
    np.testing.assert_allclose(told["3.1: test error"].measured, wrong.mean())
    np.testing.assert_allclose(told["3.1: test error"].bound, odds)
    shares = {
        "A.13: share of fresh points that are nice": left,
        "4.2: share of fresh points": turned,
    }
    for name, which in shares.items():
        (check,) = (told[one] for one in told if one.startswith(name))
        np.testing.assert_allclose(check.measured, which.mean())
        np.testing.assert_allclose(check.bound, 1 - odds)
        assert check.assumed
        assert not check.holds
    # The network of the means: relu(p_q - r |w|) = sum of relu(p_j + r |w|) of the other label.
    pre, length, r = 4 * x @ means.T / D - 2, 4 / D**0.5, np.linspace(0, D**0.5, 100_001)
    margins = y * (np.maximum(pre, 0) @ labels)
    np.testing.assert_allclose(
        told["4.1: margins of the robust network"].measured, margins[left].min()
    )
    sizes = []
    for point, label in zip(pre[left], y[left], strict=True):
        for_y, against = point[labels == label], point[labels != label]
        worst = np.maximum(for_y[:, None] - length * r, 0).sum(axis=0)
        worst -= np.maximum(against[:, None] + length * r, 0).sum(axis=0)
        sizes.append(r[np.argmax(worst < 0)])
    check = told["4.1: radius of the robust network"]
    np.testing.assert_allclose(check.measured, min(sizes), rtol=1e-3)
    assert check.bound == radius(many.clusters) == D**0.5 / 8
    delta = 4 * sigma * D**0.5 * np.log(D)
    np.testing.assert_allclose(jax.jit(lambda c: c.delta)(many.clusters), delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delta", "broken"),
    [
        (1e-4, set()),
        (1e-6, {"n <= sqrt(delta)/3 d^(ln(d)/4)"}),
        (1e-18, {"n <= sqrt(delta)/3 d^(ln(d)/4)", "3 d^(1 - ln(d)) <= delta"}),
        (
            1e-23,
            {
                "n <= sqrt(delta)/3 d^(ln(d)/4)",
                "3 d^(1 - ln(d)) <= delta",
                "n <= sqrt(delta/3) e^(d/32)",
            },
        ),
    ],
)
def test_the_theorems_ask_for_a_delta(many, delta, broken):
    for theorem in (frei.generalization, frei.fresh_flipped):
        check = theorem(many, delta)
        assert {name for name, one in check.assumptions.items() if not one.holds} == broken
        assert check.holds == (not broken)
        for bad in (0.0, 1.0):
            with pytest.raises(ValueError, match="delta"):
                theorem(many, bad)


def test_theorem_4_1_is_refuted_by_a_network_that_is_not_robust(setting, monkeypatch):
    """Half of its weights and a bias of -1.2 leave margins of 0.8. At sqrt(d)/11 a neuron of ten
    times the weight has gone from -2 to 2 - 4/11, and those of the other label from 2 to there."""
    robust = jax.device_get(jax.jit(frei.robust_network)(setting.clusters))
    weak = robust._replace(w=robust.w / 2, b=robust.b + 0.8)
    monkeypatch.setattr(frei.theorems, "robust_network", lambda c: weak)
    check = jax.jit(lambda s: frei.robust_margins(s))(setting)
    assert check.measured == pytest.approx(0.8, abs=0.1)
    assert (check.assumed, check.holds) == (True, False)
    strong = robust._replace(w=robust.w * np.array([[1], [1], [10]]))
    monkeypatch.setattr(frei.theorems, "robust_network", lambda c: strong)
    check = jax.jit(lambda s: frei.robust_sizes(s))(setting)
    assert check.measured == pytest.approx(D**0.5 / 11, rel=0.1)
    assert (check.assumed, check.holds) == (True, False)


def test_the_robust_radius_is_of_clusters_that_meet_the_assumption(setting):
    c = setting.clusters
    assert radius(c) == D**0.5 / 8
    assert np.isnan(radius(c._replace(sigma=np.array(0.5))))
    assert np.isnan(radius(c._replace(means=1.1 * np.asarray(c.means))))


@pytest.mark.parametrize(("hits", "draws"), [(0, 20), (1, 20), (3, 20), (19, 20), (20, 20), (7, 9)])
def test_a_share_refutes_what_is_outside_of_its_interval(hits, draws):
    """A share of few draws above a bound refuted it, whatever chance makes of it."""
    happened = jnp.arange(draws) < hits
    low = stats.binomtest(hits, draws).proportion_ci(0.95, method="exact").low
    for odds, holds in ((low * 1.001 + 1e-6, True), (low * 0.999 - 1e-6, False)):
        if odds < 0:
            continue
        most = theory.share_at_most(happened, odds, {})
        least = theory.share_at_least(~happened, odds, {})
        assert (most.holds, least.holds) == (holds, holds)
        share = hits / draws
        np.testing.assert_allclose((most.measured, least.measured), (share, 1 - share))
        np.testing.assert_allclose((most.bound, least.bound), (odds, 1 - odds))
        np.testing.assert_allclose((most.slack, least.slack), odds - share)
    assert theory.share_at_most(happened, 0.0, {}).holds == (hits == 0)
    assert theory.share_at_most(happened, 1.5, {}, vacuous=True).holds
    nothing = {"1 <= 0": theory.below(1.0, 0.0)}
    assert not theory.share_at_most(happened, 1.0, nothing).holds


def test_the_probabilities():
    """Proposition A.1, Theorem A.1 and Lemma 2.1 say nothing at small d, much at large."""
    d, n = 1000, 10
    log = np.log(d)
    expected = 3 * n**2 * d ** (-log / 2) + n**2 * np.exp(-d / 16) + d ** (1 - log)
    assert frei.nice_sample(n, d) == pytest.approx(1 - expected)
    assert frei.test_error(n, d) == pytest.approx(4 * n * d ** (-log / 2))
    assert frei.separated(d) == pytest.approx(1 - 2 * d ** (1 - log / 2))
    # Where what is taken from 1 is no small part of it.
    log, few = np.log(20), 3 * 2**2 * 20 ** (-np.log(20) / 2)
    assert frei.separated(20) == pytest.approx(1 - 2 * 20 ** (1 - log / 2))
    expected = 1 - few - 4 * np.exp(-20 / 16) - 20 ** (1 - log)
    assert frei.nice_sample(2, 20) == pytest.approx(expected)
    assert frei.nice_sample(10, 20) < 0
    assert frei.nice_sample(10, 10**20) == frei.separated(10**20) == 1
    assert frei.test_error(10**20, 10**20) == 0


def test_lemma_2_1_by_simulation():
    """Where its own assumption holds, u separates fresh points at least as often as promised."""
    d, k, draws = 300, 2, 4000
    rng = np.random.default_rng(0)
    means = d**0.5 * np.eye(d)[:k]
    labels = np.array([1.0, -1.0])
    cluster = rng.integers(0, k, draws)
    x = means[cluster] + d**-0.5 * rng.normal(size=(draws, d))
    right = np.mean(labels[cluster] * (x @ (labels @ means)) > 0)
    assert 0.9 < frei.separated(d) <= right


def test_the_robust_and_the_linear_network(setting):
    c = setting.clusters
    robust, linear = jax.jit(lambda c: (frei.robust_network(c), frei.linear_network(c)))(c)
    x, labels = np.asarray(setting.test_x), np.asarray(c.labels)
    y, u = labels[np.asarray(setting.test_cluster)], labels @ np.asarray(c.means)
    assert np.min(margins(robust, x, y)) >= 1
    np.testing.assert_allclose(jax.jit(networks.apply)(linear, x), x @ (u / D), atol=1e-12)
    for direction in np.random.default_rng(1).normal(size=(20, D)):
        moved = x + float(radius(c)) * direction / np.linalg.norm(direction)
        assert np.all(margins(robust, moved, y) >= 0.5 - 1e-9)


def test_probabilities_are_of_some_dimensions_and_samples():
    for ask in (frei.separated, lambda d: frei.nice_sample(3, d), lambda d: frei.test_error(3, d)):
        with pytest.raises(ValueError, match="d must be at least 1, got 0"):
            ask(0)
    for ask in (frei.nice_sample, frei.test_error):
        with pytest.raises(ValueError, match="n must be at least 1, got -3"):
            ask(-3, 100)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("d", [np.array([10, 20]), [10, 20], jnp.array([10])])
def test_probabilities_are_of_one_dimension_and_number_of_samples(d):
    """NumPy told that the truth value of an array is ambiguous, and lists had a TypeError."""
    for ask in (frei.separated, lambda d: frei.nice_sample(3, d), lambda d: frei.test_error(3, d)):
        with pytest.raises(ValueError, match=r"d must be one number, got shape \([12],\): "):
            ask(d)
    for ask in (frei.nice_sample, frei.test_error):
        with pytest.raises(ValueError, match="n must be one number"):
            ask(d, 100)
    assert frei.test_error(np.array(3), jnp.array(100)) == frei.test_error(3, 100)
