"""Logarithm of the total loss, from margins.

A loss of 1e-30 already strains float32, and the theory is about its limit 0: only the logarithm
of the loss is ever held. With p_i = -d log L / d q_i the gradient of log L over the parameters is
-sum_i p_i y_i grad N(x_i), and grad L = L grad log L.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxkkt.numerics.requirements import as_margins, as_mask

Margins = Float[Array, " m"]
SampleLoss = Callable[[Margins], tuple[Margins, Margins]]


def exponential(margins: Margins) -> tuple[Margins, Margins]:
    """log l(q) = -q for l(q) = exp(-q), and -d log l / dq = 1."""
    return -margins, jnp.ones_like(margins)


def logistic(margins: Margins) -> tuple[Margins, Margins]:
    """log l(q) for l(q) = log(1 + exp(-q)), and -d log l / dq = sigmoid(-q) / l(q).

    For q > 20, where exp(-q) drops out of float32 sums and later underflows, the expansions
    log l = -q - exp(-q)/2 and -d log l / dq = 1 - exp(-q)/2 are used; what they leave out is
    below exp(-2q) < 5e-18.
    """
    far = margins > 20
    e = jnp.exp(-jnp.where(far, margins, 20))
    near = jnp.where(far, 20, margins)  # keeps the branch not taken free of overflow
    value = jax.nn.softplus(-near)
    log_value = jnp.where(far, -margins - e / 2, jnp.log(value))
    slope = jnp.where(far, 1 - e / 2, jax.nn.sigmoid(-near) / value)
    return log_value, slope


LOSSES: dict[str, SampleLoss] = {"exponential": exponential, "logistic": logistic}


def log_loss(
    margins: Float[Array | np.ndarray, " m"] | Sequence,
    loss: SampleLoss = exponential,
    mask: Bool[Array | np.ndarray, " m"] | Sequence | None = None,
    reduction: Literal["sum", "mean"] = "sum",
) -> tuple[Float[Array, ""], Margins]:
    """log L and the weights p_i = -d log L / d q_i, where L = sum_i l(q_i) (or the mean).

    Samples whose `mask` is False take no part: they add nothing to L and have p_i = 0.
    For the exponential loss p is softmax(-q). Accurate in float32 for margins from -1e3 to 1e6.
    Of no samples the weights are NaN.
    Raises ValueError for margins that are not those of one network, or that JAX would round, for a
    mask that is not one truth value a sample, or chooses none, for a loss that is no function, and
    for another reduction.
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    margins = as_margins(margins)
    if mask is not None:
        mask = as_mask("mask", mask, margins.shape[0])
        if not isinstance(mask, jax.core.Tracer) and not np.any(mask):
            raise ValueError("mask must choose a sample, but all of it is False")
    if not callable(loss):
        raise ValueError(
            f"loss must be a function of margins, got {loss!r}: jk.losses.LOSSES[name] is one, of "
            f"the names {', '.join(LOSSES)}"
        )
    log_values, slopes = loss(margins)
    if mask is not None:
        log_values = jnp.where(mask, log_values, -jnp.inf)
    # exp(log_values - total) would carry the rounding of a large log L.
    largest = jax.lax.stop_gradient(jnp.max(log_values))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    shares = jnp.exp(log_values - largest)
    scale = jnp.sum(shares)
    total = largest + jnp.log(scale)
    weights = shares / scale * slopes
    if reduction == "mean":
        count = margins.shape[0] if mask is None else jnp.sum(mask)
        total = total - jnp.log(count).astype(total.dtype)
    return total, weights
