"""Gradient flow far below the losses that steps on the weights reach, by its own equation.

Let L be the exponential loss, s = -log L and theta_hat = theta / sqrt(s), so that the soft minimum
of its margins is 1. In the time t = log s the flow d theta / ds = -grad log L / |grad log L|^2 is

    d theta_hat / dt = -theta_hat / 2 + sum_i lambda_i y_i g_i,   g_i in the subdifferential of
    N(x_i), lambda / sum lambda = softmax(-s margins), sum lambda such that the soft minimum stays 1

(Lyu and Li 2020; Vardi et al. 2022, Section 2): a step in t costs the same at every loss, and a
KKT point of the max-margin problem is where it rests. It rests at no finite loss.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import ceil, log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkkt import datasets
from jaxkkt.kkt import variables
from jaxkkt.kkt.soft_multipliers import soft_multipliers
from jaxkkt.networks import PRECISION, Params, preactivations, relu
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.numerics.truths import all_of

# 1/s, the width of the soft minimum, no smaller than this: it moves margins of 1 by 1e-6 log m.
COLDEST = 1e-6
# Trips through the slopes of a step.
SLOPE_TRIPS = 3
# A step after which the soft minimum of the margins is below this, and was to be 1, is too long.
LEAST_LEVEL = 0.5

_dot = partial(jnp.dot, precision=PRECISION)


class LimitStatus(Outcome):
    """How following the flow ended. `describe` gives each a sentence and a remedy."""

    FOLLOWED = 0, "the flow was followed to this level"
    INFEASIBLE = (
        2,
        "the log loss is not negative or a sample is misclassified to begin with: train the "
        "network until it classifies all",
    )
    NON_FINITE = (
        3,
        "parameters or data are NaN or infinite, or the steps are too long to follow the flow: "
        "look at the status of the training run, or take shorter steps",
    )
    BIASES_UNCLEAR = 4, variables.UNCLEAR


class FlowTrace(NamedTuple):
    """The flow at n levels of the log loss.

    params: theta / sqrt(min margin), so that the smallest margin is 1; NaN where the status is not
        FOLLOWED.
    slopes (n, m, k): relu' of each neuron at each sample, in [0, 1], between its ends on kinks.
    multipliers (n, m): 2 lambda of the last step. At rest theta = sum_i multipliers_i y_i g_i, at
        any scale of theta.
    log_s (n,): log(-log L) there, of the exponential loss: that of the level, but for an error of
        second order in the last step. float32 could not hold log L itself below -3e38.
    status (n,): `LimitStatus`.
    """

    params: Params
    slopes: Float[Array, "*lanes n m k"]
    multipliers: Float[Array, "*lanes n m"]
    log_s: Float[Array, "*lanes n"]
    status: Int[Array, "*lanes n"]


class _Place(NamedTuple):
    """theta_hat = kept * start + (coefficients of the points z_i), as in `GramParams`."""

    coefficients: Float[Array, "m k"]
    kept: Float[Array, ""]
    preactivations: Float[Array, "m k"]
    v: Float[Array, " k"]
    slopes: Float[Array, "m k"]
    multipliers: Float[Array, " m"]
    log_s: Float[Array, ""]


def follow_flow(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    log_loss: float,
    levels: Sequence[float],
    step: float = 0.02,
    trained: tuple[str, ...] | None = None,
) -> FlowTrace:
    """Where the gradient flow of the exponential loss takes a trained network, level by level.

    `log_loss` is that of the network and `levels` are those to stop at, falling, both static:
    from one to the next it takes ceil(log(s1/s0) / step) equal steps in log s. Where the network's
    own log loss is another, the first steps are longer or shorter; one that is below a level
    already stays as it is there. A step costs about 15 m^2 k operations and 3 to 20 factorizations
    of (m, m) matrices, whatever the level: 11,500 steps of 0.02 lead from -1 to -1e100.

    A step is implicit Euler in the margins: lambda is chosen such that after it margins and
    softmax agree, with neurons and kinks as before it. Neurons with y_i v_j < 0 slide along the
    kinks they meet; their slopes there are unknowns, too, moved from step to step as by Uzawa's
    method until the preactivation stays 0.

    First order in `step`. The margins are those of infinite loss beyond s = 1e6, to 1e-6.
    Preactivations on kinks are zero only to a share of the step; where many neurons meet kinks at
    once the path behind depends on their order, as that of every discretization does. Samples with
    y = 0 take no part. float32 serves; it leaves errors of about 1e-6, and of about 1% in the
    multipliers of steps as short as 1e-4. Data of few dimensions and many samples need shorter
    steps than others; too long ones end as NON_FINITE. Has derivatives by `jax.jacfwd`, not by
    `jax.grad`.

    `trained` names the parameters that the flow moves: ("w", "b", "v"), the default, or ("w", "v")
    for a network without biases. Where all biases are 0 it must be given, since the flow would move
    them; under `jit` and `vmap` the status is then BIASES_UNCLEAR.
    Raises ValueError for data or parameters that do not fit, biases that do not fit `trained`, a
    log loss that is not negative, levels that do not fall from there, or a step outside (0, 1).
    """
    x, y = datasets.validate_for(params, x, y)
    trained = variables.chosen(params, trained)
    if any(isinstance(one, jax.core.Tracer) for one in (log_loss, *levels)):
        raise ValueError("log_loss and levels say how many steps are taken: they cannot be traced")
    marks = np.array([log_loss, *levels], float)
    if not (np.isfinite(marks).all() and log_loss < 0):
        raise ValueError(f"log_loss must be negative, levels finite, got {marks.tolist()}")
    if marks.size < 2 or not (np.diff(marks) < 0).all():
        raise ValueError(
            f"levels must fall from log_loss = {log_loss}, each below the one before, "
            f"got {list(levels)}"
        )
    if isinstance(step, jax.core.Tracer):
        raise ValueError("step says how many steps are taken: it cannot be traced")
    if not 0 < step < 1:
        raise ValueError(f"step must be in (0, 1), got {step}")
    counts = [ceil(log(b / a) / step) for a, b in pairwise(marks.tolist())]
    ends = jnp.asarray(np.log(-marks[1:]), params.v.dtype)
    return _follow(params, x, y, ends, jnp.asarray(counts, jnp.int32), trained)


@partial(jax.jit, static_argnames="trained")
def _follow(
    params: Params,
    x: Array,
    y: Array,
    ends: Array,
    counts: Array,
    trained: tuple[str, ...] | None,
) -> FlowTrace:
    gram = variables.gram(x, trained)
    fit = variables.fit(params, trained)
    pre = preactivations(params, x)
    real = y != 0
    q = y * _dot(relu(pre), params.v)
    s = _soft_minimum(q, jnp.ones_like(params.v[0]), real)
    fine = (s > 0) & (jnp.min(jnp.where(real, q, jnp.inf)) > 0)
    finite = jnp.isfinite(s) & all_of(jnp.isfinite(pre)) & all_of(jnp.isfinite(params.w))
    s = jnp.where(fine & finite, s, 1)
    kept = jax.lax.rsqrt(s)
    on = (pre > 0).astype(pre.dtype)
    nothing = jnp.zeros_like(pre)
    place = _Place(nothing, kept, kept * pre, kept * params.v, on, jnp.zeros_like(y), jnp.log(s))

    def onward(place: _Place, mark: tuple[Array, Array]) -> tuple[_Place, FlowTrace]:
        end, count = mark

        def trip(i: Array, place: _Place) -> _Place:
            left = jnp.maximum(end - place.log_s, 0)
            return _step(place, gram, y, left / (count - i).astype(left.dtype))

        place = jax.lax.fori_loop(0, count, trip, place)
        return place, shown(place)

    def shown(place: _Place) -> FlowTrace:
        q = y * _dot(relu(place.preactivations), place.v)
        smallest = jnp.min(jnp.where(real, q, jnp.inf))
        u = jax.lax.rsqrt(smallest)
        c = place.coefficients
        w = u * (place.kept * params.w + _dot(c.T, x))
        b = u * (place.kept * params.b + variables.over_b(c, trained))
        scaled = Params(w, b, u * place.v)
        good = all_of(jnp.isfinite(place.v)) & all_of(jnp.isfinite(c)) & (smallest > 0)
        status = jnp.where(finite & good, LimitStatus.FOLLOWED, LimitStatus.NON_FINITE)
        status = jnp.where(finite & ~fit, LimitStatus.BIASES_UNCLEAR, status)
        status = jnp.where(finite & ~fine, LimitStatus.INFEASIBLE, status).astype(jnp.int32)

        def known(tree: Any) -> Any:
            followed = status == LimitStatus.FOLLOWED
            return jax.tree.map(lambda a: jnp.where(followed, a, jnp.nan), tree)

        return FlowTrace(
            params=known(scaled),
            slopes=known(place.slopes),
            multipliers=known(place.multipliers),
            log_s=known(place.log_s),
            status=status,
        )

    return jax.lax.scan(onward, place, (ends, counts))[1]


def _step(place: _Place, gram: Array, y: Array, h: Array) -> _Place:
    """A step of size h in log s."""
    p, v = place.preactivations, place.v
    fall, real = jnp.exp(-h / 2), y != 0
    lost = -jnp.expm1(-h / 2)
    log_s = place.log_s + h
    cold = jnp.maximum(jnp.exp(-log_s), COLDEST)
    signed = y[:, None] * v[None]
    concave, on = signed < 0, (p > 0).astype(p.dtype)
    features = y[:, None] * relu(p)
    by_v = _dot(features, features.T)
    # The force on a kink that one unit of slope makes, per multiplier.
    room = jnp.abs(signed) * jnp.diagonal(gram)[:, None]

    def trip(
        before: tuple[Array, Array], _: None
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        slopes, guess = before
        pull = signed * slopes
        h_margins = _dot(pull, pull.T) * gram + by_v
        explicit = fall * jnp.sum(pull * p, axis=1) - lost * _dot(features, v)
        pushed = soft_multipliers(h_margins, 1 - explicit, cold, real, guess)
        change = pushed[:, None] * pull
        moved = fall * p + _dot(gram, change)
        force = jnp.maximum(pushed[:, None] * room, jnp.finfo(p.dtype).tiny)
        inside = jnp.clip(slopes + moved / (2 * force), 0, 1)
        return (jnp.where(concave, inside, on), pushed), (pushed, change, moved)

    before = jnp.where(concave, place.slopes, on), lost * place.multipliers
    (slopes, _), steps = jax.lax.scan(trip, before, None, length=SLOPE_TRIPS)
    pushed, change, moved = jax.tree.map(lambda a: a[-1], steps)
    new_v = fall * v + _dot(pushed, features)
    level = _soft_minimum(y * _dot(relu(moved), new_v), cold, real)
    level = jnp.where(level >= LEAST_LEVEL, level, jnp.nan)
    u = jax.lax.rsqrt(level)
    after = _Place(
        u * (fall * place.coefficients + change),
        u * fall * place.kept,
        u * moved,
        u * new_v,
        slopes,
        pushed / jnp.where(lost > 0, lost, 1),
        log_s + jnp.log(level),
    )
    return jax.tree.map(partial(jnp.where, h > 0), after, place)


def _soft_minimum(q: Array, width: Array, real: Array) -> Float[Array, ""]:
    """-width log sum exp(-q / width) over the real samples."""
    return -width * jax.nn.logsumexp(jnp.where(real, -q / width, -jnp.inf))
