"""What must not change a certificate: symmetries, padding, transformations, precision."""

from functools import partial

import certificate_cases
import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np
import pytest
from cases import assert_close, lane, stacked
from certificate_cases import LOOSE, NEAR, ROOM, TIGHT, ZERO, numbers, reference, scaled

from jaxkkt import datasets, networks
from jaxkkt.datasets import Dataset
from jaxkkt.kkt import CertificateStatus, certificate
from jaxkkt.kkt.certificate import _certificate
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


def test_permuted_samples_and_neurons(trained, found):
    params, data = trained
    order, neurons = np.array([3, 0, 5, 1, 4, 2]), np.random.default_rng(0).permutation(12)
    shuffled = Params(*(np.asarray(leaf)[neurons] for leaf in params))
    got = certificate(shuffled, data.x[order], data.y[order], kink_tolerance=NEAR)
    assert_close(numbers(got), numbers(found), rtol=1e-9, atol=TIGHT)
    np.testing.assert_allclose(got.balance, found.balance[neurons], rtol=1e-9, atol=TIGHT)
    for side, before in ((got.one_sided, found.one_sided), (got.clarke, found.clarke)):
        moved = before.multipliers[order]
        np.testing.assert_allclose(side.multipliers, moved, rtol=LOOSE, atol=ZERO)


def test_inputs_rotated_with_the_weights(trained, found):
    params, data = trained
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    turned = params._replace(w=np.asarray(params.w) @ turn)
    got = certificate(turned, data.x @ turn, data.y, kink_tolerance=NEAR)
    assert_close(numbers(got), numbers(found), rtol=1e-9, atol=TIGHT)
    np.testing.assert_allclose(got.balance, found.balance, rtol=1e-9, atol=TIGHT)


@pytest.mark.parametrize("c", [37.0, 1e-4])
def test_rescaled_parameters(trained, found, c):
    params, data = trained
    got = certificate(scaled(params, c), *data, kink_tolerance=NEAR)
    assert_close(numbers(got), numbers(found), rtol=1e-9, atol=TIGHT)
    np.testing.assert_allclose(got.balance, found.balance, rtol=1e-9, atol=TIGHT)
    lambdas = found.clarke.multipliers
    np.testing.assert_allclose(got.clarke.multipliers, lambdas, rtol=LOOSE, atol=ZERO)
    np.testing.assert_allclose(got.min_margin, c**2 * found.min_margin, rtol=TIGHT)


def test_flipped_labels_with_flipped_outputs(trained, found):
    params, data = trained
    flipped = params._replace(v=-np.asarray(params.v))
    got = certificate(flipped, data.x, -data.y, kink_tolerance=NEAR)
    assert_close(numbers(got), numbers(found), rtol=1e-9, atol=TIGHT)


def test_padding_is_inert(trained, found):
    params, data = trained

    @jax.jit
    def padded(params, data):
        wide, more = networks.pad(params, 16, 7), datasets.pad(data, 9, 7)
        return certificate(wide, *more, kink_tolerance=NEAR, budget=ROOM)

    got = jax.device_get(padded(params, data))
    assert got.status == CertificateStatus.CERTIFIED
    # Padded samples take part in the steps of the solver, whose answers then agree to its own
    # error: 1e-15 of |theta|^2 in residuals of 0.1 and more; multipliers and slackness to its root.
    for side, before in ((got.one_sided, found.one_sided), (got.clarke, found.clarke)):
        np.testing.assert_allclose(side.residual, before.residual, rtol=1e-9)
        np.testing.assert_allclose(side.epsilon, before.epsilon, rtol=1e-9)
        np.testing.assert_allclose(side.multipliers[:6], before.multipliers, rtol=LOOSE, atol=ZERO)
        np.testing.assert_allclose(side.slackness, before.slackness, rtol=LOOSE)
        np.testing.assert_allclose(side.delta, before.delta, rtol=LOOSE)
        np.testing.assert_array_equal(side.multipliers[6:], 0)
        assert side.gap < 1e-6
    assert int(got.kinks) == int(found.kinks)
    np.testing.assert_allclose(got.min_margin, found.min_margin, rtol=TIGHT)
    np.testing.assert_allclose(got.normalized_margin, found.normalized_margin, rtol=TIGHT)
    np.testing.assert_allclose(got.balance[:12], found.balance, rtol=1e-9, atol=TIGHT)
    np.testing.assert_array_equal(got.balance[12:], 0)


def test_repeated_samples_share_their_multipliers(trained):
    """The Gram matrix is singular, and the residual that of the samples without the copy."""
    params, data = trained
    x, y = data.x.copy(), data.y.copy()
    x[3], y[3] = x[4], y[4]
    got = certificate(params, x, y, kink_tolerance=NEAR, budget=ROOM)
    assert got.status == CertificateStatus.CERTIFIED
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    alone = Dataset(np.delete(x, 3, 0), np.delete(y, 3))
    at = kkt_cases.kinked(params, alone.x, NEAR)
    squared = float(got.clarke.residual) ** 2
    np.testing.assert_allclose(squared, reference(params, alone, at), rtol=1e-9)


# --- transformations and precision ---


def test_other_tolerances_do_not_recompile(trained, found):
    before = _certificate._cache_size()
    for tolerance, gap in ((NEAR, 1e-3), (0.04, 1e-6)):
        certificate(trained[0], *trained[1], kink_tolerance=tolerance, gap=gap, budget=ROOM)
    assert _certificate._cache_size() == before


@pytest.mark.slow
def test_callers_of_32_bits_get_the_numbers_of_64(trained):
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), trained)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), narrow)
    expected = certificate(wide[0], *wide[1], kink_tolerance=NEAR, budget=ROOM)
    with jax.enable_x64(False):
        params, data = jax.tree.map(jnp.asarray, narrow)
        got = certificate(params, *data, kink_tolerance=NEAR, budget=ROOM)
        jitted = jax.jit(partial(certificate, kink_tolerance=NEAR, budget=ROOM))(params, *data)
    for result in (got, jitted):
        floating = {leaf.dtype for leaf in jax.tree.leaves((result.one_sided, result.clarke))}
        assert floating | {result.min_margin.dtype, result.balance.dtype} == {np.dtype("float32")}
        assert result.status.dtype == result.kinks.dtype == np.dtype("int32")
        assert_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_vmapped_equals_looped_and_bad_lanes_do_not_spoil_good_ones(trained, untrained):
    good, data = trained
    assert data.y[0] != data.y[3]
    same_point = data._replace(x=np.concatenate([data.x[3:4], data.x[1:]]))
    lanes = {
        CertificateStatus.CERTIFIED: [trained, untrained],
        CertificateStatus.INFEASIBLE: [
            (good._replace(v=-good.v), data),
            (scaled(good, 0.0), data),
            (good, same_point),
        ],
        CertificateStatus.NON_FINITE: [
            (good._replace(w=good.w.at[3, 1].set(jnp.nan)), data),
            (good._replace(v=good.v.at[2].set(jnp.inf)), data),
            (good, data._replace(x=np.where(np.arange(4) == 2, np.nan, data.x))),
        ],
    }
    statuses = [status for status, cases in lanes.items() for _ in cases]
    batch = stacked(*(case for cases in lanes.values() for case in cases))
    certify = partial(certificate, kink_tolerance=NEAR, budget=ROOM)
    got = jax.jit(jax.vmap(lambda params, data: certify(params, *data)))(*batch)
    assert got.status.tolist() == statuses
    for i, status in enumerate(statuses):
        for leaf in jax.tree.leaves((lane(got.one_sided, i), lane(got.clarke, i))):
            assert np.all(np.isnan(leaf) == (status != CertificateStatus.CERTIFIED))
    for i, (params, data) in enumerate((trained, untrained)):
        alone = certify(params, *data)
        assert_close(lane(got, i), alone, rtol=LOOSE, atol=ZERO)
    assert got.clarke.residual[1] > 2 * got.clarke.residual[0]
    largest = kkt_cases.margins(good, *trained[1]).max()
    np.testing.assert_allclose(got.min_margin[2], -largest, rtol=TIGHT)
    assert got.min_margin[3] == 0
    assert got.min_margin[4] < 0
