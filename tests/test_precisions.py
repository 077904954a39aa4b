"""One process in both precisions: what was computed in one is not taken for the other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import one, sweep

import jaxkkt as jk
from jaxkkt.engine.machine.devices import environment, here
from jaxkkt.engine.planning.inert import is_inert
from jaxkkt.specs.optimizers import Descent

pytestmark = pytest.mark.usefixtures("unchecked")


class Sized(jk.Measurement):
    size: jk.Number = 0.1

    def measure(self, params):
        return {"sized": self.size + 0 * params.v[0]}


def test_numbers_of_measurements_are_not_those_of_32_bits():
    """They were packed once, and measured in 64 bits as they were rounded to 32."""
    run = one(measure=Sized, max_steps=2)
    assert sweep([run]).sized.item() == np.float32(0.1)
    with jax.enable_x64(True):
        assert sweep([run]).sized.item() == 0.1
    assert sweep([run]).sized.item() == np.float32(0.1)


@pytest.mark.slow
def test_names_of_runs_do_not_depend_on_which_came_first():
    """Another process found none of the rows."""

    def weights(key, width, dim):
        return jk.networks.torch_linear(key, width, dim, 0.5)

    with jax.enable_x64(True):
        alone = one(initialization=weights).name
    jk.engine.forget()
    run = one(initialization=weights)
    before = run.name
    with jax.enable_x64(True):
        assert run.name == alone
    assert run.name == before != alone


@pytest.mark.parametrize("kind", ["arrays", pytest.param("images", marks=pytest.mark.slow)])
def test_points_of_the_host_are_in_the_precision_of_the_sweep(kind):
    """Programs of 64 bits were given 32."""
    own = np.eye(6, 8, dtype=np.float32), np.resize([1.0, -1.0], 6).astype(np.float32)
    data = jk.data.Arrays(*own) if kind == "arrays" else jk.data.Digits(d=16, samples=6)
    (run,) = jk.grid(data=data, width=20, seed=0, max_steps=2, measure=())
    for double in (False, True, False):
        with jax.enable_x64(double):
            assert sweep([run]).steps.item() == 2


def test_arrays_of_64_bits_are_not_rounded_where_there_are_32():
    with jax.enable_x64(True):
        own = jk.data.Arrays(np.eye(4, 3) / 3, np.resize([1.0, -1.0], 4))
    with pytest.raises(ValueError, match="float64, which JAX would round to float32 here"):
        own.draw_training(0)


def test_an_optimizer_is_looked_at_in_either_precision():
    def overflows():
        def update(gradient, state, params=None):
            return jax.tree.map(lambda g: (1e30 * g) * (1e30 * g) * 1e-60, gradient), state

        return optax.GradientTransformation(lambda params: (), update)

    rule = jk.optimizer(overflows)
    found = is_inert(rule, (3, 2), (4, 3))
    with jax.enable_x64(True):
        assert is_inert(rule, (3, 2), (4, 3)) is not found


def test_the_rate_of_a_mean_is_not_of_32_bits():
    params, (x, y) = jk.draw(one(samples=3))
    with jax.enable_x64(True):
        start = jax.tree.map(lambda a: jnp.asarray(a, float), params)
        x, y = jnp.asarray(x, float), jnp.asarray(y, float)
        steps = []
        for reduction, rate in (("sum", 1.0 / 3), ("mean", 1.0)):
            rule = Descent(learning_rate=rate, reduction=reduction)
            found = jk.train(start, x, y, jk.Protocol(rule, max_steps=1)).params
            steps.append(found.v - start.v)
    np.testing.assert_allclose(*steps, rtol=1e-13)


def test_precision_is_the_networks_however_it_is_given():
    params, (x, y) = jk.draw(one(samples=3))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, float), jk.Params(*params))
        data = {"x": jnp.asarray(x, float), "y": jnp.asarray(y, float)}
        found = jk.kkt.certificate(params=wide, **data, gap=jnp.float32(1e-6))
        assert found.clarke.residual.dtype == np.float64


def test_other_bits_of_the_compiler_are_told():
    """A store held rows of both as of one."""
    before = environment(), here()
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert environment() != before[0]
        assert here() != before[1]
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert (environment(), here()) == before
