"""A small problem to step on."""

import jax

from jaxkkt import datasets, networks


@jax.jit
def problem(scale=1.0):
    data = datasets.gaussian(jax.random.key(0), 5, 3)
    return networks.torch_linear(jax.random.key(1), 6, 3, scale), data
