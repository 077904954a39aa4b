"""How stiff the gradient flow is: the rate at which its fastest mode decays.

In the time s = -log L the flow is d theta/ds = -g/|g|^2 with g = grad log L. It moves margins
against each other by the matrix K diag(p) / |g|^2, p_i being the weights of the samples and K_il
the inner products of grad q_i and grad q_l. The largest eigenvalue is the rate of the fastest mode.
Explicit steps that are long beside it oscillate: the margins do not come together, a step lowers
log L by half of its size, and what is trained is another network.

K_il is y_i y_l (x_i . x_l + 1) times the sum of v_j^2 over the neurons that are active on both
samples, and a part of the gradient over v. At random a neuron is active on half of the samples and
on a quarter to a half of the pairs. So the rate is about ACTIVE |v|^2 / |g|^2 times the largest
eigenvalue of sqrt(p_i p_l) (x_i . x_l + 1). That is one of the data, for the weights that they come
to, and the rest is at hand in every step. What is left out, the part over v, matters for as long as
v is small. Where biases are not trained there is no 1 in it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt.datasets import Dataset
from jaxkkt.networks import PRECISION
from jaxkkt.representations import GramDataset

# Measured along the flow, the part over v included: 0.40 to 0.55 late on points of the sphere, from
# a tenth as many as dimensions to ten times as many, and more before; 0.8 on Gaussian data of
# variance 1/d, where the bias is as large as an input and most neurons are active on all samples.
# With less than 0.3 the flow oscillates on the sphere, with more than 0.5 it takes more gradients.
ACTIVE = 0.4

# Steps of the power method: they find eigenvalues of sphere and Gaussian data to within a tenth.
POWERS = 15


def fastest_rate(
    v: Float[Array, " k"], eigenvalue: Float[Array, ""], squared_norm: Float[Array, ""]
) -> Float[Array, ""]:
    """About the rate of the fastest mode: ACTIVE |v|^2 eigenvalue / |grad log L|^2.

    `eigenvalue` is `top_eigenvalue` of the points. Infinite or NaN where the gradient is 0.
    """
    return ACTIVE * jnp.sum(v**2) * eigenvalue / squared_norm


def top_eigenvalue(data: Dataset | GramDataset, biased: bool = True) -> Float[Array, ""]:
    """The largest eigenvalue of the matrix sqrt(p_i p_l) (x_i . x_l + 1) for weights p_i with sum 1
    that are as 1 / (|x_i|^2 + 1), by POWERS steps of the power method; samples with y = 0 are
    padding and take no part.

    These are the weights to which samples come whose gradients are orthogonal: one of a large norm
    is soon classified by far. Where all norms are the same it is that of x_i . x_l + 1, over m, and
    for points of the sphere of radius sqrt(d) about (1 + sqrt(d/m))^2. Never too large.
    Not `biased`, it is of x_i . x_l, and the norms are |x_i|^2; with a Gram matrix biases move.
    """
    real = data.y != 0
    if isinstance(data, GramDataset):
        norms = jnp.diagonal(data.gram)
    else:
        norms = jnp.sum(data.x**2, axis=1) + (1 if biased else 0)
    weights = jnp.where(real & (norms > 0), 1 / norms, 0)
    roots = jnp.sqrt(weights)

    def image(u: Array) -> Array:
        u = roots * u
        if isinstance(data, GramDataset):
            return roots * jnp.dot(data.gram, u, precision=PRECISION)
        there = jnp.dot(u, data.x, precision=PRECISION)
        return roots * (jnp.dot(data.x, there, precision=PRECISION) + (jnp.sum(u) if biased else 0))

    def onward(_: Any, u: Array) -> Array:
        u = image(u)
        return u / jnp.maximum(jnp.linalg.norm(u), jnp.finfo(u.dtype).tiny)

    # Without structure, so that it has a part along every direction.
    start = jnp.where(real, 1 + jnp.cos(jnp.arange(real.shape[0], dtype=roots.dtype) ** 2), 0)
    unit = jax.lax.fori_loop(0, POWERS + 1, onward, start)
    tiny = jnp.finfo(roots.dtype).tiny
    return jnp.linalg.norm(image(unit)) / jnp.maximum(jnp.sum(weights), tiny)
