"""What the tests of polished networks share: networks, tolerances, and what a KKT point is."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import kkt_cases
import numpy as np
from cases import problem

from jaxkkt import single
from jaxkkt.datasets import Dataset
from jaxkkt.kkt import CertificateStatus, Polished, certificate, polish
from jaxkkt.networks import Params

# Polish ends where what should vanish sums to 1e-10 of |theta|^2 / 2: so near is |theta|^2 to that
# of the KKT point, and directions to its root.
NEAR, ROOT = 1e-9, 1e-5
SIZES = {"d > m": (12, 20, 40), "m > d": (25, 10, 60)}
# Room for all kinks of live neurons.
ROOM = {"d > m": (16, 12), "m > d": (40, 16)}

certify = partial(certificate, kink_tolerance=1e-6)


class Case(NamedTuple):
    name: str
    before: Params
    data: Dataset
    polished: Polished
    certificate: Any


@cache
def made(name):
    with jax.enable_x64(True):
        params, data = problem(*SIZES[name])
        before = single.train(params, *data).params
        polished = polish(before, *data)
        found = certify(polished.params, *data, budget=ROOM[name])
        return Case(name, before, data, polished, found)


def merged(params):
    """sum_j sign(v_j) u_j u_j^T: how neurons of one direction share their weight is left open."""
    w, b, v = kkt_cases.arrays(params)
    u = np.concatenate([w, b[:, None]], axis=1)
    return (u.T * np.sign(v)) @ u


def assert_kkt(found):
    """`found` is the certificate of what came out."""
    assert found.status == CertificateStatus.CERTIFIED
    assert found.clarke.residual <= 1e-6
    assert found.clarke.slackness <= 1e-6
    assert found.min_margin >= 1
    assert found.balance.max() < 1e-12
