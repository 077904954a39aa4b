"""What must not change a polished network: symmetries, padding, transformations, precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import stacked
from polish_cases import NEAR, ROOM, ROOT, SIZES, assert_kkt, certify, made, merged

from jaxkkt import datasets, networks
from jaxkkt.kkt import PolishStatus, polish
from jaxkkt.networks import Params

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(params=["d > m", pytest.param("m > d", marks=pytest.mark.slow)])
def case(request):
    return made(request.param)


@pytest.fixture
def wide():
    return made("d > m")


@pytest.mark.slow
def test_a_polished_network_polished_again_stays(case):
    again = polish(case.polished.params, *case.data)
    assert again.status == PolishStatus.POLISHED
    np.testing.assert_allclose(again.normalized_margin, case.polished.normalized_margin, rtol=1e-8)


@pytest.mark.slow
def test_neurons_without_an_output_have_no_sign_and_stay_zero(case):
    again = polish(case.polished.params, *case.data)
    dead = np.asarray(case.polished.params.v) == 0
    assert dead.any()
    assert np.all(np.asarray(again.params.v)[dead] == 0)
    assert again.live <= again.live_before


@pytest.mark.slow
def test_permuted_samples_and_neurons(wide):
    rng = np.random.default_rng(0)
    order, neurons = rng.permutation(12), rng.permutation(40)
    shuffled = Params(*(np.asarray(leaf)[neurons] for leaf in wide.before))
    got = polish(shuffled, *(np.asarray(array)[order] for array in wide.data))
    assert got.status == PolishStatus.POLISHED
    np.testing.assert_allclose(got.normalized_margin, wide.polished.normalized_margin, rtol=NEAR)
    np.testing.assert_allclose(merged(got.params), merged(wide.polished.params), atol=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("c", [50.0, 1e-3])
def test_rescaled_parameters(wide, c):
    got = polish(Params(*(c * np.asarray(leaf) for leaf in wide.before)), *wide.data)
    for leaf, before in zip(got.params, wide.polished.params, strict=True):
        np.testing.assert_allclose(leaf, before, atol=ROOT)
    np.testing.assert_allclose(got.angle, wide.polished.angle, rtol=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("c", [2.0**-40, 2.0**40])
def test_data_in_another_unit(wide, c):
    """A network of points of norm 1e11 was called POLISHED, and was none."""
    x, y = (np.asarray(array) for array in wide.data)
    w = np.asarray(wide.before.w)
    v = np.linalg.lstsq(np.maximum(x @ w.T, 0), y, rcond=1e-12)[0]
    expected = polish(Params(w, 0 * v, v), x, y, trained=("w", "v"))
    got = polish(Params(w, 0 * v, v), c * x, y, trained=("w", "v"))
    assert got.status == expected.status == PolishStatus.POLISHED
    assert got.live == expected.live
    np.testing.assert_allclose(got.normalized_margin / c, expected.normalized_margin, rtol=NEAR)
    np.testing.assert_allclose(merged(got.params) * c, merged(expected.params), atol=ROOT)


@pytest.mark.slow
def test_biases_that_are_nothing_beside_the_data(wide):
    x, y = 1e13 * np.asarray(wide.data.x), wide.data.y
    got = polish(wide.before._replace(b=1e13 * wide.before.b), x, y)
    assert got.status == PolishStatus.POLISHED
    assert_kkt(certify(got.params, x, y, budget=ROOM["d > m"]))


@pytest.mark.slow
def test_inputs_rotated_with_the_weights(wide):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0]
    w, x = np.asarray(wide.before.w), np.asarray(wide.data.x)
    got = polish(wide.before._replace(w=w @ turn), x @ turn, wide.data.y)
    np.testing.assert_allclose(got.normalized_margin, wide.polished.normalized_margin, rtol=NEAR)
    np.testing.assert_allclose(np.asarray(got.params.w) @ turn.T, wide.polished.params.w, atol=ROOT)


@pytest.mark.slow
def test_padded_and_vmapped_equals_looped():
    """Lanes of two sizes, padded in samples, neurons and coordinates, and two that fail."""
    both = [made(name) for name in SIZES]
    first = both[0].before
    networks_of = [case.before for case in both]
    networks_of += [first._replace(v=-first.v), first._replace(b=first.b.at[2].set(jnp.nan))]
    data_of = [case.data for case in both] + [both[0].data] * 2
    wide = stacked(*(networks.pad(params, 62, 20) for params in networks_of))
    data = stacked(*(datasets.pad(data, 27, 20) for data in data_of))
    got = jax.jit(jax.vmap(lambda params, data: polish(params, *data)))(wide, data)
    assert got.status.tolist() == [
        PolishStatus.POLISHED,
        PolishStatus.POLISHED,
        PolishStatus.INFEASIBLE,
        PolishStatus.NON_FINITE,
    ]
    assert jnp.isnan(got.normalized_margin[2:]).all()
    assert got.steps[0] != got.steps[1]
    for i, case in enumerate(both):
        d, k = case.data.x.shape[1], case.before.v.size
        np.testing.assert_allclose(
            got.normalized_margin[i], case.polished.normalized_margin, rtol=NEAR
        )
        np.testing.assert_allclose(
            got.normalized_margin_before[i], case.polished.normalized_margin_before, rtol=1e-12
        )
        assert got.live_before[i] == case.polished.live_before
        padding = [got.params.w[i, k:], got.params.w[i, :, d:], got.params.v[i, k:]]
        assert all(np.all(part == 0) for part in padding)
        solo = Params(got.params.w[i, :k, :d], got.params.b[i, :k], got.params.v[i, :k])
        np.testing.assert_allclose(merged(solo), merged(case.polished.params), atol=ROOT)
        assert_kkt(certify(solo, *case.data, budget=ROOM[case.name]))


@pytest.mark.slow
def test_callers_of_32_bits_get_the_numbers_of_64(wide):
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (wide.before, wide.data))
    params, data = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), narrow)
    expected = polish(params, *data)
    with jax.enable_x64(False):
        params, data = jax.tree.map(jnp.asarray, narrow)
        got = polish(params, *data)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(got)} == {"float32", "int32"}
    assert got.status == expected.status == PolishStatus.POLISHED
    for name in ("normalized_margin", "normalized_margin_before", "angle"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-6)
    for leaf, wanted in zip(got.params, expected.params, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-6)
