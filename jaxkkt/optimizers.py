"""Optax transformations over grad log L that are told the log loss.

`training.step` passes each update more than optax's own: the gradient is that of log L, `log_loss`
is log L, `squared_norm` is |grad log L|^2 over the parameters, and `samples` the number of samples
that L sums over. A step on L itself is `exp(log learning_rate + log L) * grad log L`, which does
not underflow at any loss.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from math import asinh, cosh, sinh, tanh
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxkkt.kernels import numbers_of, one_kernel
from jaxkkt.networks import Params
from jaxkkt.requirements import require_positive

Real = float | Float[Array | np.ndarray, ""]


class LinearTransformation(optax.GradientTransformationExtraArgs):
    """An update that is a combination of the gradients so far.

    Its coefficients depend on the step count, `log_loss` and `squared_norm` alone, so the same
    transformation moves any linear image of the weights exactly as it moves the weights.
    `training` trains such optimizers in fewer coordinates (see `representations`).
    """


class FlowTransformation(LinearTransformation):
    """One whose steps follow log L of all samples: it takes no mini-batches."""


def linear(transformation: optax.GradientTransformation) -> LinearTransformation:
    """Declares an optax transformation linear, for instance `linear(optax.sgd(0.1, 0.9))`.

    True of descent and momentum with any schedule; false of whatever looks at single entries or
    norms of the gradient (Adam, sign descent, clipping) or at the weights (weight decay). Raises
    ValueError where its first steps show that it is not.
    """
    extended = optax.with_extra_args_support(transformation)
    found = LinearTransformation(extended.init, extended.update)
    require_linear(found)
    return found


def update(
    rule: optax.GradientTransformation, gradient: Any, state: Any, position: Any, **told: Any
) -> tuple[Any, Any]:
    """The rule's updates and its next state, told as much beside the gradient as it takes."""
    rule = optax.with_extra_args_support(rule)
    takes = inspect.signature(rule.update).parameters
    if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        told = {name: value for name, value in told.items() if name in takes}
    return rule.update(gradient, state, position, **told)


def require_linear(transformation: optax.GradientTransformation) -> None:
    """Raises ValueError unless the updates from gradients g and h, from their sum and from g with
    its coordinates mixed are the sum and the mixture: for two steps, at two scales."""
    require_linear_steps(jax.jit(partial(two_steps, transformation)))


def two_steps(transformation: optax.GradientTransformation, gradient: Params) -> Array:
    """The updates of w in two steps by the same gradient, from weights that are not 0."""
    weights = jax.tree.map(jnp.asarray, _some(np.random.default_rng(1)))
    return updates_by(transformation, weights, [gradient, gradient]).w


def updates_by(
    transformation: optax.GradientTransformation, weights: Params, gradients: Sequence[Params]
) -> Params:
    """The updates by these gradients, one after the other, at the same weights: stacked."""
    told = {"log_loss": jnp.float32(0), "squared_norm": jnp.float32(1), "samples": jnp.int32(1)}
    state, found = transformation.init(weights), []
    for gradient in gradients:
        updates, state = update(transformation, gradient, state, weights, **told)
        found.append(updates)
    return jax.tree.map(lambda *steps: jnp.stack(steps), *found)


def require_linear_steps(moved: Callable[[Params], Array]) -> None:
    """As `require_linear`, of what gives the `two_steps` by a gradient."""
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]], np.float32)
    rng = np.random.default_rng(0)
    first, second = (_some(rng) for _ in range(2))
    mixed = first._replace(w=first.w @ turn)
    for scale in np.array([1e-3, 1e3], np.float32):
        one, other, both, turned = (
            np.asarray(moved(jax.tree.map(lambda a, by=scale: by * a, g)))
            for g in (first, second, jax.tree.map(np.add, first, second), mixed)
        )
        size = np.abs(one).max() + np.abs(other).max()
        if max(np.abs(one + other - both).max(), np.abs(one @ turn - turned).max()) > 1e-4 * size:
            raise ValueError(
                "the optimizer is declared linear, and is not: its update for the sum of two "
                "gradients is not the sum of its updates, or depends on the coordinates. Leave "
                "`linear` out; it is for descent and momentum"
            )


def _some(rng: np.random.Generator) -> Params:
    """Weights, or a gradient: NumPy arrays, for which nothing is compiled."""
    arrays: list[Any] = [rng.normal(size=n).astype(np.float32) for n in ((3, 2), 3, 3)]
    return Params(*arrays)


class CountState(NamedTuple):
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

    A step aims at no log loss below `level`, but for one of delta, or of a millionth of log L where
    that is more: `training.step` ends a run so on its target, of which its steps until then know
    nothing. Within another transformation, as `optax.chain`, runs end up to a step beyond it.

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
    paced = one_kernel(partial(_paced, pace))
    momentum, share, after = paced(delta, numbers_of(state), log_loss, squared_norm, level, rate)
    moved = jax.tree.map(lambda t, g: momentum * t - share * g, state.trace, updates)
    return moved, after._replace(trace=moved)


def _paced(
    pace: _Pace,
    delta: Real,
    state: LogLossTimeState,
    log_loss: Array,
    squared_norm: Array,
    level: Real,
    rate: Real,
) -> tuple[Array, Array, LogLossTimeState]:
    """What an update takes of the last one and of the gradient, and the state after it."""
    fresh = _begin(pace, delta, state, log_loss, squared_norm, level, rate)
    state = jax.tree.map(partial(jnp.where, state.stage == 0), fresh, state)
    momentum, share = _coefficients(state.n, state.stage, log_loss.dtype)
    stage = state.stage + 1
    after = state._replace(steps=state.steps + 1, stage=jnp.where(stage == state.n, 0, stage))
    return momentum, share * state.h / state.scale, after


def _begin(
    pace: _Pace,
    delta: Real,
    state: LogLossTimeState,
    log_loss: Array,
    squared_norm: Array,
    level: Real,
    rate: Real,
) -> LogLossTimeState:
    """The state at the start of a step, its size and method chosen."""
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
    most = jnp.maximum(_stable_up_to(stages) / delta, least)
    rate = jnp.where(deep, rate, jnp.minimum(rate, most))
    h = jnp.where(deep, h, jnp.minimum(h, _stable_up_to(stages) / rate))
    left = jnp.maximum(log_loss - level, 8 * jnp.finfo(dtype).eps * jnp.abs(log_loss))
    h = jnp.maximum(jnp.minimum(h, left), shortest)
    h = jnp.where(early, jnp.minimum(grown, h), h).astype(dtype)
    n = _fewest_gradients(h * rate)
    return state._replace(
        first_log_loss=first_log_loss,
        last_log_loss=log_loss,
        n=jnp.where(deep, n, jnp.minimum(n, stages)),
        h=h,
        scale=jnp.where(squared_norm == 0, 1, squared_norm),  # no gradient, no step
        correction=(rate / least).astype(dtype),
    )


# Steps are damped by T_n(w0), w0 = 1 + DAMPING / n^2, and taken up to SAFETY of where they are
# stable. The usual 0.05 saves a seventh of the gradients, and networks end up to a third further
# from where `paper_schedule` ends.
DAMPING = 0.5
SAFETY = 0.93


def _coefficients(n: Array, stage: Array, dtype: Any) -> tuple[Array, Array]:
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


def _stable_up_to(n: int) -> float:
    """The largest h * rate that a step with n gradients is taken to: SAFETY (w0 + 1)/w1."""
    a = 2 * asinh((DAMPING / 2) ** 0.5 / n)
    return SAFETY * (cosh(a) + 1) * n * tanh(n * a) / sinh(a)


# (w0 + 1)/w1 is GROWTH n^2 + OFFSET or up to 0.2% more, for every n.
GROWTH = 2 * tanh((2 * DAMPING) ** 0.5) / (2 * DAMPING) ** 0.5
OFFSET = 0.1435


def _fewest_gradients(stiffness: Array) -> Array:
    """The least n that is stable at this h * rate."""
    n = jnp.ceil(jnp.sqrt(jnp.maximum(stiffness / SAFETY - OFFSET, 0) / GROWTH))
    return jnp.maximum(n, 1).astype(jnp.int32)


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
            log_rate = log_rate - jnp.log(more["samples"]).astype(log_loss.dtype)
        scale = -jnp.exp(log_rate + log_loss)
        return jax.tree.map(lambda g: scale * g, updates), CountState(state.steps + 1)

    return LinearTransformation(init, update)
