"""From a trained network to a KKT point of the max-margin problem nearby.

Not gradient flow: the max-margin problem is solved from the network's tangents, which nearly always
makes |theta| shorter at the same margins; from a KKT point it may lead to another one. Write u_j
for (w_j, b_j) and z_i for (x_i, 1), or w_j and x_i where the network has no biases. At a KKT point
|u_j| = |v_j|, so a network is a sum of unit directions g_j with signs s_j and weights a_j = v_j^2:
N(x) = sum_j s_j a_j relu(g_j . z) and |theta|^2 / 2 = sum_j a_j. Of a neuron's terms in y_i N(x_i),
those of its own class, y_i = s_j, are convex in a_j g_j, the others are concave. With tangents in
place of the convex ones, that is with g_j . z_i where it is positive and 0 elsewhere, the problem
is convex, and its dual small:

    max sum_i lambda_i  subject to  |p_j| <= 1 and 0 <= tau_ij <= lambda_i,
    p_j = sum over active samples of its own class of lambda_i z_i
          - sum over samples of the other class of tau_ij z_i.

p_j is the direction of neuron j wherever a_j > 0. The problem is solved by a primal-dual
interior-point method, during which tangents are renewed wherever a neuron's direction crosses a
sample of its own class. Where none crosses any more, every condition of a KKT point holds.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkkt import datasets, networks
from jaxkkt.kkt import polish_steps, variables
from jaxkkt.kkt.nearest import multipliers
from jaxkkt.kkt.precision import in_float64
from jaxkkt.networks import PRECISION, Params, relu
from jaxkkt.numerics.compiling import OLDER_EMITTERS, quick_jit
from jaxkkt.numerics.derivatives import without_derivative
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.numerics.requirements import require_counts, require_whole
from jaxkkt.numerics.truths import all_of, any_of

STEPS = 300
STEP_OPERATIONS = 400_000_000
# Every neuron gets this share of the mean height, so that those that reach none count, too.
SPARE = 0.1


class PolishStatus(Outcome):
    """How a polish ended. `describe` gives each a sentence and a remedy."""

    POLISHED = 0, "a KKT point, up to rounding; certify it to know how near"
    STOPPED_EARLY = (
        1,
        "the steps ran out, or one could not be taken, before the conditions of a KKT point held:"
        " certify what came out, or raise working, or max_steps where all of them were taken",
    )
    INFEASIBLE = (
        2,
        "a sample is misclassified or its output is 0: train the network until it classifies all",
    )
    NON_FINITE = 3, "parameters or data are NaN or infinite: look at the status of the training run"
    BIASES_UNCLEAR = 4, variables.UNCLEAR


_OF_POINTS = "a polished network has no derivative over the points, only over the network"


class Polished(NamedTuple):
    """A KKT point, at min margin 1, and how it differs from the network that it was made from.

    steps: interior-point steps taken, whatever the status.
    angle: between the parameter vectors, in radians.
    live, live_before: neurons with v_j != 0 that are active on a sample.
    normalized_margin, normalized_margin_before: min_i q_i / |theta|^2.
    Neurons that end in one direction may share their weight in any way: `angle` and `live` are
    those of an even share.
    status: `PolishStatus`. Where it is INFEASIBLE, NON_FINITE or BIASES_UNCLEAR, or where steps
        that were STOPPED_EARLY had come to no network that classifies all samples, `params`,
        `angle` and both normalized margins are NaN, and `live` and `live_before` are -1.
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
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    working: int | None = None,
    max_steps: int = STEPS,
    trained: tuple[str, ...] | None = None,
) -> Polished:
    """A KKT point of min |theta|^2 / 2 subject to q_i >= 1, near a network that classifies all.

    Neurons keep their signs; most of them vanish. At most `working` neurons take part, those that
    the multipliers of the network as it is favour, spread so that every sample is seen by some of
    its own class; the others are set to zero, which no condition of a KKT point forbids. By default
    they are as many as a step has time for, and no fewer than 64 or a quarter of the samples: some
    m/6 neurons are left at the end.
    Computed in float64 whatever the inputs are.

    `trained` names the parameters that the problem is over: ("w", "b", "v"), the default, or
    ("w", "v") for a network without biases, which then comes back without biases. Where all biases
    are 0 it must be given, since zero biases can be trained ones, too; under `jit` and `vmap` the
    status is then BIASES_UNCLEAR.

    A network that misclassifies a sample, or whose output is 0 there, raises nothing: the
    parameters that come back are NaN, and `status` is INFEASIBLE.
    `PolishStatus(int(found.status)).describe()` says what to do.

    Cost: some 20 to 80 steps of 2 working r (r + m)^2 operations, r the smaller of m and d + 1.
    Raises ValueError for data or parameters that do not fit, biases that do not fit `trained`, or
    counts that are no integers from 1 on; TypeError where a derivative over the points is asked
    for.
    """
    points, labels = datasets.validate_for(params, x, y)
    points = without_derivative(_OF_POINTS)(jnp.asarray)(points)
    trained = variables.chosen(params, trained)
    require_whole("working", 1 if working is None else working, 1)
    require_counts(max_steps=max_steps)
    m, d = points.shape
    w = min(params.v.shape[0], working or _working(m, d + int(variables.biased(trained))))
    return _polish(params, points, labels, max_steps, w, trained)


def _working(m: int, n: int) -> int:
    """As many neurons as a step of `STEP_OPERATIONS` has room for, but not too few.

    n: the dimension of the points z_i.
    """
    r = min(m, n)
    return max(64, m // 4, STEP_OPERATIONS // (2 * r * (r + m) ** 2))


@partial(quick_jit, options=OLDER_EMITTERS, static_argnames=("working", "trained"))
def _polish(
    params: Params,
    x: Array,
    y: Array,
    max_steps: Array,
    working: int,
    trained: tuple[str, ...] | None,
) -> Polished:
    real = y != 0
    q = networks.margins(params, x, y)
    smallest = jnp.min(jnp.where(real, q, jnp.inf))
    feasible = (smallest > 0) & (smallest < jnp.inf)
    before = networks.squared_norm(params)
    finite = all_of(jnp.isfinite(x)) & jnp.isfinite(before)
    fit = variables.fit(params, trained)

    points = _points(x, trained)
    chosen = _chosen(params, x, y, points, working, trained)
    problem = polish_steps.problem_of(points, y, jnp.sign(params.v[chosen]))
    tangent = problem.own & (networks.preactivations(params, x).T[chosen] > 0)
    state = polish_steps.start(problem, tangent)
    state = state._replace(done=~(feasible & finite & fit))
    state = polish_steps.solved(problem, state, max_steps)
    polished = _network(problem, state, params, x, y, chosen, trained)
    after = networks.squared_norm(polished)
    inner = sum(jnp.vdot(a, b, precision=PRECISION) for a, b in zip(polished, params, strict=True))
    cosine = inner * jax.lax.rsqrt(after) * jax.lax.rsqrt(before)
    smallest_after = jnp.min(jnp.where(real, networks.margins(polished, x, y), jnp.inf))
    classifies = (smallest_after > 0) & (after < jnp.inf)
    done = state.done & classifies
    status = jnp.where(done, PolishStatus.POLISHED, PolishStatus.STOPPED_EARLY)
    status = jnp.where(fit, status, PolishStatus.BIASES_UNCLEAR)
    status = jnp.where(feasible, status, PolishStatus.INFEASIBLE)
    status = jnp.where(finite, status, PolishStatus.NON_FINITE)
    worth = feasible & finite & fit & classifies

    def known(value: Array) -> Array:
        return jnp.where(worth, value, jnp.nan)

    return Polished(
        params=jax.tree.map(known, polished),
        steps=state.steps,
        angle=known(jnp.arccos(jnp.clip(cosine, -1, 1))),
        live=jnp.where(worth, _live(polished, x, y), -1),
        live_before=jnp.where(worth, _live(params, x, y), -1),
        normalized_margin=known(smallest_after / after),
        normalized_margin_before=known(smallest / before),
        status=status.astype(jnp.int32),
    )


def _live(params: Params, x: Array, y: Array) -> Array:
    active = (networks.preactivations(params, x) > 0) & (y != 0)[:, None]
    return jnp.sum(any_of(active, axis=0) & (params.v != 0), dtype=jnp.int32)


def _points(x: Array, trained: tuple[str, ...] | None) -> Array:
    """z_i in an orthonormal basis of their span."""
    ones = jnp.ones_like(x[:, :1])
    points = jnp.concatenate([x, ones], axis=1) if variables.biased(trained) else x
    return jnp.linalg.qr(points.T, mode="r").T


def _chosen(
    params: Params,
    x: Array,
    y: Array,
    points: Array,
    w: int,
    trained: tuple[str, ...] | None,
) -> Array:
    """Neurons that can reach a large h(g) = s_j sum_i lambda_i y_i relu(g . z_i), and see all.

    lambda are the multipliers of the network as it is; h is followed uphill from each neuron's
    own direction for a few steps. Neurons are taken one by one, by what they reach times the
    samples of their class that they see, each of which counts less the more see it already:
    a sample that none sees would have no margin.
    """
    k = params.v.size
    if w == k:
        return jnp.arange(k)
    pull = multipliers(params, x, y, trained) * y
    sign = jnp.sign(params.v)[:, None]

    def uphill(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        pre, best = carry
        toward = jnp.dot(jnp.where(pre > 0, sign * pull[None], 0), points, precision=PRECISION)
        length = jnp.linalg.norm(toward, axis=1)
        toward = toward / jnp.where(length > 0, length, 1)[:, None]
        ahead = jnp.dot(toward, points.T, precision=PRECISION)
        height = jnp.sum(sign * pull[None] * relu(ahead), axis=1)
        return ahead, jnp.maximum(best, height)

    pre = networks.preactivations(params, x).T
    best = jax.lax.fori_loop(0, 20, uphill, (pre, jnp.zeros(k, pre.dtype)))[1]
    reached = best + SPARE * jnp.mean(best)
    sees = jnp.where((y[None] * sign > 0) & (pre > 0), 1.0, 0.0)

    def take(left: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        seen, free = left
        gain = reached * jnp.dot(sees, 1 / (1 + seen), precision=PRECISION)
        neuron = jnp.argmax(jnp.where(free, gain, -1))
        return (seen + sees[neuron], free.at[neuron].set(False)), neuron

    start = jnp.zeros(y.size, pre.dtype), jnp.ones(k, bool)
    return jax.lax.scan(take, start, length=w)[1]


def _network(
    problem: polish_steps.Problem,
    state: polish_steps.State,
    params: Params,
    x: Array,
    y: Array,
    chosen: Array,
    trained: tuple[str, ...] | None,
) -> Params:
    """The network of the directions and weights, at min margin 1; neurons with a slack are dead."""
    coefficients, p = polish_steps.directions(problem, state.point, state.tangent)
    squared = jnp.sum(p**2, axis=1)
    length = jnp.sqrt(squared)
    live = polish_steps.outweighs(problem, state, (1 - squared) / 2) & (length > 0.5)
    size = jnp.sqrt(jnp.where(live, state.weight * length, 0))
    unit = coefficients * (size / jnp.where(live, length, 1))[:, None]
    zeros = jax.tree.map(jnp.zeros_like, params)
    placed = Params(
        w=zeros.w.at[chosen].set(jnp.dot(unit, x, precision=PRECISION)),
        b=zeros.b.at[chosen].set(variables.over_b(unit.T, trained)),
        v=zeros.v.at[chosen].set(problem.sign * size),
    )
    q = jnp.min(jnp.where(y != 0, networks.margins(placed, x, y), jnp.inf))
    # Not below 1 after rounding.
    scale = jax.lax.rsqrt(jnp.where(q > 0, q, 1)) * (1 + 8 * jnp.finfo(q.dtype).eps)
    return jax.tree.map(lambda leaf: leaf * scale, placed)
