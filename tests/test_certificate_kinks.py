"""Kinks of certificates: which they are, what a missed one costs, and room for too few."""

from functools import partial

import jax
import kkt_cases
import numpy as np
import pytest
from certificate_cases import DERIVED, TIGHT, ZERO, direct

from jaxkkt.datasets import Dataset
from jaxkkt.kkt import CertificateStatus, certificate, kinks, multipliers
from jaxkkt.networks import Params

pytestmark = pytest.mark.usefixtures("float64")


def test_kinks_are_relative_to_the_neuron_and_the_tolerance_is_the_callers():
    """Neuron 1 is moved until its sine with z_2, before 0, is -1e-3; neuron 2 keeps its kink."""
    case = DERIVED["acute"]
    w, b, v = map(np.array, case.params)
    u, z = np.append(w[0], b[0]), np.append(case.x[1], 1)
    size = np.linalg.norm(u)
    u = np.sqrt(1 - 1e-6) * u - 1e-3 * size * z / np.linalg.norm(z)
    # Every number of the first neuron is changed, but not its part in the outputs.
    w[0], b[0], v[0] = 7 * u[:3], 7 * u[3], v[0] / 7
    params = Params(w, b, v)
    find = jax.jit(kinks)
    for tolerance, count in ((1.01e-3, 2), (0.99e-3, 1)):
        at = find(params, case.x, case.y, tolerance)
        np.testing.assert_array_equal(at, [[False, True], [count == 2, False]])
        got = certificate(params, case.x, case.y, tolerance, budget=(2, 1))
        assert got.kinks == count
        assert got.status == CertificateStatus.CERTIFIED
    none = find(params._replace(v=np.array([0.0, 1.0])), case.x, case.y, 1e-2)
    np.testing.assert_array_equal(none, [[False, True], [False, False]])
    padded = find(params, case.x, np.array([0.0, -1.0]), 1e-2)
    np.testing.assert_array_equal(padded, [[False, False], [True, False]])


def test_a_missed_kink_costs_what_its_slope_is_worth():
    """With the kink the residual is of the size of the move, without of that of the slope."""
    case = DERIVED["acute"]
    w, b, v = kkt_cases.arrays(case.params)
    step = 1e-3 * np.hypot(np.linalg.norm(w[0]), b[0])
    z = np.append(case.x[1], 1) / np.linalg.norm(np.append(case.x[1], 1))
    params = Params(w - np.outer([step, 0], z[:3]), b - [step * z[3], 0], v)
    theta = kkt_cases.at_margin_one(params, case.x, case.y)
    seen = certificate(params, case.x, case.y, 1e-2, budget=(2, 1))
    missed = certificate(params, case.x, case.y, 1e-4, budget=(2, 1))
    pulls = kkt_cases.gradients(theta, case.x, case.y, case.slopes)
    rest = kkt_cases.vector(theta) - case.multipliers @ pulls
    worse = np.linalg.norm(rest) / np.linalg.norm(kkt_cases.vector(theta))
    assert worse < 2e-3
    assert ZERO < seen.clarke.residual <= worse
    # The neurons part, and each holds v^2 + |u|^2 = 2 lambda_j of |theta|^2, up to the move.
    share = case.multipliers[0] / case.multipliers.sum()
    np.testing.assert_allclose(
        missed.clarke.residual, np.sqrt(share) * case.one_sided, rtol=4e-3 / case.one_sided**2
    )


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "freed"), [((1, 3), True), ((2, 2), False), ((0, 0), False)])
def test_a_budget_too_small_is_told_and_its_residual_holds(budget, freed):
    """3 orthogonal to 2: the negative neuron has 3 kinks, the positive one 2.

    Room for one neuron goes to the one with most kinks. The positive neuron is left with the share
    a/(a + a') of r^2/(2 - r^2), a and a' being the weights v^2; the other's slopes, in which the
    first one's smaller multipliers stand below, stay under 1, so the two do not meet.
    """
    case = DERIVED["3 orthogonal to 2"]
    got = certificate(case.params, case.x, case.y, budget=budget)
    assert got.status == CertificateStatus.STOPPED_EARLY
    squared = float(got.clarke.residual) ** 2
    data = Dataset(case.x, case.y)
    np.testing.assert_allclose(direct(case.params, data, got.clarke), squared, rtol=1e-9)
    # The network is a KKT point: the best residual is 0.
    assert squared - got.clarke.gap <= 0
    assert got.clarke.residual <= got.one_sided.residual * (1 + TIGHT)
    if freed:
        weights = np.asarray(case.params.v) ** 2
        expected = np.sqrt(weights[0] / weights.sum()) * case.one_sided
        np.testing.assert_allclose(got.clarke.residual, expected, rtol=TIGHT)
    if budget == (0, 0):
        for mine, other in zip(got.clarke, got.one_sided, strict=True):
            if mine is not got.clarke.gap:
                np.testing.assert_array_equal(mine, other)
        assert got.one_sided.gap < TIGHT < got.clarke.gap


def test_a_budget_with_room_for_all_kinks_certifies():
    case = DERIVED["3 orthogonal to 2"]
    for budget in ((2, 4), (200, 4), None):
        got = certificate(case.params, case.x, case.y, budget=budget)
        assert got.status == CertificateStatus.CERTIFIED
        assert got.clarke.residual < ZERO


@pytest.mark.slow
def test_the_tolerance_of_the_gap_is_the_callers():
    case = DERIVED["3 orthogonal to 2"]
    short = certificate(case.params, case.x, case.y, budget=(1, 3))
    assert short.status == CertificateStatus.STOPPED_EARLY
    enough = certificate(
        case.params, case.x, case.y, gap=1.01 * float(short.clarke.gap), budget=(1, 3)
    )
    assert enough.status == CertificateStatus.CERTIFIED
    assert enough.clarke.gap == short.clarke.gap


@pytest.mark.usefixtures("unchecked")
def test_bad_samples_and_tolerances_are_refused():
    params = Params(np.ones((2, 3)), np.ones(2), np.array([1.0, -1.0]))
    x, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    for function in (multipliers, partial(kinks, tolerance=0.1)):
        with pytest.raises(ValueError, match=r"one label per sample, shape \(3,\), got \(1,\)"):
            function(params, x, y[:1])
        with pytest.raises(ValueError, match="labels must be -1 or 1, got"):
            function(params, x, 2 * y)
        found = jax.jit(partial(function, x=x.tolist(), y=y.astype(int)))(params)
        np.testing.assert_array_equal(found, jax.jit(partial(function, x=x, y=y))(params))
    for tolerance in (-1.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"tolerance must be in \[0, 1\), got"):
            kinks(params, x, y, tolerance)
