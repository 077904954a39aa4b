"""From a trained network to a KKT point of the max-margin problem nearby.

Not gradient flow: a descent on |theta|^2 / 2 that keeps every margin at 1 or above. Write u_j for
(w_j, b_j) and z_i for (x_i, 1). At a KKT point |u_j| = |v_j|, so a network is a sum of unit
directions g_j with signs s_j and weights a_j = v_j^2: N(x) = sum_j s_j a_j relu(g_j . z) and
|theta|^2 / 2 = sum_j a_j. Of a neuron's terms in y_i N(x_i), those of its own class, y_i = s_j, are
convex in a_j g_j, the others are concave. With tangents in place of the convex ones, that is with
g_j . z_i where it is positive and 0 elsewhere, the problem is convex, and its dual small:

    max sum_i lambda_i  subject to  |p_j| <= 1 and 0 <= tau_ij <= lambda_i,
    p_j = sum over active samples of its own class of lambda_i z_i
          - sum over samples of the other class of tau_ij z_i.

p_j is the direction of neuron j wherever a_j > 0. The problem is solved by a primal-dual
interior-point method, during which tangents are renewed wherever a neuron's direction crosses a
sample of its own class. Where none crosses any more, every condition of a KKT point holds.
"""

from enum import IntEnum
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkkt import datasets, networks
from jaxkkt.kkt import descent
from jaxkkt.kkt.certificate import multipliers
from jaxkkt.kkt.precision import in_float64
from jaxkkt.kkt.systems import Boxes
from jaxkkt.networks import PRECISION, Params, relu

STEPS = 300
STEP_OPERATIONS = 200_000_000


class PolishStatus(IntEnum):
    """How a polish ended. `describe` gives each a sentence and a remedy."""

    POLISHED = 0
    STOPPED_EARLY = 1
    INFEASIBLE = 2
    NON_FINITE = 3

    def describe(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    PolishStatus.POLISHED: "a KKT point, up to rounding; certify it to know how near",
    PolishStatus.STOPPED_EARLY: (
        "the steps ran out before the conditions of a KKT point held: certify what came out, or "
        "raise max_steps or working"
    ),
    PolishStatus.INFEASIBLE: (
        "a sample is misclassified or its output is 0: train the network until it classifies all"
    ),
    PolishStatus.NON_FINITE: (
        "parameters or data are NaN or infinite: look at the status of the training run"
    ),
}


class Polished(NamedTuple):
    """A KKT point, at min margin 1, and how it differs from the network that it was made from.

    steps: interior-point steps. angle: between the parameter vectors, in radians.
    live, live_before: neurons with v_j != 0 that are active on a sample.
    normalized_margin, normalized_margin_before: min_i q_i / |theta|^2.
    Neurons that end in one direction may share their weight in any way: `angle` and `live` are
    those of an even share.
    status: `PolishStatus`; the numbers are NaN where it is INFEASIBLE or NON_FINITE.
    """

    params: Params
    steps: Int[Array, "*lanes"]
    angle: Float[Array, "*lanes"]
    live: Int[Array, "*lanes"]
    live_before: Int[Array, "*lanes"]
    normalized_margin: Float[Array, "*lanes"]
    normalized_margin_before: Float[Array, "*lanes"]
    status: Int[Array, "*lanes"]


@in_float64
def polish(
    params: Params,
    x: Float[Array | np.ndarray, "m d"],
    y: Float[Array | np.ndarray, " m"],
    working: int | None = None,
    max_steps: int = STEPS,
) -> Polished:
    """A KKT point of min |theta|^2 / 2 subject to q_i >= 1, near a network that classifies all.

    Neurons keep their signs; most of them vanish. At most `working` neurons take part, those that
    the multipliers of the network as it is favour; the others are set to zero, which no condition
    of a KKT point forbids. By default they are as many as a step has time for, and no fewer than
    64 or half the samples: a quarter as many neurons as samples are left at the end.
    Computed in float64 whatever the inputs are.

    Cost: some 20 to 60 steps of working n (n^2 / 3 + n m + m^2) operations, n the samples of the
    larger class (m under `jit` and `vmap` over data, where it cannot be counted).
    Raises ValueError for data or parameters that do not fit, or counts below 1.
    """
    traced = any(isinstance(a, jax.core.Tracer) for a in (x, y))
    if not traced:
        datasets.validate(x, y)
    networks.check_parameters(params, x.shape[1])
    for name, number in (("working", working), ("max_steps", max_steps)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    m, k = x.shape[0], params.v.shape[0]
    larger = m if traced else int(max(np.sum(np.asarray(y) > 0), np.sum(np.asarray(y) < 0)))
    n = min(m, larger + -larger % 8)
    places = min(k, working or _working(m, n)), n
    return _polish(params, jnp.asarray(x), jnp.asarray(y), max_steps, places)


def _operations(m: int, n: int) -> int:
    """Of a step, for each neuron."""
    return n * (n * n // 3 + n * m + m * m)


def _working(m: int, n: int) -> int:
    """As many neurons as a step of `STEP_OPERATIONS` has room for, but not too few."""
    return max(64, -(-m // 2), STEP_OPERATIONS // _operations(m, n))


@partial(jax.jit, static_argnames="places")
def _polish(
    params: Params, x: Array, y: Array, max_steps: Array, places: tuple[int, int]
) -> Polished:
    real = y != 0
    w, n = places
    q = networks.margins(params, x, y)
    smallest = jnp.min(jnp.where(real, q, jnp.inf))
    feasible = (smallest > 0) & (smallest < jnp.inf)
    before = networks.squared_norm(params)
    finite = jnp.all(jnp.isfinite(x)) & jnp.isfinite(before)

    gram = jnp.dot(x, x.T, precision=PRECISION) + 1
    chosen = _chosen(params, x, y, gram, w)
    sign = jnp.sign(params.v[chosen])
    own = y[None] * sign[:, None] > 0
    other, sample = jax.lax.top_k((y[None] * sign[:, None] < 0).astype(jnp.int32), n)
    problem = descent.Problem(gram, real, sign, own, Boxes(sample, other > 0))
    tangent = own & (networks.preactivations(params, x).T[chosen] > 0)
    state = descent.start(problem, tangent)
    state = state._replace(done=~(feasible & finite))
    long = w > 32 and w * _operations(x.shape[0], n) > STEP_OPERATIONS
    few = -(-w // 2) if long else 0
    state = descent.solved(problem, state, max_steps, few)
    polished = _network(problem, state, params, x, y, chosen)
    if long:  # Half the neurons make a step half as long, and once most have died they are enough.
        shrunk = ~(state.done | state.stuck)
        keep = jax.lax.top_k(state.weight, few)[1]
        problem, state, chosen = descent.kept(problem, state, chosen, keep)
        state = descent.solved(problem, state, max_steps, 0)
        with_few = _network(problem, state, params, x, y, chosen)
        polished = jax.tree.map(partial(jnp.where, shrunk), with_few, polished)
    after = networks.squared_norm(polished)
    inner = sum(jnp.vdot(a, b, precision=PRECISION) for a, b in zip(polished, params, strict=True))
    cosine = inner * jax.lax.rsqrt(after) * jax.lax.rsqrt(before)
    status = jnp.where(state.done, PolishStatus.POLISHED, PolishStatus.STOPPED_EARLY)
    status = jnp.where(feasible, status, PolishStatus.INFEASIBLE)
    status = jnp.where(finite, status, PolishStatus.NON_FINITE)
    worth = feasible & finite

    def known(value: Array) -> Array:
        return jnp.where(worth, value, jnp.nan)

    return Polished(
        params=jax.tree.map(known, polished),
        steps=state.steps,
        angle=known(jnp.arccos(jnp.clip(cosine, -1, 1))),
        live=_live(polished, x, y),
        live_before=_live(params, x, y),
        normalized_margin=known(
            jnp.min(jnp.where(real, networks.margins(polished, x, y), jnp.inf)) / after
        ),
        normalized_margin_before=known(smallest / before),
        status=status.astype(jnp.int32),
    )


def _live(params: Params, x: Array, y: Array) -> Array:
    active = (networks.preactivations(params, x) > 0) & (y != 0)[:, None]
    return jnp.sum(jnp.any(active, axis=0) & (params.v != 0), dtype=jnp.int32)


def _chosen(params: Params, x: Array, y: Array, gram: Array, w: int) -> Array:
    """The neurons that can reach the largest h(g) = s_j sum_i lambda_i y_i relu(g . z_i).

    lambda are the multipliers of the network as it is; h is followed uphill from each neuron's
    own direction for a few steps.
    """
    k = params.v.size
    if w == k:
        return jnp.arange(k)
    pull = multipliers(params, x, y) * y
    sign = jnp.sign(params.v)[:, None]

    def uphill(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        pre, best = carry
        toward = jnp.where(pre > 0, sign * pull[None], 0)
        ahead = jnp.dot(toward, gram, precision=PRECISION)
        length = jnp.sqrt(relu(jnp.sum(toward * ahead, axis=1)))
        ahead = ahead / jnp.where(length > 0, length, 1)[:, None]
        height = jnp.sum(sign * pull[None] * relu(ahead), axis=1)
        return ahead, jnp.maximum(best, height)

    pre = networks.preactivations(params, x).T
    best = jax.lax.fori_loop(0, 20, uphill, (pre, jnp.zeros(k, pre.dtype)))[1]
    return jax.lax.top_k(best, w)[1]


def _network(
    problem: descent.Problem,
    state: descent.State,
    params: Params,
    x: Array,
    y: Array,
    chosen: Array,
) -> Params:
    """The network of the directions and weights, at min margin 1; neurons with a slack are dead."""
    coefficients, _, squared = descent.directions(problem, state.point, state.tangent)
    length = jnp.sqrt(squared)
    live = (state.weight > (1 - squared) / 2) & (length > 0.5)
    size = jnp.sqrt(jnp.where(live, state.weight * length, 0))
    unit = coefficients * (size / jnp.where(live, length, 1))[:, None]
    zeros = jax.tree.map(jnp.zeros_like, params)
    placed = Params(
        w=zeros.w.at[chosen].set(jnp.dot(unit, x, precision=PRECISION)),
        b=zeros.b.at[chosen].set(jnp.sum(unit, axis=1)),
        v=zeros.v.at[chosen].set(problem.sign * size),
    )
    q = jnp.min(jnp.where(y != 0, networks.margins(placed, x, y), jnp.inf))
    # Not below 1 after rounding.
    scale = jax.lax.rsqrt(jnp.where(q > 0, q, 1)) * (1 + 8 * jnp.finfo(q.dtype).eps)
    return jax.tree.map(lambda leaf: leaf * scale, placed)
