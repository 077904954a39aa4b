"""KKT problems of networks without biases: the same as those of biases, with x_i for (x_i, 1).

A network with biases on x is one without on (x, 1): every answer of the one must be the other's.
"""

from functools import partial

import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np
import pytest
from cases import assert_close, problem, stacked
from certificate_cases import ACUTE, LOOSE, OBTUSE, TIGHT, ZERO
from certificate_cases import NEAR as NEAR_KINKS
from certificate_cases import found as found_with_biases
from certificate_cases import trained as trained_with_biases
from polish_cases import NEAR, ROOT, made, merged

from jaxkkt import single, training
from jaxkkt.kkt import (
    CertificateStatus,
    LimitStatus,
    PolishStatus,
    certificate,
    follow_flow,
    kinks,
    multipliers,
    polish,
)
from jaxkkt.networks import Params
from jaxkkt.protocols import flow_protocol

pytestmark = pytest.mark.usefixtures("float64")

ALL, NO_BIASES = ("w", "b", "v"), ("w", "v")


def folded(params, x, y):
    """The network without biases on (x, 1)."""
    w = jnp.concatenate([params.w, params.b[:, None]], axis=1)
    x = jnp.concatenate([jnp.asarray(x), jnp.ones((x.shape[0], 1))], axis=1)
    return Params(w, jnp.zeros_like(params.b), params.v), x, jnp.asarray(y)


def unfolded(params):
    return Params(params.w[..., :-1], params.w[..., -1], params.v)


@pytest.fixture(scope="module")
def trained():
    """A network without biases that training has brought to a loss of 1e-30."""
    with jax.enable_x64(True):
        params, data = problem(8, 5, 20)
        start = params._replace(b=jnp.zeros_like(params.b))
        run = single.train(start, *data, flow_protocol(trained=NO_BIASES))
        assert run.status == training.Status.CONVERGED
        assert not run.params.b.any()
        return run.params, data


@pytest.mark.slow
def test_polish_stays_within_the_parameters_that_were_trained(trained):
    params, data = trained
    got = polish(params, *data, trained=NO_BIASES)
    assert got.status == PolishStatus.POLISHED
    assert not got.params.b.any()
    assert got.normalized_margin > got.normalized_margin_before
    found = certificate(got.params, *data, trained=NO_BIASES)
    assert found.status == CertificateStatus.CERTIFIED
    assert found.clarke.residual < 1e-6
    assert found.clarke.slackness < 1e-6
    assert found.min_margin >= 1
    # With biases it is no KKT point: they would make it smaller.
    assert certificate(got.params, *data, trained=ALL).clarke.residual > 0.01
    moved = polish(params, *data, trained=ALL)
    assert jnp.abs(moved.params.b).max() > 0.01
    assert moved.normalized_margin > got.normalized_margin


@pytest.mark.slow
def test_polish_of_folded_biases():
    case = made("d > m")
    got = polish(*folded(case.before, *case.data), trained=NO_BIASES)
    assert got.status == PolishStatus.POLISHED
    assert not got.params.b.any()
    np.testing.assert_allclose(got.normalized_margin, case.polished.normalized_margin, rtol=NEAR)
    np.testing.assert_allclose(got.angle, case.polished.angle, rtol=ROOT)
    np.testing.assert_allclose(
        merged(unfolded(got.params)), merged(case.polished.params), atol=ROOT
    )


@pytest.mark.slow
def test_certificate_kinks_and_multipliers_of_folded_biases():
    params, data = trained_with_biases()
    args = folded(params, *data)
    got = certificate(*args, kink_tolerance=NEAR_KINKS, trained=NO_BIASES)
    expected = found_with_biases()
    assert got.kinks > 0
    assert_close(got, expected, rtol=LOOSE, atol=ZERO)
    data = jax.tree.map(jnp.asarray, data)
    np.testing.assert_array_equal(
        kinks(*args, NEAR_KINKS, NO_BIASES), kinks(params, *data, NEAR_KINKS)
    )
    np.testing.assert_allclose(
        multipliers(*args, trained=NO_BIASES), multipliers(params, *data), rtol=LOOSE, atol=ZERO
    )


@pytest.mark.slow
def test_the_flow_of_folded_biases():
    params, data = problem(6, 20, 40)
    params = single.train(params, *data, flow_protocol(target_log_loss=-20.0)).params
    follow = partial(follow_flow, log_loss=-20.0, levels=(-60.0,), step=0.05)
    got = follow(*folded(params, *data), trained=NO_BIASES)
    expected = follow(params, *data)
    assert got.status.tolist() == [LimitStatus.FOLLOWED]
    assert not got.params.b.any()
    assert_close(unfolded(got.params), expected.params, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(got.multipliers, expected.multipliers, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("points", [OBTUSE, ACUTE])
def test_two_samples_in_closed_form(points):
    case = kkt_cases.two_samples(*points, biases=False)
    assert not case.params.b.any()
    found = certificate(case.params, case.x, case.y, trained=NO_BIASES)
    assert found.status == CertificateStatus.CERTIFIED
    assert found.clarke.residual < ZERO
    np.testing.assert_allclose(found.clarke.multipliers, case.multipliers, rtol=LOOSE)
    np.testing.assert_allclose(found.one_sided.residual, case.one_sided, rtol=TIGHT, atol=ZERO)
    assert certificate(case.params, case.x, case.y, trained=ALL).clarke.residual > 0.1
    w, b, v = kkt_cases.disturbed(case.params, 1e-3)
    got = polish(Params(w, 0 * b, v), case.x, case.y, trained=NO_BIASES)
    assert got.status == PolishStatus.POLISHED
    np.testing.assert_allclose(
        kkt_cases.vector(got.params), kkt_cases.vector(case.params), atol=ROOT
    )


# --- what is refused, and what is told ---

UNCLEAR = {
    "polish": (polish, PolishStatus.BIASES_UNCLEAR),
    "certificate": (partial(certificate, budget=(8, 8)), CertificateStatus.BIASES_UNCLEAR),
    "follow_flow": (
        partial(follow_flow, log_loss=-60.0, levels=(-70.0,)),
        LimitStatus.BIASES_UNCLEAR,
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_biases_that_do_not_fit_are_refused(name, trained):
    function = UNCLEAR[name][0]
    params, data = trained
    with pytest.raises(ValueError, match=r"all biases are 0 .* pass trained=\('w', 'v'\) for"):
        function(params, *data)
    biased = params._replace(b=params.b.at[3].set(-0.25))
    with pytest.raises(ValueError, match=r"expects a network without biases, got .* up to 0\.25"):
        function(biased, *data, trained=NO_BIASES)
    for subset in (("w",), ("v",), ("b", "v"), ("w", "b"), (), ("w", "w", "v"), ("w", "u")):
        with pytest.raises(ValueError, match=r"trained must be \('w', 'b', 'v'\), or \('w', 'v'\)"):
            function(params, *data, trained=subset)


@pytest.mark.slow
@pytest.mark.parametrize("trained_names", [None, NO_BIASES])
@pytest.mark.parametrize("name", UNCLEAR)
def test_lanes_whose_biases_do_not_fit_tell_so(name, trained_names, trained):
    """Of a network without biases and one with, each `trained` fits one."""
    function, unclear = UNCLEAR[name]
    params, data = trained
    biased = params._replace(b=params.b.at[3].set(1e-3))
    lanes = stacked(params, biased)
    got = jax.vmap(lambda params: function(params, *data, trained=trained_names))(lanes)
    bad, good = (0, 1) if trained_names is None else (1, 0)
    assert (got.status[good] == 0).all()
    assert (got.status[bad] == unclear).all()
    assert "pass trained=('w', 'v') for a network without biases" in unclear.describe()
    for leaf in jax.tree.leaves(got.clarke if name == "certificate" else got.params):
        assert jnp.isnan(leaf[bad]).all()
        assert jnp.isfinite(leaf[good]).all()


@pytest.mark.slow
def test_the_order_of_the_names_does_not_matter(trained):
    params, data = trained
    one, other = (certificate(params, *data, trained=names) for names in (("v", "w"), NO_BIASES))
    assert_close(one, other, rtol=0)
