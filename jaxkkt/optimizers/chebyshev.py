"""Runge-Kutta-Chebyshev steps of the first order: momentum that is stable at stiff problems.

van der Houwen and Sommeijer (1980).
"""

from math import asinh, cosh, sinh, tanh
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

# Steps are damped by T_n(w0), w0 = 1 + DAMPING / n^2, and taken up to SAFETY of where they are
# stable. The usual 0.05 saves a seventh of the gradients, and networks end up to a third further
# from where `paper_schedule` ends.
DAMPING = 0.5
SAFETY = 0.93


def coefficients(n: Array, stage: Array, dtype: Any) -> tuple[Array, Array]:
    """The update at `stage` is `momentum` times the last one, minus `share` * h * gradient.

    Runge-Kutta-Chebyshev of first order with n gradients; for n = 1 Euler's method. With
    w0 = 1 + DAMPING/n^2 = cosh a, w1 = T_n(w0)/T_n'(w0) and b_j = 1/T_j(w0), T_j(w0) = cosh(j a):
    momenta 2 w0 b_j/b_{j-1} - 1, shares 2 w1 b_j/b_{j-1}; the first 0 and w1/w0. Written by
    b_j/b_{j-1} = cosh a - sinh a tanh(j a), nothing cancels, however large n.
    """
    gradients, j = jnp.maximum(n, 1).astype(dtype), stage.astype(dtype)
    half = (DAMPING / 2) ** 0.5 / gradients  # sinh(a/2)
    a, w0, sinh_a = 2 * jnp.arcsinh(half), 1 + 2 * half**2, 2 * half * jnp.sqrt(1 + half**2)
    w1 = sinh_a / (gradients * jnp.tanh(gradients * a))
    fall = sinh_a * jnp.tanh((j + 1) * a)
    momentum = jnp.where(j == 0, 0, 1 + 2 * sinh_a**2 - 2 * w0 * fall)
    share = w1 * jnp.where(j == 0, 1 / w0, 2 * (w0 - fall))
    return momentum, share


def stable_up_to(n: int) -> float:
    """The largest h * rate that a step with n gradients is taken to: SAFETY (w0 + 1)/w1."""
    a = 2 * asinh((DAMPING / 2) ** 0.5 / n)
    return SAFETY * (cosh(a) + 1) * n * tanh(n * a) / sinh(a)


# (w0 + 1)/w1 is GROWTH n^2 + OFFSET or up to 0.2% more, for every n.
GROWTH = 2 * tanh((2 * DAMPING) ** 0.5) / (2 * DAMPING) ** 0.5
OFFSET = 0.1435


def fewest_gradients(stiffness: Array) -> Array:
    """The least n that is stable at this h * rate."""
    n = jnp.ceil(jnp.sqrt(jnp.maximum(stiffness / SAFETY - OFFSET, 0) / GROWTH))
    return jnp.maximum(n, 1).astype(jnp.int32)
