"""Runs of several sizes share a program only where their optimizer leaves padding alone."""

import jax
import numpy as np
import optax
import pytest
from cases import sweep

import jaxkkt as jk
from jaxkkt.engine.planning.inert import is_inert

pytestmark = pytest.mark.usefixtures("unchecked")


def around_the_mean(rate: float):
    def update(gradient, state, params=None):
        return jax.tree.map(lambda g: -rate * (g - g.mean()), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def noisy(eta: float):
    return optax.noisy_sgd(0.05, eta=eta, gamma=0.1, key=0)


INERT = {
    "adam": jk.optimizer(optax.adam, learning_rate=0.01),
    "weight decay": jk.optimizer(optax.adamw, learning_rate=0.01),
    "norms": jk.optimizer(optax.lamb, learning_rate=0.01),
    "a norm over all": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01)),
    "signs": jk.optimizer(optax.lion, learning_rate=0.01),
    "no noise": jk.optimizer(noisy, eta=0.0),
    "the flow": jk.Flow(),
}
NOT_INERT = {
    "noise": jk.optimizer(noisy, eta=0.3),
    "sizes": jk.optimizer(optax.adafactor, learning_rate=0.05, min_dim_size_to_factor=4),
    "means": jk.optimizer(around_the_mean, rate=0.05),
    "rows": optax.chain(optax.centralize(), optax.sgd(0.05)),
    "a start that is not 0": jk.optimizer(optax.yogi, learning_rate=0.01),
}


@pytest.mark.parametrize("rules", [INERT, NOT_INERT], ids=["inert", "not inert"])
def test_padding_is_left_alone(rules):
    found = {name: is_inert(jk.optimizer(rule), (20, 10), (24, 13)) for name, rule in rules.items()}
    assert found == dict.fromkeys(rules, rules is INERT)


def test_no_padding_is_none():
    assert is_inert(NOT_INERT["noise"], (20, 10), (20, 10))


def test_a_rule_that_raises_shares_nothing():
    def update(gradient, state, params=None):
        raise ArithmeticError("no update")

    broken = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    assert not is_inert(jk.optimizer(broken), (20, 10), (24, 13))


def test_means_over_many_neurons():
    assert not is_inert(NOT_INERT["means"], (1000, 10), (1001, 10))


def log_loss_of_network(params, data):
    return jax.nn.logsumexp(-jk.networks.margins(params, *data))


@pytest.mark.parametrize(
    "name", ["sizes", *(pytest.param(name, marks=pytest.mark.slow) for name in ("noise", "adam"))]
)
def test_a_run_does_not_depend_on_those_beside_it(name):
    """Noise made neurons of padding: a network was trained with them, and measured without."""
    axes = {"d": 10, "samples": 8, "seed": 0, "target_log_loss": -9.0, "max_steps": 300}
    axes |= {"measure": log_loss_of_network, "optimizer": {**INERT, **NOT_INERT}[name]}
    alone = sweep(jk.grid(width=20, **axes))
    beside = sweep(jk.grid(width=[20, 24], **axes))
    mine = beside.sel(width=[20])
    assert (
        beside.status.values.tolist() == np.full_like(beside.status, jk.Status.CONVERGED).tolist()
    )
    np.testing.assert_allclose(mine.log_loss, mine.log_loss_of_network, rtol=1e-4)
    np.testing.assert_allclose(alone.log_loss, mine.log_loss, rtol=1e-4)
    assert len(jk.plan_sweep(jk.grid(width=[20, 24], **axes)).buckets) == 1 + (name in NOT_INERT)
