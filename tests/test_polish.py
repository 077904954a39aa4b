"""Polished networks against the KKT conditions, closed forms, and another solver."""

from functools import partial

import jax
import kkt_cases
import numpy as np
import pytest
import scipy.optimize
from cases import problem
from polish_cases import NEAR, ROOM, ROOT, assert_kkt, certify, made

from jaxkkt import networks, single
from jaxkkt.datasets import Dataset
from jaxkkt.kkt import PolishStatus, certificate, polish
from jaxkkt.networks import Params

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(params=["d > m", pytest.param("m > d", marks=pytest.mark.slow)])
def case(request):
    return made(request.param)


@pytest.fixture
def wide():
    return made("d > m")


def live(params, data):
    w, b, v = kkt_cases.arrays(params)
    return int(np.sum(np.any(np.asarray(data.x) @ w.T + b > 0, axis=0) & (v != 0)))


# --- what comes out ---


@pytest.mark.slow
def test_neurons_of_little_weight_count_where_samples_of_two_classes_are_near():
    """Their tangents were those of before, and a network of residual 0.04 was called POLISHED."""
    rng = np.random.default_rng(26)
    x = rng.normal(size=(6, 2))
    x[1] = x[0] + 0.01 * rng.normal(size=2)
    y = rng.choice([-1.0, 1.0], 6)
    y[:2] = 1, -1
    w = rng.normal(size=(12, 2))
    b = 0.1 * rng.normal(size=12) - (w * x[rng.integers(6, size=12)]).sum(axis=1)
    v = np.linalg.lstsq(np.maximum(x @ w.T + b, 0), y, rcond=1e-12)[0]
    polished = polish(Params(w, b, v), x, y)
    assert polished.status == PolishStatus.POLISHED
    assert certificate(polished.params, x, y).clarke.residual < 1e-8


def test_polished_networks_are_kkt_points(case):
    polished, found = case.polished, case.certificate
    assert polished.status == PolishStatus.POLISHED
    assert_kkt(found)
    # The kinks are what makes it one.
    assert found.kinks > 0
    assert found.one_sided.residual > 0.01
    q = np.asarray(networks.margins(polished.params, *case.data))
    assert q.min() >= 1
    lambdas = np.asarray(found.clarke.multipliers)
    off = q > 1 + 1e-6
    assert off.any() == (case.name == "m > d")
    # The certificate's own error, the root of 1e-15 of |theta|^2.
    assert np.all(lambdas[off] < 1e-7 * lambdas.max())
    assert lambdas[~off].min() > 1e-3 * lambdas.max()


def test_the_numbers_that_come_with_a_polish_are_as_defined(case):
    polished, data = case.polished, case.data
    for params, margin, count in (
        (case.before, polished.normalized_margin_before, polished.live_before),
        (polished.params, polished.normalized_margin, polished.live),
    ):
        squared = np.sum(kkt_cases.vector(params) ** 2)
        least = kkt_cases.margins(params, *map(np.asarray, data)).min()
        np.testing.assert_allclose(margin, least / squared, rtol=1e-12)
        assert int(count) == live(params, data)
    a, b = kkt_cases.vector(case.before), kkt_cases.vector(polished.params)
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    np.testing.assert_allclose(polished.angle, np.arccos(cosine), rtol=1e-12)
    assert 0 < polished.steps < 100


@pytest.mark.slow
def test_neurons_without_an_output_or_active_on_padding_alone_are_not_live():
    # The third has no output; the last is active between 0 and x1 = 1/2.
    w, b = [[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [-2.0, 0.0]], [0.1, 0.1, 0.1, 1.0]
    params = Params(*map(np.array, (w, b, [1.0, -1.0, 0.0, 0.5])))
    x, y = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]), np.array([1.0, -1.0, 0.0])
    found = jax.jit(polish)(params, x, y)
    assert found.status == PolishStatus.POLISHED
    assert found.live_before == found.live == 2


def test_polish_descends_among_networks_with_the_same_signs(case):
    polished, data = case.polished, case.data
    assert polished.normalized_margin > 1.01 * polished.normalized_margin_before
    start = kkt_cases.at_margin_one(case.before, *map(np.asarray, data))
    norms = [np.sum(kkt_cases.vector(params) ** 2) for params in (polished.params, start)]
    assert norms[0] < 0.99 * norms[1]
    signs = np.sign(polished.params.v) * np.sign(case.before.v)
    assert set(signs.tolist()) == {0.0, 1.0}
    assert int(polished.live) == np.sum(signs > 0) < int(polished.live_before)
    # Whoever does not take part is zero throughout.
    dead = np.asarray(polished.params.v) == 0
    assert np.all(np.asarray(polished.params.w)[dead] == 0)
    assert np.all(np.asarray(polished.params.b)[dead] == 0)


def test_no_network_nearby_is_smaller(case):
    """To first order. Of second order is what moves of 1e-3 and 1e-4 may gain at a saddle."""
    data = Dataset(*map(np.asarray, case.data))
    size = np.sum(kkt_cases.vector(case.polished.params) ** 2)
    start = kkt_cases.at_margin_one(case.before, *data)
    best = kkt_cases.arrays(case.polished.params)
    toward = Params(*(a - b for a, b in zip(start, best, strict=True)))
    rng = np.random.default_rng(0)
    for step in np.repeat([1e-4, 1e-3], 100):
        moved = kkt_cases.disturbed(best, step, rng.integers(2**31))
        along = Params(
            *(a + rng.choice([-step, step]) * t for a, t in zip(moved, toward, strict=True))
        )
        # Live neurons alone, each with u_j and v_j together: what keeps the balance.
        stretch = 1 + step * rng.normal(size=moved.v.size)
        stretched = Params(best.w * stretch[:, None], best.b * stretch, best.v * stretch)
        for params in (moved, along, stretched):
            at_one = kkt_cases.at_margin_one(params, *data)
            assert np.sum(kkt_cases.vector(at_one) ** 2) > size * (1 - step**2)


def test_the_dual_has_the_same_value(case):
    """With s_ij the slopes and z = (x, 1), p_j = sum_i lambda_i y_i sign(v_j) s_ij z_i.

    With the signs, and tangents of own samples, as they are, sum_i lambda_i q_i is at most
    sum_j h_j . p_j for h_j = |v_j| u_j. Where all |p_j| <= 1 and all q_i >= 1, that makes
    sum_i lambda_i <= sum_j |h_j| <= |theta|^2 / 2, with equality where p_j is the direction of u_j.
    """
    params, side = case.polished.params, case.certificate.clarke
    x, y = map(np.asarray, case.data)
    lambdas, slopes = np.asarray(side.multipliers), np.asarray(side.slopes)
    size = np.sum(kkt_cases.vector(params) ** 2) / 2
    np.testing.assert_allclose(lambdas.sum(), size, rtol=1e-6)
    lived = np.flatnonzero(np.asarray(params.v))
    z = np.concatenate([x, np.ones((y.size, 1))], axis=1)
    p = ((lambdas * y)[:, None] * slopes[:, lived] * np.sign(params.v)[lived]).T @ z
    weights = np.asarray(params.v)[lived] ** 2
    # |u_j - v_j p_j| is at most the residual's |theta|.
    error = 1e-6 * np.sqrt(2 * size / weights)
    assert np.all(np.abs(np.linalg.norm(p, axis=1) - 1) < error)


@pytest.mark.slow
def test_another_solver_finds_the_same_optimum():
    """min sum_j |h_j| over h_j = a_j g_j, with own tangents and signs fixed, by SLSQP.

    Own samples enter as h_j . z_i where the tangent is on, others as r_ij >= relu(h_j . z_i).
    """
    params, data = problem(6, 4, 12)
    polished = polish(single.train(params, *data).params, *data)
    assert polished.status == PolishStatus.POLISHED
    w, b, v = kkt_cases.arrays(polished.params)
    lived = np.flatnonzero(v)
    x, y = map(np.asarray, data)
    z = np.concatenate([x, np.ones((6, 1))], axis=1)
    u = np.concatenate([w, b[:, None]], axis=1)[lived] * np.abs(v)[lived][:, None]
    own = y[:, None] == np.sign(v)[lived]
    on = own & (z @ u.T > 0)
    n, d = u.shape
    # Margins, r >= h . z, r >= 0, as rows over (h, r).
    others = np.argwhere(~own)
    rows = np.zeros((6, n * d + len(others)))
    bends = np.zeros((len(others), rows.shape[1]))
    for i, j in np.argwhere(on):
        rows[i, j * d : (j + 1) * d] = z[i]
    for place, (i, j) in enumerate(others):
        rows[i, n * d + place] = -1
        bends[place, j * d : (j + 1) * d] = -z[i]
        bends[place, n * d + place] = 1
    matrix = np.concatenate([rows, bends])
    least = np.concatenate([np.ones(6), np.zeros(len(others))])
    rng = np.random.default_rng(0)
    start = (u * rng.uniform(0.5, 3, size=(n, 1)) + 0.1 * rng.normal(size=u.shape)).ravel()
    start = np.concatenate([start, np.maximum(-bends[:, : n * d] @ start, 0)])

    def value(h):
        return np.linalg.norm(h[: n * d].reshape(n, d), axis=1).sum()

    def slope(h):
        h = h[: n * d].reshape(n, d)
        unit = h / np.linalg.norm(h, axis=1, keepdims=True)
        return np.concatenate([unit.ravel(), np.zeros(len(others))])

    found = scipy.optimize.minimize(
        value,
        start,
        jac=slope,
        method="SLSQP",
        bounds=[(None, None)] * (n * d) + [(0, None)] * len(others),
        constraints={"type": "ineq", "fun": lambda h: matrix @ h - least, "jac": lambda h: matrix},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    np.testing.assert_allclose(found.fun, 0.5 / float(polished.normalized_margin), rtol=1e-6)


# --- closed forms ---


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-3, 0.1])
@pytest.mark.parametrize("name", ["opposite", "acute", "3 orthogonal to 2", "4 orthogonal to 1"])
def test_a_disturbed_kkt_network_is_polished_back(name, size):
    """The one neuron of each sign has the normalized margin 1 / (2 sum_i lambda_i)."""
    x = np.array([2.0, 1.0, -0.5])
    derived = {
        "opposite": partial(kkt_cases.two_samples, x, -x),
        "acute": partial(kkt_cases.two_samples, x, np.array([0.3, 0.2, 1.0])),
        "3 orthogonal to 2": partial(kkt_cases.orthogonal, 3, 2, 2.0),
        "4 orthogonal to 1": partial(kkt_cases.orthogonal, 4, 1, 1.3),
    }[name]()
    params = kkt_cases.disturbed(derived.params, size)
    got = polish(params, derived.x, derived.y)
    assert got.status == PolishStatus.POLISHED
    best = 0.5 / derived.multipliers.sum()
    assert got.normalized_margin_before < best * (1 - size**2)
    np.testing.assert_allclose(got.normalized_margin, best, rtol=NEAR)
    np.testing.assert_allclose(
        kkt_cases.vector(got.params), kkt_cases.vector(derived.params), atol=ROOT
    )


# --- limits ---


@pytest.mark.slow
def test_few_working_neurons_end_at_a_kkt_point_of_their_own(wide):
    got = polish(wide.before, *wide.data, working=8)
    assert got.status == PolishStatus.POLISHED
    assert 2 <= got.live <= 8
    assert_kkt(certify(got.params, *wide.data, budget=ROOM[wide.name]))
    assert got.normalized_margin > got.normalized_margin_before


@pytest.mark.slow
def test_few_working_neurons_see_every_sample():
    """Clones of one neuron reach furthest, but half the samples are seen by two others alone."""
    x, y = np.eye(4), np.array([1.0, 1.0, -1.0, -1.0])
    w = np.concatenate([np.tile([3.0, 3.0, 0.0, 0.0], (70, 1)), x[2:]])
    v = np.concatenate([np.full(70, 18**0.5), [-1.0, -1.0]])
    params = Params(w, np.zeros(72), v)
    got = polish(params, x, y, working=8, trained=("w", "b", "v"))
    assert got.status == PolishStatus.POLISHED
    assert 3 <= got.live <= 8
    assert_kkt(certify(got.params, x, y, budget=(8, 4)))
    # The clones alone classify nothing of the other class: told, and no number is given.
    alone = polish(params, x, y, working=1, trained=("w", "b", "v"))
    assert alone.status == PolishStatus.STOPPED_EARLY
    assert_no_numbers(alone)
    assert alone.steps > 0


def assert_no_numbers(got):
    for value in (*got.params, got.angle, got.normalized_margin, got.normalized_margin_before):
        assert np.isnan(value).all()
    assert got.live == got.live_before == -1


def test_too_few_steps_are_told(wide):
    got = polish(wide.before, *wide.data, max_steps=1)
    assert got.status == PolishStatus.STOPPED_EARLY
    assert got.steps == 1
    assert wide.polished.steps > 1


def test_networks_that_cannot_be_polished_are_told(wide):
    before = kkt_cases.arrays(wide.before)
    w, v = before.w.copy(), before.v.copy()
    w[0, 3], v[5] = np.nan, np.inf
    for broken, status in (
        (before._replace(v=-before.v), PolishStatus.INFEASIBLE),
        (Params(*(0 * leaf for leaf in before)), PolishStatus.INFEASIBLE),
        (before._replace(w=w), PolishStatus.NON_FINITE),
        (before._replace(v=v), PolishStatus.NON_FINITE),
    ):
        got = polish(broken, *wide.data)
        assert got.status == status
        assert got.steps == 0
        assert_no_numbers(got)


def test_lists_are_as_good_as_arrays(wide):
    got = polish(wide.before, *(array.tolist() for array in wide.data))
    jax.tree.map(np.testing.assert_array_equal, got, wide.polished)


def test_every_status_has_a_sentence():
    assert len({status.describe() for status in PolishStatus}) == len(PolishStatus) == 5
    stopped_early = PolishStatus.STOPPED_EARLY.describe()
    assert "raise working, or max_steps where all of them were taken" in stopped_early
    assert "train the network until it classifies all" in PolishStatus.INFEASIBLE.describe()


def test_bad_arguments_are_refused(unchecked):
    derived = kkt_cases.orthogonal(3, 2, 2.0)
    params, x, y = derived[:3]
    for name in ("working", "max_steps"):
        for count in (0, -3):
            with pytest.raises(ValueError, match=f"{name} must be at least 1, got {count}"):
                polish(params, x, y, **{name: count})
        for count in (2.5, 3.0, True):
            with pytest.raises(ValueError, match=f"{name} must be an integer, got {count}"):
                polish(params, x, y, **{name: count})
    with pytest.raises(ValueError, match="working must be an integer, got Array"):
        polish(params, x, y, working=jax.device_put(10))
    with pytest.raises(ValueError, match="both labels must occur"):
        polish(params, x, np.ones(5))
    with pytest.raises(ValueError, match="x must be finite"):
        polish(params, np.full_like(x, np.inf), y)
    with pytest.raises(ValueError, match=r"dimension 4 needs w \(k, 4\).* got w \(2, 5\)"):
        polish(params, x[:, :4], y)
    with pytest.raises(ValueError, match=r"one label per sample, shape \(5,\), got \(4,\)"):
        polish(params, x, y[:4])


def test_polished_margins_are_the_most_to_nine_places():
    """Orthogonal points have a closed form: |theta|^2 = 2 sum_i lambda_i."""
    derived = kkt_cases.orthogonal(3, 2, 2.0)
    got = polish(kkt_cases.disturbed(derived.params, 1e-3), derived.x, derived.y)
    assert got.status == PolishStatus.POLISHED
    best = 0.5 / derived.multipliers.sum()
    np.testing.assert_allclose(got.normalized_margin, best, rtol=NEAR)
