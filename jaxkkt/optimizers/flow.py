"""Gradient flow in the time in which log L falls evenly."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkkt.numerics.kernels import numbers_of, one_kernel
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.optimizers.chebyshev import coefficients, fewest_gradients, stable_up_to
from jaxkkt.optimizers.transformations import FlowTransformation, Real


class LogLossTimeState(NamedTuple):
    """Where a trajectory stands: at `stage` of a step of size `h` in log-loss time.

    `n` is the number of the step's gradients; `scale` is |grad log L|^2 and `last_log_loss` is
    log L at its start, `correction` how many times as fast the fastest mode was found to be as was
    told, `trace` the last update.
    """

    steps: Int[Array, ""]
    first_log_loss: Float[Array, ""]
    last_log_loss: Float[Array, ""]
    n: Int[Array, ""]
    stage: Int[Array, ""]
    h: Float[Array, ""]
    scale: Float[Array, ""]
    correction: Float[Array, ""]
    trace: Any


# The largest step of gradient flow in log-loss time, until `proportion` asks for more.
LARGEST = 2.0

# Steps begin at FIRST * delta, times |grad log L|^2 where that is below 1, but no less than LEAST.
# Until they are delta they grow by up to FASTEST, as long as a step raises |grad log L| by no more
# than a share of RISE * delta.
FIRST = 2.0**-28
LEAST = 1e-24
FASTEST = 2.0**2
RISE = 10.0


def log_loss_time(
    delta: Real = 0.01,
    largest: float = LARGEST,
    stiffness: float = 14.0,
    realized: float = 0.2,
    stages: int = 8,
    proportion: float = 0.02,
) -> FlowTransformation:
    """Gradient flow d theta/ds = -grad log L / |grad log L|^2 in the time s = -log L.

    Along the flow d log L / ds = -1, so a step of size h lowers log L by h to first order,
    whatever the scale of the problem. The start decides where neurons settle, and the flow slows
    down as 1/s later: h = delta (1 + s)^1.5 up to `largest`, s being the fall of log L so far, and
    up to proportion * (1 + s) where that is more: past s = 99 for the defaults.

    Near weights of 0 the gradient grows with the weights, and a step that is short beside s is long
    beside them. The first is therefore 2^-28 delta min(1, |grad log L|^2). Until they are delta
    steps grow fourfold at most, and no faster than |grad log L| allows, which rises by a share of
    about 10 delta a step. From usual weights that takes some 14 gradients, from a thousandth of
    them a hundred.

    A step aims at no log loss below `level`, but for one of delta, or of 8 eps |log L| where that
    is more, a millionth in float32: `training.step` ends a run so on its target, of which its steps
    until then know nothing. Within another transformation, as `optax.chain`, runs end up to a step
    beyond it.

    Equal margins make the flow stiff: the modes that hold them together decay much faster than the
    rest, the more samples the faster. A step is one of the first-order Runge-Kutta-Chebyshev method
    (van der Houwen and Sommeijer 1980), stable up to h * rate = 1.52 n^2 with n gradients, for the
    rate of the fastest mode; with one it is Euler's. It is momentum whose coefficients change from
    gradient to gradient, restarted with every step, along the flow's path: its pace is held during
    a step. n is the least that keeps the estimated rate stable. Up to `largest` it is at most
    `stages`; beyond that h shrinks, but not below delta. Where proportion * (1 + s) is more, n is
    as large as it has to be: it grows as sqrt(s), and so does the number of gradients down to a log
    loss of -s.

    The rate is that which the update is told as `rate`, but at least `stiffness`. A run tells it by
    `jaxkkt.stiffness`; a transformation around this one tells none. It is corrected by a factor
    that grows when a step realizes less than the share `realized` of h, for then the margins
    oscillate, and shrinks to 1 when it realizes more. Up to `largest` the rate is no more than
    makes a step of delta take `stages` gradients. `python -m benchmarks.protocols` measures how
    close this comes to `paper_schedule`.
    """
    require_positive(delta=delta, largest=largest, stiffness=stiffness, proportion=proportion)
    if not isinstance(delta, jax.core.Tracer) and largest < delta:
        raise ValueError(f"largest must be at least delta = {delta}, got {largest}")
    if not 0 <= realized < 1:
        raise ValueError(f"realized must be in [0, 1), got {realized}")
    if not (isinstance(stages, int) and stages >= 2):
        raise ValueError(f"stages must be a whole number, at least 2, got {stages!r}")

    pace = _Pace(largest, stiffness, realized, stages, proportion)
    return FlowTransformation(partial(_init, pace), partial(_update, pace, delta))


class _Pace(NamedTuple):
    """What a flow's steps are chosen by beside delta: see `log_loss_time`."""

    largest: float
    stiffness: float
    realized: float
    stages: int
    proportion: float


class _Here(NamedTuple):
    """What the next step is chosen by: log L and |grad log L|^2 where the trajectory stands, the
    log loss to aim at, and the rate of the fastest mode."""

    log_loss: Array
    squared_norm: Array
    level: Real
    rate: Real


def _init(pace: _Pace, params: Any) -> LogLossTimeState:
    zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
    count = jnp.zeros((), jnp.int32)
    return LogLossTimeState(
        steps=count,
        first_log_loss=zero,
        last_log_loss=zero,
        n=count,
        stage=count,
        h=zero,
        scale=zero + 1,
        correction=zero + 1,
        trace=jax.tree.map(jnp.zeros_like, params),
    )


def _update(
    pace: _Pace,
    delta: Real,
    updates: Any,
    state: LogLossTimeState,
    params: Any = None,
    *,
    log_loss: Array,
    squared_norm: Array,
    level: Real = -jnp.inf,
    rate: Real = 0.0,
    **_: Any,
) -> tuple[Any, LogLossTimeState]:
    here = _Here(log_loss, squared_norm, level, rate)
    momentum, share, after = one_kernel(partial(_paced, pace))(delta, numbers_of(state), here)
    moved = jax.tree.map(lambda t, g: momentum * t - share * g, state.trace, updates)
    return moved, after._replace(trace=moved)


def _paced(
    pace: _Pace, delta: Real, state: LogLossTimeState, here: _Here
) -> tuple[Array, Array, LogLossTimeState]:
    """What an update takes of the last one and of the gradient, and the state after it."""
    fresh = _begin(pace, delta, state, here)
    state = jax.tree.map(partial(jnp.where, state.stage == 0), fresh, state)
    momentum, share = coefficients(state.n, state.stage, here.log_loss.dtype)
    stage = state.stage + 1
    after = state._replace(steps=state.steps + 1, stage=jnp.where(stage == state.n, 0, stage))
    return momentum, share * state.h / state.scale, after


def _begin(pace: _Pace, delta: Real, state: LogLossTimeState, here: _Here) -> LogLossTimeState:
    """The state at the start of a step, its size and method chosen."""
    log_loss, squared_norm, level, rate = here
    first, dtype, stages = state.steps == 0, log_loss.dtype, pace.stages
    shortest = jnp.asarray(delta, dtype)
    first_log_loss = jnp.where(first, log_loss, state.first_log_loss)
    early = first | (state.h < shortest)
    share = jnp.where(early, 1, (state.last_log_loss - log_loss) / state.h)
    change = jnp.clip(1 + 2 * (share - pace.realized), 0.2, 1.1)
    # Where data are too large for the eigenvalue the rate is no number.
    least = jnp.where(jnp.isfinite(rate), jnp.maximum(rate, pace.stiffness), pace.stiffness)
    rate = jnp.maximum(state.correction / change, 1) * least
    rise = jnp.log(squared_norm / state.scale) / 2
    rise = jnp.where(rise > 0, rise, 0)  # nor is it a number where both have overflowed
    growth = FASTEST / jnp.clip(FASTEST * rise / (RISE * delta), 1, FASTEST**2)
    tiny = FIRST * delta * jnp.clip(squared_norm, LEAST, 1)
    grown = jnp.maximum(jnp.where(first, tiny, state.h * growth), jnp.finfo(dtype).tiny)
    reach = 1 + jnp.maximum(first_log_loss - log_loss, 0)
    deep = pace.proportion * reach > pace.largest
    widest = jnp.maximum(pace.proportion * reach, pace.largest)
    h = jnp.minimum(delta * reach * jnp.sqrt(reach), widest)
    most = jnp.maximum(stable_up_to(stages) / delta, least)
    rate = jnp.where(deep, rate, jnp.minimum(rate, most))
    h = jnp.where(deep, h, jnp.minimum(h, stable_up_to(stages) / rate))
    left = jnp.maximum(log_loss - level, 8 * jnp.finfo(dtype).eps * jnp.abs(log_loss))
    h = jnp.maximum(jnp.minimum(h, left), shortest)
    h = jnp.where(early, jnp.minimum(grown, h), h).astype(dtype)
    n = fewest_gradients(h * rate)
    return state._replace(
        first_log_loss=first_log_loss,
        last_log_loss=log_loss,
        n=jnp.where(deep, n, jnp.minimum(n, stages)),
        h=h,
        scale=jnp.where(squared_norm == 0, 1, squared_norm),  # no gradient, no step
        correction=(rate / least).astype(dtype),
    )
