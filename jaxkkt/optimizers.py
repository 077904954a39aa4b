"""Optax transformations over grad log L that are told the log loss.

`training.step` passes each update three things beyond optax's own: the gradient is that of
log L, `log_loss` is log L, and `squared_norm` is |grad log L|^2 over the parameters. A step on L
itself is `exp(log learning_rate + log L) * grad log L`, which does not underflow at any loss.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


class LinearTransformation(optax.GradientTransformationExtraArgs):
    """An update that is a combination of the gradients so far.

    Its coefficients depend on the step count, `log_loss` and `squared_norm` alone, so the same
    transformation moves any linear image of the weights exactly as it moves the weights.
    `training` trains such optimizers in fewer coordinates (see `representations`).
    """


def linear(transformation: optax.GradientTransformation) -> LinearTransformation:
    """Declares an optax transformation linear, for instance `linear(optax.sgd(0.1, 0.9))`.

    True of descent and momentum with any schedule; false of whatever looks at single entries or
    norms of the gradient (Adam, sign descent, clipping) or at the weights (weight decay).
    """
    extended = optax.with_extra_args_support(transformation)
    return LinearTransformation(extended.init, extended.update)


class CountState(NamedTuple):
    steps: Int[Array, ""]


def loss_scaled(learning_rate: float | optax.Schedule) -> LinearTransformation:
    """Gradient descent on L: theta -= learning_rate * L * grad log L.

    `learning_rate` is a positive number or an optax schedule of the step count; ValueError for
    a number that is not positive and finite.
    """
    if callable(learning_rate):
        schedule = learning_rate
        return _descent(lambda count: jnp.log(schedule(count)))
    _require_positive("learning_rate", learning_rate)
    return _descent(lambda _: jnp.log(learning_rate))


def paper_schedule(
    learning_rate: float = 1e-5, growth: float = 1.1, every: int = 100
) -> LinearTransformation:
    """Gradient descent on L whose learning rate grows by `growth` once in `every` steps.

    The defaults are those of Vardi et al. (2022), Section 6.
    """
    _require_positive("learning_rate", learning_rate)
    _require_positive("growth", growth)
    if not (isinstance(every, int) and every >= 1):
        raise ValueError(f"every must be a whole number of steps, at least 1, got {every!r}")

    def log_learning_rate(count: Array) -> Array:
        return jnp.log(learning_rate) + jnp.log(growth) * (count // every).astype(float)

    return _descent(log_learning_rate)


class LogLossTimeState(NamedTuple):
    steps: Int[Array, ""]
    first_log_loss: Float[Array, ""]
    last_log_loss: Float[Array, ""]
    step_size: Float[Array, ""]


def log_loss_time(
    delta: float = 0.0075, largest: float = 0.3, realized: float = 0.4, gain: float = 0.5
) -> LinearTransformation:
    """Gradient flow in the time s = -log L: theta -= h / |grad log L|^2 * grad log L.

    Along the flow d log L / ds = -1, so a step of size h lowers log L by h to first order,
    whatever the scale of the problem. The flow slows down as 1/s, hence h = delta (1 + s) with
    s the fall of log L so far, up to `largest`. Where a step realizes less than the share
    `realized` of h the margins have begun to oscillate, and h is multiplied by
    1 + gain (share - realized), at least 0.7 and at most 1.1 a step; but never below delta.
    Where neurons slide along kinks the realized share is well below 1 for every h, so it is not
    asked to be near 1. `python -m benchmarks.protocols` measures how close this comes to
    `paper_schedule`.
    """
    for name, value in (("delta", delta), ("largest", largest), ("gain", gain)):
        _require_positive(name, value)
    if largest < delta:
        raise ValueError(f"largest must be at least delta = {delta}, got {largest}")
    if not 0 <= realized < 1:
        raise ValueError(f"realized must be in [0, 1), got {realized}")

    def init(params: Any) -> LogLossTimeState:
        zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        return LogLossTimeState(jnp.zeros((), jnp.int32), zero, zero, zero + delta)

    def update(
        updates: Any,
        state: LogLossTimeState,
        params: Any = None,
        *,
        log_loss: Array,
        squared_norm: Array,
        **_: Any,
    ) -> tuple[Any, LogLossTimeState]:
        first = state.steps == 0
        first_log_loss = jnp.where(first, log_loss, state.first_log_loss)
        share = jnp.where(first, 1, (state.last_log_loss - log_loss) / state.step_size)
        factor = jnp.clip(1 + gain * (share - realized), 0.7, 1.1)
        ceiling = jnp.minimum(delta * (1 + first_log_loss - log_loss), largest)
        h = jnp.maximum(jnp.minimum(state.step_size * factor, ceiling), delta)
        scale = -h / jnp.where(squared_norm == 0, 1, squared_norm)  # no gradient, no step
        new = LogLossTimeState(state.steps + 1, first_log_loss, log_loss, h)
        return jax.tree.map(lambda g: scale * g, updates), new

    return LinearTransformation(init, update)


def _descent(log_learning_rate: Callable[[Array], Array]) -> LinearTransformation:
    def init(params: Any) -> CountState:
        return CountState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: CountState, params: Any = None, *, log_loss: Array, **_: Any
    ) -> tuple[Any, CountState]:
        log_rate = log_learning_rate(state.steps).astype(log_loss.dtype)
        scale = -jnp.exp(log_rate + log_loss)
        return jax.tree.map(lambda g: scale * g, updates), CountState(state.steps + 1)

    return LinearTransformation(init, update)


def _require_positive(name: str, value: float) -> None:
    if not (value > 0 and value < float("inf")):
        raise ValueError(f"{name} must be positive and finite, got {value}")
