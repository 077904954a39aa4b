"""What the tests of certificates share: networks, tolerances, and an independent solver."""

from functools import cache

import jax
import kkt_cases
import numpy as np
import scipy.optimize
from cases import problem

from jaxkkt import single, training
from jaxkkt.datasets import Dataset
from jaxkkt.kkt import certificate
from jaxkkt.networks import Params

# What is left open when the solver ends, 1e-15 of |theta|^2, moves a residual of 0 to at most its
# root, 3e-8, and a residual r by 1e-15 / r.
ZERO = 1e-7
TIGHT = 1e-12
# Multipliers move by as much as the residual, over the smallest singular value of the g_i.
LOOSE = 1e-6
NEAR = 0.05
# What `certificate` makes room for at this tolerance, in the trained network below.
ROOM = (12, 2)

OBTUSE = np.array([2.0, 1.0, -0.5]), np.array([-1.5, -0.5, 1.0])
ACUTE = np.array([2.0, 1.0, -0.5]), np.array([0.3, 0.2, 1.0])
with jax.enable_x64(True):
    DERIVED = {
        "obtuse": kkt_cases.two_samples(*OBTUSE),
        "opposite": kkt_cases.two_samples(OBTUSE[0], -OBTUSE[0]),
        "opposite, near": kkt_cases.two_samples(0.3 * OBTUSE[0], -0.3 * OBTUSE[0]),
        "acute": kkt_cases.two_samples(*ACUTE),
        "3 orthogonal to 2": kkt_cases.orthogonal(3, 2, 2.0),
        "4 orthogonal to 1": kkt_cases.orthogonal(4, 1, 1.3),
    }


def scaled(params, c):
    return Params(*(c * leaf for leaf in kkt_cases.arrays(params)))


def numbers(found):
    """All that is one number, or one a neuron, but the smallest margin and the status."""
    sides = [side[2:] for side in (found.one_sided, found.clarke)]
    return *sides[0], *sides[1], found.kinks, found.normalized_margin


def direct(params, data, side):
    """The residual of given multipliers and slopes, squared, from the definition."""
    theta = kkt_cases.at_margin_one(params, *data)
    pulls = kkt_cases.gradients(theta, *data, np.asarray(side.slopes))
    rest = kkt_cases.vector(theta) - np.asarray(side.multipliers) @ pulls
    return rest @ rest / (kkt_cases.vector(theta) @ kkt_cases.vector(theta))


def reference(params, data, free):
    """The least residual, squared, by NNLS over the corners of each sample's box of slopes."""
    theta = kkt_cases.at_margin_one(params, *data)
    w, b, _ = kkt_cases.arrays(theta)
    fixed = (data.x @ w.T + b > 0) & ~free
    generators = []
    for i, places in enumerate(map(np.flatnonzero, free)):
        for corner in np.ndindex(*[2] * places.size):
            slopes = fixed.astype(float)
            slopes[i, places] = corner
            generators.append(kkt_cases.gradients(theta, *data, slopes)[i])
    _, distance = scipy.optimize.nnls(np.stack(generators, axis=1), kkt_cases.vector(theta))
    return distance**2 / np.sum(kkt_cases.vector(theta) ** 2)


@cache
def trained():
    with jax.enable_x64(True):
        params, data = problem(6, 4, 12)
        run = single.train(params, *data)
        assert run.status == training.Status.CONVERGED
        return run.params, Dataset(*map(np.asarray, data))


@cache
def found():
    with jax.enable_x64(True):
        params, data = trained()
        return jax.device_get(certificate(params, *data, kink_tolerance=NEAR))


@cache
def untrained():
    """Labels are the network's own, after its output is moved by one neuron to have both signs."""
    with jax.enable_x64(True):
        params, data = problem(6, 4, 12)
    x, (w, b, v) = np.asarray(data.x), map(np.array, params)
    w[0], b[0], v[0] = 0, 1, 0
    outputs = np.sort(kkt_cases.margins(Params(w, b, v), x, np.ones(6)))
    v[0] = -(outputs[1] + outputs[2]) / 2
    params = Params(w, b, v)
    return params, Dataset(x, np.sign(kkt_cases.margins(params, x, np.ones(6))))
