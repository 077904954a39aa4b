"""Public functions by what they are given: a network, points, labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkkt import datasets, lazy, networks, perturbations
from jaxkkt.adversarial import AdversarialProtocol, adversarial_training
from jaxkkt.networks import Params

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.array([1, -1, -1, 1, -1, 1], np.float32)
CHOSEN = np.array([True, True, False, True, True, True])
DIRECTION = [0.6, 0.0, -0.8]
NETWORK = Params(*(np.asarray(p) for p in networks.lazy(jax.random.key(1), 5, 3, biases=True)))


def adversarial(params, x, y):
    return adversarial_training(params, x, y, AdversarialProtocol(batch_size=3, epochs=1), KEY)


def transfer(params, x, y):
    return perturbations.transfer_matrix(Params(*(p[None] for p in params)), x, y)


def stepped(params, x, y):
    return perturbations.gradient_steps(params, x)


LABELLED = {
    "margins": networks.margins,
    "bisection": lambda *a: perturbations.flip_size_bisection(*a, DIRECTION, CHOSEN),
    "exact flips": lambda *a: perturbations.flip_sizes_exact(*a, DIRECTION, CHOSEN),
    "transfer": transfer,
    "pgd": lambda *a: perturbations.pgd(*a, 0.1, steps=3),
    "robust accuracy": lambda *a: perturbations.robust_accuracy(*a, [0.1, 0.2], steps=3),
    "smallest radii": lambda *a: perturbations.smallest_radii(*a, 1.0, steps=3, trips=2),
    "direction": lambda params, x, y: perturbations.universal_direction(x, y, CHOSEN),
    "half distances": lambda params, x, y: datasets.half_distances(x, y, X, Y),
    "needs step": lambda params, x, y: stepped(NETWORK, X, y).needs_step(y),
    "published eta": lambda params, x, y: stepped(NETWORK, X, y).published_eta(y),
    "adversarial training": adversarial,
}
UNLABELLED = {
    "apply": lambda params, x, y: networks.apply(params, x),
    "preactivations": lambda params, x, y: networks.preactivations(params, x),
    "input value": lambda params, x, y: networks.value_and_input_gradient(params, x),
    "pullback": lambda params, x, y: networks.value_and_pullback(params, x)[1](jnp.ones(6)),
    "gradient steps": stepped,
    "input gradient": lambda params, x, y: perturbations.input_gradient(params, x),
}
OF_NETWORKS = {
    "squared norm": lambda params, x, y: networks.squared_norm(params),
    "pad": lambda params, x, y: networks.pad(params, 6, 4),
    "distances": lambda params, x, y: lazy.distances(params, NETWORK),
    "distances from": lambda params, x, y: lazy.distances(NETWORK, params),
    "project": lambda params, x, y: lazy.project(params, NETWORK, 0.1),
}
OF_DATA_ALONE = {"direction", "half distances", "needs step", "published eta"}
OF_LABELS_ALONE = {"needs step", "published eta"}
ALL = LABELLED | UNLABELLED | OF_NETWORKS


def named(functions, *without):
    left = {n: f for n, f in functions.items() if n not in set().union(*without)}
    return pytest.mark.parametrize("function", left.values(), ids=left.keys())
