"""Certificates against closed forms and an independent solver."""

import re
from functools import partial

import certificate_cases
import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np
import pytest
import scipy.optimize
from certificate_cases import DERIVED, LOOSE, NEAR, ROOM, TIGHT, ZERO, direct, reference, scaled

import jaxkkt as jk
from jaxkkt import datasets, networks
from jaxkkt.kkt import CertificateStatus, certificate, multipliers, polish
from jaxkkt.networks import Params

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def trained():
    return certificate_cases.trained()


@pytest.fixture(scope="module")
def found():
    return certificate_cases.found()


@pytest.fixture(scope="module")
def untrained():
    return certificate_cases.untrained()


# --- closed forms ---


# One class alone is refused where values can be looked at.
traced = jax.jit(partial(certificate, budget=(1, 1)))


@pytest.mark.parametrize(("ratio", "turn"), [(1.0, 0.0), (3.0, 0.0), (1.0, 0.7), (0.4, 0.7)])
def test_one_neuron_on_one_sample(ratio, turn):
    """u = a g, v = b, cos(turn) = c between g and z = (x, 1), so that q = a b c |z| = 1.

    y g_1 = (b z, a c |z|), of which theta has the inner product 2 q = 2: the best lambda is
    2 / |g_1|^2 = 2 / (|z|^2 (b^2 + a^2 c^2)), and residual^2 = 1 - 4 / (|g_1|^2 |theta|^2). At
    a = b, c = 1 this is the KKT point: lambda = 1/|z| as a b |z| = 1.
    """
    z, c = np.array([2.0, -0.5, 1.0]), np.cos(turn)
    length = np.linalg.norm(z)
    across = np.cross(z, [0.0, 0.0, 1.0])
    g = c * z / length + np.sin(turn) * across / np.linalg.norm(across)
    b = 1 / np.sqrt(ratio * c * length)
    a = ratio * b
    params = Params(a * g[None, :2], a * g[2:], np.array([b]))
    got = traced(params, z[None, :2], np.ones(1))
    squared = length**2 * (b**2 + a**2 * c**2)
    residual = np.sqrt(max(0, 1 - 4 / (squared * (a**2 + b**2))))
    assert got.status == CertificateStatus.CERTIFIED
    for side in (got.one_sided, got.clarke):
        np.testing.assert_allclose(side.multipliers, [2 / squared], rtol=LOOSE)
        np.testing.assert_allclose(side.residual, residual, rtol=TIGHT, atol=ZERO)
        np.testing.assert_allclose(
            side.epsilon, residual * np.hypot(a, b), rtol=TIGHT, atol=ZERO * np.hypot(a, b)
        )
    np.testing.assert_allclose(got.min_margin, 1, rtol=TIGHT)
    np.testing.assert_allclose(got.normalized_margin, 1 / (a**2 + b**2), rtol=TIGHT)
    np.testing.assert_allclose(got.balance, [abs(a**2 - b**2) / (a**2 + b**2)], atol=TIGHT)
    if ratio == 1 and turn == 0:
        np.testing.assert_allclose(got.clarke.multipliers, [1 / length], rtol=LOOSE)
        assert got.clarke.residual < ZERO


@pytest.mark.parametrize("name", DERIVED)
def test_derived_networks_are_kkt_points(name):
    case = DERIVED[name]
    got = certificate(scaled(case.params, 2.3), case.x, case.y)
    assert got.status == CertificateStatus.CERTIFIED
    assert int(got.kinks) == np.sum((case.slopes > 0) & (case.slopes < 1))
    np.testing.assert_allclose(got.min_margin, 2.3**2, rtol=TIGHT)
    assert got.clarke.residual < ZERO
    np.testing.assert_allclose(got.clarke.multipliers, case.multipliers, rtol=LOOSE)
    np.testing.assert_allclose(got.clarke.slopes, case.slopes, atol=LOOSE)
    np.testing.assert_allclose(got.one_sided.residual, case.one_sided, rtol=TIGHT, atol=ZERO)
    np.testing.assert_array_equal(got.one_sided.slopes, case.slopes == 1)
    assert got.balance.max() < TIGHT
    assert got.clarke.slackness < TIGHT
    # theta . y_i g_i = 2 q_i, so at a KKT point |theta|^2 = 2 sum_i lambda_i.
    np.testing.assert_allclose(got.normalized_margin, 0.5 / case.multipliers.sum(), rtol=TIGHT)


DIM, LABELS = 4, np.array([1.0, 1.0, -1.0, 1.0])
VARDI = np.sqrt(DIM) * np.eye(DIM)


@pytest.mark.slow
def test_robust_network_of_vardi_is_no_kkt_point():
    """Vardi et al. (2022), Section 5.1: w_j = 2 x_j/d, b_j = -1, v_j = y_j for x_j = sqrt(d) e_j.

    Every neuron is active on its own sample alone, there with 1: q_j = 1, and
    y_j g_j = ((x_j, 1), y_j). theta_j . y_j g_j = 2, |g_j|^2 = d + 2, |theta_j|^2 = 2 + 4/d, so
    lambda_j = 2/(d + 2) and residual^2 = 1 - 4 / ((d + 2)(2 + 4/d)) = 1 - 2d/(d + 2)^2. The
    neuron is out of balance by |u_j|^2 - v_j^2 = 4/d.
    """
    params = Params(2 * VARDI / DIM, -np.ones(DIM), LABELS)
    got = certificate(params, VARDI, LABELS, budget=(DIM, DIM))
    assert got.status == CertificateStatus.CERTIFIED
    assert got.kinks == 0
    residual = np.sqrt(1 - 2 * DIM / (DIM + 2) ** 2)
    for side in (got.one_sided, got.clarke):
        np.testing.assert_allclose(side.residual, residual, rtol=TIGHT)
        np.testing.assert_allclose(side.multipliers, 2 / (DIM + 2), rtol=LOOSE)
    np.testing.assert_allclose(got.balance, (4 / DIM) / (DIM * (2 + 4 / DIM)), rtol=TIGHT)
    assert residual > 0.8


@pytest.mark.slow
def test_larger_margin_network_of_vardi_is_no_kkt_point():
    """w_j = x_j/d, b_j = 0, v_j = y_j: q_j = 1, and all other samples are at kinks of neuron j.

    |theta_j|^2 = 1 + 1/d. A sample of the same label at slope s would add s lambda_i (x_i, 1) to
    what is too much over b_j already: s = 0. The n_j of other labels take s lambda_i = tau away:
    over u_j, d (1/d - lambda)^2 + d n_j tau^2 + (lambda - n_j tau)^2 is least at
    tau = lambda/(d + n_j), where the last two terms are r_j lambda^2, r_j = d/(d + n_j); without
    kinks r_j = 1. With (1 - lambda)^2 over v_j the sum is
    1 + 1/d - 4 lambda + (d + 1 + r_j) lambda^2: lambda_j = 2/(d + 1 + r_j), and
    1 + 1/d - 4/(d + 1 + r_j) is left. No slope meets its bound of 1.
    """
    params = Params(VARDI / DIM, np.zeros(DIM), LABELS)
    got = certificate(params, VARDI, LABELS, budget=(DIM, DIM), trained=("w", "b", "v"))
    assert got.status == CertificateStatus.CERTIFIED
    assert got.kinks == DIM * (DIM - 1)
    others = np.sum(LABELS[:, None] != LABELS, axis=0)
    sizes = DIM * (1 + 1 / DIM)
    for side, r in ((got.one_sided, np.ones(DIM)), (got.clarke, DIM / (DIM + others))):
        lambdas = 2 / (DIM + 1 + r)
        left = 1 + 1 / DIM - 4 / (DIM + 1 + r)
        np.testing.assert_allclose(side.residual, np.sqrt(left.sum() / sizes), rtol=TIGHT)
        np.testing.assert_allclose(side.multipliers, lambdas, rtol=LOOSE)
    opposite = LABELS[:, None] != LABELS
    slopes = opposite * (lambdas / (DIM + others))[None] / lambdas[:, None] + np.eye(DIM)
    np.testing.assert_allclose(got.clarke.slopes, slopes, atol=LOOSE)
    np.testing.assert_allclose(got.balance, (1 - 1 / DIM) / sizes, rtol=TIGHT)


# --- an independent reference ---


def test_residuals_equal_those_of_nnls(trained, found):
    params, data = trained
    assert found.status == CertificateStatus.CERTIFIED
    at = kkt_cases.kinked(params, data.x, NEAR)
    assert int(found.kinks) == at.sum() >= 10
    for side, free in ((found.one_sided, np.zeros_like(at)), (found.clarke, at)):
        best, squared = reference(params, data, free), float(side.residual) ** 2
        np.testing.assert_allclose(squared, best, rtol=1e-9)
        np.testing.assert_allclose(squared, direct(params, data, side), rtol=1e-9)
        assert 0 <= side.gap < 1e-6
        # NNLS stops at rounding.
        assert best >= squared - side.gap - TIGHT
    assert found.clarke.residual < 0.7 * found.one_sided.residual


def test_slopes_are_those_of_relu_away_from_kinks(trained, found):
    params, data = trained
    at = kkt_cases.kinked(params, data.x, NEAR)
    w, b, _ = kkt_cases.arrays(params)
    active = data.x @ w.T + b > 0
    np.testing.assert_array_equal(found.one_sided.slopes, active)
    np.testing.assert_array_equal(np.asarray(found.clarke.slopes)[~at], active[~at])
    free = np.asarray(found.clarke.slopes)[at]
    assert free.min() >= 0
    assert free.max() <= 1
    assert np.any((free > 0.01) & (free < 0.99))


@pytest.mark.parametrize("budget", [ROOM, (0, 0)])
def test_no_multipliers_and_slopes_beat_the_gap(trained, budget):
    params, data = trained
    got = certificate(params, *data, kink_tolerance=NEAR, budget=budget)
    at = kkt_cases.kinked(params, data.x, NEAR)
    least = float(got.clarke.residual) ** 2 - float(got.clarke.gap)
    assert least <= reference(params, data, at)
    rng = np.random.default_rng(0)
    lambdas, slopes = np.asarray(got.clarke.multipliers), np.asarray(got.clarke.slopes)
    for size in np.repeat([1e-3, 1e-2, 0.1, 1.0], 50):
        moved = lambdas + size * lambdas.max() * rng.normal(size=lambdas.shape)
        bent = slopes + size * at * rng.normal(size=slopes.shape)
        other = got.clarke._replace(multipliers=np.maximum(moved, 0), slopes=np.clip(bent, 0, 1))
        assert direct(params, data, other) >= least
    expected = CertificateStatus.CERTIFIED if budget == ROOM else CertificateStatus.STOPPED_EARLY
    assert got.status == expected


def test_where_nothing_bounds_the_residual_the_gap_is_infinite(untrained):
    """At so large a tolerance slopes exist for which a y_i g_i makes an obtuse angle with theta."""
    got = certificate(untrained[0], *untrained[1], kink_tolerance=0.9, budget=ROOM)
    assert got.status == CertificateStatus.STOPPED_EARLY
    assert got.clarke.gap == jnp.inf
    assert got.one_sided.gap < 1e-6


def test_multipliers_are_those_of_the_one_sided_certificate(trained, found):
    theta = kkt_cases.at_margin_one(trained[0], *trained[1])
    padded = jax.jit(lambda theta, data: multipliers(theta, *datasets.pad(data, 9, 4)))
    got = np.asarray(padded(theta, trained[1]))
    np.testing.assert_allclose(got[:6], found.one_sided.multipliers, rtol=LOOSE, atol=LOOSE)
    np.testing.assert_array_equal(got[6:], 0)


@pytest.mark.slow
def test_multipliers_of_a_network_of_zeros_are_numbers(trained):
    params, data = trained
    found = multipliers(jax.tree.map(jnp.zeros_like, params), *data)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("where", ["network", "points", "products"])
def test_multipliers_of_what_is_not_finite_are_nan(trained, where):
    """They were numbers: where the method starts."""
    params, data = jax.tree.map(np.array, trained)
    if where == "network":
        params.v[0] = np.nan
    elif where == "points":
        data.x[0, 0] = np.nan
    else:
        data = data._replace(x=data.x * 1e200)
    found = jax.jit(lambda params, data: multipliers(params, *datasets.pad(data, 9, 4)))
    got = np.asarray(found(params, data))
    assert np.isnan(got[:6]).all()
    np.testing.assert_array_equal(got[6:], 0)


def test_results_have_the_precision_of_the_network(trained):
    """And not that of the mode: else what they are made of does not fit the data."""
    params, data = jax.tree.map(lambda a: np.asarray(a, np.float32), trained)
    assert certificate(params, *data).clarke.residual.dtype == jnp.float32
    polished = jax.eval_shape(polish, params, *data)
    assert polished.angle.dtype == jnp.float32
    assert jax.eval_shape(networks.margins, polished.params, *data).dtype == jnp.float32
    short = jax.tree.map(lambda a: np.asarray(a, jnp.bfloat16), trained)
    assert jax.eval_shape(traced, short[0], *short[1]).clarke.residual.dtype == jnp.float32
    assert certificate(*trained[:1], *trained[1]).clarke.residual.dtype == jnp.float64


@pytest.mark.parametrize("tolerance", [1e-6, 1e-2])
def test_tolerances_may_be_traced(trained, tolerance):
    """And the network and data known."""
    by = partial(certificate, trained[0], *trained[1], budget=ROOM)
    got = jax.jit(lambda tolerance, gap: by(tolerance, gap))(tolerance, 1e-6)
    expected = by(tolerance, 1e-6)
    np.testing.assert_allclose(got.clarke.residual, expected.clarke.residual, atol=1e-9)
    assert got.status == expected.status
    assert np.sum(got.kinks) == np.sum(expected.kinks)


@pytest.mark.slow
def test_what_is_trained_is_named_in_any_order(trained):
    params, data = trained
    found = multipliers(params, *data, trained=("v", "b", "w"))
    np.testing.assert_array_equal(found, multipliers(params, *data, trained=("w", "b", "v")))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 29])
def test_multipliers_of_networks_that_misclassify(seed):
    """The margins add up to less than 0, and the least squares have an answer all the same."""
    rng = np.random.default_rng(seed)
    m, d, k = rng.integers(2, 12), rng.integers(1, 8), rng.integers(1, 15)
    x, y = rng.normal(size=(m, d)), np.where(np.arange(m) % 2, 1.0, -1.0)
    params = Params(rng.normal(size=(k, d)), rng.normal(size=k), rng.normal(size=k))
    assert kkt_cases.margins(params, x, y).sum() < 0

    def rest(multipliers):
        coefficients = (
            multipliers[:, None] * y[:, None] * params.v * (x @ params.w.T + params.b > 0)
        )
        hidden = np.maximum(x @ params.w.T + params.b, 0)
        w, b = params.w - coefficients.T @ x, params.b - coefficients.sum(axis=0)
        return np.concatenate([w.ravel(), b, params.v - (multipliers * y) @ hidden])

    pulls = rest(np.zeros(m))[:, None] - np.stack([rest(row) for row in np.eye(m)], axis=1)
    _, least = scipy.optimize.nnls(pulls, rest(np.zeros(m)))
    got = np.asarray(multipliers(params, x, y))
    assert got.min() > 0
    assert np.linalg.norm(rest(got)) == pytest.approx(least, rel=1e-9)


# --- definitions ---


def test_slackness_epsilon_and_delta_are_as_defined(trained, found):
    params, data = trained
    theta = kkt_cases.at_margin_one(params, *data)
    q = kkt_cases.margins(theta, *data)
    size = np.linalg.norm(kkt_cases.vector(theta))
    for side in (found.one_sided, found.clarke):
        lambdas = np.asarray(side.multipliers)
        np.testing.assert_allclose(side.epsilon, side.residual * size, rtol=TIGHT)
        np.testing.assert_allclose(side.delta, np.max(lambdas * (q - 1)), rtol=1e-9)
        np.testing.assert_allclose(side.slackness, lambdas @ (q - 1) / lambdas.sum(), rtol=1e-9)
        assert side.slackness > 1e-3
    w, b, v = kkt_cases.arrays(theta)
    balance = np.abs((w**2).sum(1) + b**2 - v**2) / size**2
    np.testing.assert_allclose(found.balance, balance, rtol=1e-9, atol=TIGHT)
    np.testing.assert_allclose(found.normalized_margin, 1 / size**2, rtol=TIGHT)
    np.testing.assert_allclose(found.min_margin, kkt_cases.margins(params, *data).min(), rtol=TIGHT)


# --- how the residual moves ---


def test_the_residual_grows_with_the_distance_from_a_kkt_point():
    case = DERIVED["3 orthogonal to 2"]
    sizes = np.array([1e-5, 1e-4, 1e-3, 1e-2])
    residuals = []
    for size in sizes:
        params = kkt_cases.disturbed(case.params, size)
        got = certificate(params, case.x, case.y, kink_tolerance=0.1)
        assert got.status == CertificateStatus.CERTIFIED
        theta = kkt_cases.at_margin_one(params, case.x, case.y)
        pulls = kkt_cases.gradients(theta, case.x, case.y, case.slopes)
        rest = kkt_cases.vector(theta) - case.multipliers @ pulls
        assert got.clarke.residual <= np.linalg.norm(rest) / np.linalg.norm(kkt_cases.vector(theta))
        residuals.append(float(got.clarke.residual))
    # To first order proportional to the disturbance; the second order is its square.
    np.testing.assert_allclose(residuals[1:] / sizes[1:], residuals[0] / sizes[0], rtol=0.1)
    assert residuals[0] > 0.1 * sizes[0]


def test_an_untrained_network_is_far_from_a_kkt_point(untrained):
    got = certificate(untrained[0], *untrained[1], budget=ROOM)
    assert got.status == CertificateStatus.CERTIFIED
    assert got.clarke.residual > 0.3


# --- what is refused, and what is told ---


def test_lists_are_as_good_as_arrays(unchecked):
    case = DERIVED["acute"]
    expected = certificate(case.params, case.x, case.y, budget=(2, 1))
    labels = [int(label) for label in case.y]
    got = certificate(case.params, case.x.tolist(), labels, budget=(2, 1))
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    with pytest.raises(ValueError, match="x must be an array, or lists of numbers that make one"):
        certificate(case.params, [[1.0, 2.0, 3.0], [4.0]], labels)


def test_eager_statuses(trained):
    good, data = trained
    wrong = certificate(good, data.x, -data.y)
    assert wrong.status == CertificateStatus.INFEASIBLE
    assert jnp.isnan(wrong.clarke.residual)
    broken = certificate(good._replace(b=good.b.at[0].set(jnp.nan)), *data)
    assert broken.status == CertificateStatus.NON_FINITE
    assert jnp.isnan(broken.clarke.residual)
    # The biases of a flow without biases that diverged say nothing against `trained`.
    lost = Params(*(jnp.nan * leaf for leaf in good))
    assert certificate(lost, *data, trained=("w", "v")).status == CertificateStatus.NON_FINITE


def test_every_status_has_a_sentence():
    sentences = {status.describe() for status in CertificateStatus}
    assert len(sentences) == len(CertificateStatus) == 5
    assert "raise the budget" in CertificateStatus.STOPPED_EARLY.describe()
    assert "train the network until it classifies all" in CertificateStatus.INFEASIBLE.describe()


def test_bad_arguments_are_refused(unchecked):
    case = DERIVED["acute"]
    arguments = case.params, case.x, case.y
    with pytest.raises(ValueError, match="both labels must occur"):
        certificate(case.params, case.x, np.ones(2))
    with pytest.raises(ValueError, match="x must be finite"):
        certificate(case.params, case.x * np.nan, case.y)
    with pytest.raises(ValueError, match=r"dimension 2 needs w \(k, 2\).* got w \(2, 3\)"):
        certificate(case.params, case.x[:, :2], case.y)
    with pytest.raises(ValueError, match=r"one label per sample, shape \(2,\), got \(1,\)"):
        certificate(case.params, case.x, case.y[:1])
    for tolerance in (-1e-9, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"kink_tolerance must be in \[0, 1\), got"):
            certificate(*arguments, kink_tolerance=tolerance)
    for gap in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="gap must be between 0 and 1, got"):
            certificate(*arguments, gap=gap)
    for budget in ((-1, 2), (1, -2), (1,), (1, 2, 3), (1.5, 2), (2, 1.0), (True, 2), 5, "ab"):
        message = f"budget must be two whole numbers from 0 on, .* got {re.escape(repr(budget))}"
        with pytest.raises(ValueError, match=message):
            certificate(*arguments, budget=budget)
        with pytest.raises(ValueError, match=message):
            jk.Certificates(budget=budget)
    assert jk.Certificates(budget=[np.int32(8), 2]).budget == (8, 2)


def test_the_gap_is_what_its_own_vector_leaves_open(trained):
    """n = theta - sum_i lambda_i y_i g_i - t theta, with the least t at which it makes no acute
    angle with any y_i g_i. So nothing is nearer to theta than 2 n . theta - |n|^2, squared."""
    params, data = trained
    side = certificate(params, *data, kink_tolerance=NEAR, budget=(0, 0)).clarke
    theta = kkt_cases.at_margin_one(params, *data)
    at, size = kkt_cases.kinked(params, data.x, NEAR), kkt_cases.vector(theta)
    pulls = kkt_cases.gradients(theta, *data, np.asarray(side.slopes))
    rest = size - np.asarray(side.multipliers) @ pulls
    shares = []
    for i, places in enumerate(map(np.flatnonzero, at)):
        corners = []
        for corner in np.ndindex(*[2] * places.size):
            slopes = np.array(side.slopes)
            slopes[i, places] = corner
            corners.append(kkt_cases.gradients(theta, *data, slopes)[i])
        shares.append(max(corners @ rest) / min(corners @ size))
    t = max(0.0, *shares)
    assert t > 0.01  # so its square counts
    n = rest - t * size
    expected = (rest @ rest - 2 * n @ size + n @ n) / (size @ size)
    np.testing.assert_allclose(side.gap, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_certifies_where_jit_is_off():
    """A loop over no kinks raised."""
    case = kkt_cases.orthogonal(1, 1, 1.0)
    with jax.disable_jit():
        found = jk.kkt.certificate(case.params, case.x, case.y)
    assert found.clarke.residual < 1e-6
