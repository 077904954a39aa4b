"""Own data and weights, and a run of a small network."""

import jax
import jax.numpy as jnp

import jaxkkt as jk
from jaxkkt.runs.run import Run


class Blobs(jk.data.Distribution):
    sigma: jk.Number = 1.0

    def draw(self, key, samples, dim):
        y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
        return y[:, None] + self.sigma * jax.random.normal(key, (samples, dim)), y


def stripes(key, samples, dim):
    y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
    return jax.random.normal(key, (samples, dim)).at[:, 0].set(y), y


def one(**axes) -> Run:
    (run,) = jk.grid(**{"d": 5, "samples": 4, "width": 3, "seed": 0, **axes})
    return run


class Small(jk.initializations.Initialization):
    size: jk.Number = 0.5

    def draw(self, key, width, dim):
        w = self.size * jax.random.normal(key, (width, dim))
        return jk.Params(w, jnp.zeros(width), jnp.ones(width))
