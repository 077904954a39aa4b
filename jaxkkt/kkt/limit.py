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
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int

from jaxkkt import datasets, networks
from jaxkkt.kkt import variables
from jaxkkt.networks import PRECISION, Params, preactivations, relu
from jaxkkt.outcomes import Outcome
from jaxkkt.requirements import as_arrays

# 1/s, the width of the soft minimum, no smaller than this: it moves margins of 1 by 1e-6 log m.
COLDEST = 1e-6
# Trips of the predictor-corrector, at most of Newton's method after it, which short steps make
# longer, and through the slopes of a step.
INTERIOR_TRIPS, NEWTON_TRIPS, SLOPE_TRIPS = 12, 40, 3

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
        "parameters, data or the way there are NaN or infinite: look at the status of the "
        "training run, or follow the flow in float64",
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
    already stays as it is there. A step costs about 15 m^2 k operations and 54 factorizations of
    (m, m) matrices, whatever the level: 11,500 steps of 0.02 lead from -1 to -1e100.

    A step is implicit Euler in the margins: lambda is chosen such that after it margins and
    softmax agree, with neurons and kinks as before it. Neurons with y_i v_j < 0 slide along the
    kinks they meet; their slopes there are unknowns, too, moved from step to step as by Uzawa's
    method until the preactivation stays 0.

    First order in `step`. The margins are those of infinite loss beyond s = 1e6, to 1e-6.
    Preactivations on kinks are zero only to a share of the step; where many neurons meet kinks at
    once the path behind depends on their order, as that of every discretization does. Samples with
    y = 0 take no part. float32 serves; it leaves errors of about 1e-6.

    `trained` names the parameters that the flow moves: ("w", "b", "v"), the default, or ("w", "v")
    for a network without biases. Where all biases are 0 it must be given, since the flow would move
    them; under `jit` and `vmap` the status is then BIASES_UNCLEAR.
    Raises ValueError for data or parameters that do not fit, biases that do not fit `trained`, a
    log loss that is not negative, levels that do not fall from there, or a step outside (0, 1).
    """
    datasets.validate(x, y)
    x, y = as_arrays(networks.checked(params).w.dtype, x=x, y=y)
    networks.check_parameters(params, x.shape[1])
    trained = variables.chosen(params, trained)
    marks = np.array([log_loss, *levels], float)
    if not (np.isfinite(marks).all() and log_loss < 0):
        raise ValueError(f"log_loss must be negative, levels finite, got {marks.tolist()}")
    if marks.size < 2 or not (np.diff(marks) < 0).all():
        raise ValueError(
            f"levels must fall from log_loss = {log_loss}, each below the one before, "
            f"got {list(levels)}"
        )
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
    finite = jnp.isfinite(s) & jnp.all(jnp.isfinite(pre)) & jnp.all(jnp.isfinite(params.w))
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
        good = jnp.all(jnp.isfinite(place.v)) & jnp.all(jnp.isfinite(c)) & (smallest > 0)
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

    def trip(slopes: Array, _: None) -> tuple[Array, tuple[Array, Array, Array]]:
        pull = signed * slopes
        h_margins = _dot(pull, pull.T) * gram + by_v
        explicit = fall * jnp.sum(pull * p, axis=1) - lost * _dot(features, v)
        pushed = _soft_multipliers(h_margins, 1 - explicit, cold, real)
        change = pushed[:, None] * pull
        moved = fall * p + _dot(gram, change)
        force = jnp.maximum(pushed[:, None] * room, jnp.finfo(p.dtype).tiny)
        inside = jnp.clip(slopes + moved / (2 * force), 0, 1)
        return jnp.where(concave, inside, on), (pushed, change, moved)

    before = jnp.where(concave, place.slopes, on)
    slopes, steps = jax.lax.scan(trip, before, None, length=SLOPE_TRIPS)
    pushed, change, moved = jax.tree.map(lambda a: a[-1], steps)
    new_v = fall * v + _dot(pushed, features)
    level = _soft_minimum(y * _dot(relu(moved), new_v), cold, real)
    level = jnp.maximum(level, 0.25)
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


def _soft_multipliers(
    h: Float[Array, "m m"], r: Float[Array, " m"], width: Array, real: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """x > 0 with h x + width log(x / sum x) = r; 0 for samples that are not real.

    Newton's method in u = diag(h) x + width log x, which is nearly linear where x is large and
    where it is small, from the x of width 0.
    """
    m = jnp.sum(real, dtype=jnp.int32).astype(r.dtype)
    tiny = jnp.finfo(r.dtype).tiny
    d = jnp.where(real & (jnp.diagonal(h) > 0), jnp.diagonal(h), 1)
    both = real[:, None] & real[None]
    h = jnp.where(both, h, 0)
    rest = h - jnp.diag(jnp.diagonal(h))
    h, r = rest + jnp.diag(d), jnp.where(real, r, 0)
    x, price = _nonnegative_least(h, jnp.where(real, r + width * jnp.log(m), -1), real)

    def entries(u: Array) -> Array:
        return width / d * _wright(u / width + jnp.log(d / width))

    def far(state: tuple[Array, Array, Array, Array]) -> Array:
        trips, off, _, x = state
        return (trips < NEWTON_TRIPS) & (off > jnp.finfo(r.dtype).eps ** 0.75 * jnp.max(x))

    def newton(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        trips, _, u, x = state
        total = jnp.maximum(jnp.sum(jnp.where(real, x, 0)), tiny)
        gap = jnp.where(real, _dot(rest, x) + u - width * jnp.log(total) - r, 0)
        root = jnp.sqrt(x / (width + d * x))
        slope = jnp.where(both, rest - width / total, 0)
        matrix = jnp.eye(r.size, dtype=r.dtype) + root[:, None] * slope * root[None]
        change = root * cho_solve(cho_factor(matrix, lower=True), -root * gap)
        u = u - gap - _dot(slope, change)
        after = entries(u)
        return trips + 1, jnp.max(jnp.where(real, jnp.abs(after - x), 0)), u, after

    u = d * x - price + width * jnp.log(jnp.maximum(jnp.sum(jnp.where(real, x, 0)), tiny))
    begin = jnp.int32(0), jnp.asarray(jnp.inf, r.dtype), u, entries(u)
    return jnp.where(real, jax.lax.while_loop(far, newton, begin)[3], 0)


def _nonnegative_least(
    h: Float[Array, "m m"], r: Float[Array, " m"], real: Bool[Array, " m"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """x >= 0 that minimizes x.h x / 2 - r.x, and its prices, by Mehrotra's predictor-corrector."""
    d = jnp.sqrt(jnp.diagonal(h))
    h, r = h / (d[:, None] * d[None]), r / d
    size = jnp.max(jnp.where(real, jnp.abs(r), 0))
    size = jnp.where(size > 0, size, 1)
    r = r / size
    eps = jnp.finfo(r.dtype).eps

    def longest(a: Array, change: Array) -> Array:
        falls = change < 0
        return jnp.min(jnp.where(falls, -a / jnp.where(falls, change, -1), jnp.inf), initial=1)

    def trip(_: Array, xz: tuple[Array, Array]) -> tuple[Array, Array]:
        x, z = xz
        dual = _dot(h, x) - r - z
        mean = _dot(x, z) / r.size
        factor = cho_factor(h + jnp.diag(z / x + 4 * eps * r.size), lower=True)

        def direction(wanted: Array) -> tuple[Array, Array]:
            dx = cho_solve(factor, wanted / x - dual)
            return dx, (wanted - z * dx) / x

        dx, dz = direction(-x * z)
        a = jnp.minimum(longest(x, dx), longest(z, dz))
        share = jnp.clip(_dot(x + a * dx, z + a * dz) / (r.size * mean), 0, 1) ** 3
        dx, dz = direction(share * mean - x * z - dx * dz)
        a = 0.99 * jnp.minimum(longest(x, dx), longest(z, dz))
        good = jnp.all(jnp.isfinite(dx + dz)) & (mean > eps**1.5)
        return jnp.where(good, x + a * dx, x), jnp.where(good, z + a * dz, z)

    ones = jnp.ones_like(r)
    x, z = jax.lax.fori_loop(0, INTERIOR_TRIPS, trip, (ones, ones))
    return size * x / d, size * z * d


def _wright(c: Array) -> Array:
    """w > 0 with w + log w = c (Wright's omega)."""
    tiny = jnp.finfo(c.dtype).tiny
    low = jnp.exp(jnp.minimum(c, 1))
    w = jnp.where(c > 1, c - jnp.log(jnp.maximum(c, 1)), low / (1 + low))

    def newton(_: Array, w: Array) -> Array:
        return jnp.maximum(w * (1 + c - jnp.log(w)) / (1 + w), tiny)

    return jax.lax.fori_loop(0, 5, newton, jnp.maximum(w, tiny))
