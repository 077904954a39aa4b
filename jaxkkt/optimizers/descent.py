"""Gradient descent on L, at learning rates that may change with the steps."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from jaxkkt.numerics.requirements import require_positive
from jaxkkt.optimizers.transformations import LinearTransformation, Real


class CountState(NamedTuple):
    """How many steps were made, for a schedule."""

    steps: Int[Array, ""]


def loss_scaled(
    learning_rate: Real | optax.Schedule, reduction: Literal["sum", "mean"] = "sum"
) -> LinearTransformation:
    """Gradient descent on L: theta -= learning_rate * L * grad log L.

    L is the sum over the samples of a step, or their mean by `reduction`. `learning_rate` is a
    positive number or an optax schedule of the step count; ValueError for a number that is not
    positive and finite.
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    mean = reduction == "mean"
    if callable(learning_rate):
        schedule = learning_rate
        return _descent(lambda count: jnp.log(schedule(count)), mean)
    require_positive(learning_rate=learning_rate)
    return _descent(lambda _: jnp.log(learning_rate), mean)


def paper_schedule(
    learning_rate: Real = 1e-5, growth: Real = 1.1, every: int = 100
) -> LinearTransformation:
    """Gradient descent on L whose learning rate grows by `growth` once in `every` steps.

    The defaults are those of Vardi et al. (2022), Section 6.
    """
    require_positive(learning_rate=learning_rate)
    require_positive(growth=growth)
    if not (isinstance(every, int) and every >= 1):
        raise ValueError(f"every must be a whole number of steps, at least 1, got {every!r}")

    def log_learning_rate(count: Array) -> Array:
        return jnp.log(learning_rate) + jnp.log(growth) * (count // every).astype(float)

    return _descent(log_learning_rate)


def _descent(
    log_learning_rate: Callable[[Array], Array], mean: bool = False
) -> LinearTransformation:
    def init(params: Any) -> CountState:
        return CountState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: CountState, params: Any = None, *, log_loss: Array, **more: Any
    ) -> tuple[Any, CountState]:
        log_rate = log_learning_rate(state.steps).astype(log_loss.dtype)
        if mean:
            log_rate = log_rate - jnp.log(jnp.asarray(more["samples"], log_loss.dtype))
        scale = -jnp.exp(log_rate + log_loss)
        return jax.tree.map(lambda g: scale * g, updates), CountState(state.steps + 1)

    return LinearTransformation(init, update)
