"""From a trained network to a KKT point of the max-margin problem nearby.

Not gradient flow: a descent on |theta|^2 / 2 with every margin kept at 1 or above. Let u_j = (w_j, b_j)
and z_i = (x_i, 1). At a KKT point |u_j| = |v_j|, so a network is a sum of unit directions g_j with
signs s_j and weights a_j = v_j^2: N(x) = sum_j s_j a_j relu(g_j . z), |theta|^2 / 2 = sum_j a_j. Of
the neuron's terms in y_i N(x_i), those of its own class, y_i = s_j, are convex in a_j g_j, the others
are concave. With the convex ones replaced by their tangents, that is with relu(g_j . z_i) taken as
g_j . z_i where it is positive and 0 elsewhere, the problem is convex, and its dual small:

    max sum_i lambda_i  subject to  |p_j| <= 1,  p_j = sum_{own, active} lambda_i z_i - sum_{other} tau_ij z_i,
    0 <= tau_ij <= lambda_i,

p_j being the direction of neuron j where a_j > 0. It is solved by a primal-dual interior-point
method, during which tangents are renewed wherever a neuron's direction crosses a sample of its own
class. Where none crosses any more, every condition of a KKT point holds.
"""

from enum import IntEnum
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt import datasets, networks
from jaxkkt.kkt import systems
from jaxkkt.kkt.certificate import multipliers
from jaxkkt.kkt.precision import in_float64
from jaxkkt.kkt.systems import Boxes, Matrix, Point
from jaxkkt.networks import PRECISION, Params, relu

STEPS = 300
STEP_OPERATIONS = 200_000_000
# Tangents are renewed once the network that the weights make has this share of the margins asked.
LEAST_MARGIN = 0.5
# Neurons below this share of the largest weight keep their tangents.
LEAST_WEIGHT = 1e-3
# Neurons that play no part can be told from those that do once what should vanish, summed, is this
# small against sum_i lambda_i.
CLEAR = 0.03
# What should vanish, summed, against sum_i lambda_i; and the error of the margins.
ENOUGH = 1e-10
MARGIN_ERROR = 1e-9


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
    of a KKT point forbids. By default they are as many as a step takes little time for, and no fewer than
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


def _working(m: int, n: int) -> int:
    """As many neurons as a step of `STEP_OPERATIONS` has room for, but not too few."""
    each = n * (n * n // 3 + n * m + m * m)
    return max(64, -(-m // 2), STEP_OPERATIONS // each)


class _Problem(NamedTuple):
    """gram: z_i . z_l. sign: s_j of the working neurons. own: y_i = s_j. boxes: the other class."""

    gram: Float[Array, "m m"]
    real: Bool[Array, " m"]
    sign: Float[Array, " w"]
    own: Bool[Array, "w m"]
    boxes: Boxes


class _State(NamedTuple):
    """`tangent`: own samples on which a neuron is taken as active. `weight`: a_j.

    `open`: the sum of what should vanish, against sum_i lambda_i. `stuck`: a step was not finite.
    """

    point: Point
    weight: Float[Array, " w"]
    tangent: Bool[Array, "w m"]
    open: Float[Array, ""]
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    stuck: Bool[Array, ""]


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
    sign = jnp.where(params.v[chosen] >= 0, 1.0, -1.0)
    own = y[None] * sign[:, None] > 0
    other, sample = jax.lax.top_k((y[None] * sign[:, None] < 0).astype(jnp.int32), n)
    problem = _Problem(gram, real, sign, own, Boxes(sample, other > 0))
    tangent = own & (networks.preactivations(params, x).T[chosen] > 0)
    state = _start(problem, tangent)
    state = state._replace(done=~(feasible & finite))
    few = min(-(-w // 2), max(32, -(-x.shape[0] // 2)))
    state = _solved(problem, state, max_steps, few)
    with_all = _network(problem, state, params, x, y, chosen)
    shrunk = ~(state.done | state.stuck)
    keep = jax.lax.top_k(state.weight, few)[1]
    problem, state, chosen = _kept(problem, state, chosen, keep)
    state = _solved(problem, state, max_steps, 0)
    with_few = _network(problem, state, params, x, y, chosen)
    polished = jax.tree.map(partial(jnp.where, shrunk), with_few, with_all)
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


def _solved(problem: _Problem, state: _State, max_steps: Array, few: int) -> _State:
    """The state where the conditions hold, or where it is clear that `few` neurons are enough."""
    live_limit = few * 3 // 4

    def going(state: _State) -> Array:
        live = jnp.sum(state.weight > LEAST_WEIGHT * jnp.max(state.weight))
        clear = (state.open < CLEAR) & (live <= live_limit)
        return ~(state.done | state.stuck | clear) & (state.steps < max_steps)

    return jax.lax.while_loop(going, partial(_step, problem), state)


def _kept(
    problem: _Problem, state: _State, chosen: Array, keep: Array
) -> tuple[_Problem, _State, Array]:
    """The same with the neurons `keep` alone."""
    boxes = Boxes(*(part[keep] for part in problem.boxes))
    point = state.point._replace(
        products=state.point.products[keep],
        lower=state.point.lower[keep],
        upper=state.point.upper[keep],
    )
    problem = problem._replace(sign=problem.sign[keep], own=problem.own[keep], boxes=boxes)
    weight, tangent = state.weight[keep], state.tangent[keep]
    return problem, state._replace(point=point, weight=weight, tangent=tangent), chosen[keep]


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
    sign = jnp.where(params.v >= 0, 1.0, -1.0)
    # Neurons without an output have no sign of their own.
    sign = jnp.where(params.v == 0, 0, sign)[:, None]

    def uphill(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
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


def _start(problem: _Problem, tangent: Array) -> _State:
    """Equal multipliers, small enough that every |p_j| <= 1/2."""
    m = problem.real.size
    ones = jnp.ones(m, problem.gram.dtype)
    point = systems.start(problem.boxes, ones, ones[0])
    squared = _directions(problem, point, tangent)[2]
    level = 0.5 * jax.lax.rsqrt(jnp.maximum(jnp.max(squared), 1e-300))
    price = level
    point = systems.start(problem.boxes, level * ones, price)
    weight = 2 * price / (1 - level**2 * squared)
    no = jnp.array(False)
    return _State(point, weight, tangent, ones[0], jnp.zeros((), jnp.int32), no, no)


def _directions(problem: _Problem, point: Point, tangent: Array) -> tuple[Array, Array, Array]:
    """Coefficients of p_j in the points z_i, p_j . z_i, and |p_j|^2."""
    boxes = problem.boxes
    rows = jnp.arange(tangent.shape[0])[:, None]
    coefficients = jnp.where(tangent, point.multipliers[None], 0)
    taken = jnp.where(boxes.real, point.products, 0)
    coefficients = coefficients.at[rows, boxes.sample].add(-taken)
    along = jnp.dot(coefficients, problem.gram, precision=PRECISION)
    return coefficients, along, jnp.sum(coefficients * along, axis=1)


def _step(problem: _Problem, state: _State) -> _State:
    """A predictor and corrector step, after which neurons that crossed a sample renew their tangent."""
    boxes, gram = problem.boxes, problem.gram
    point, a, tangent = state.point, state.weight, state.tangent
    w, m = tangent.shape
    rows = jnp.arange(w)[:, None]
    coefficients, along, squared = _directions(problem, point, tangent)
    slack = (1 - squared) / 2
    across = jnp.where(boxes.real, along[rows, boxes.sample], 0)
    on = jnp.where(tangent, 1.0, 0.0)
    own = on * along
    ratio = a / slack

    grams = gram[boxes.sample[:, :, None], boxes.sample[:, None, :]]
    both = boxes.real[:, :, None] & boxes.real[:, None, :]
    matrix = Matrix(
        blocks=a[:, None, None] * jnp.where(both, grams, 0)
        + ratio[:, None, None] * across[:, :, None] * across[:, None, :],
        cross=-a[:, None, None]
        * jnp.where(boxes.real[:, :, None], gram[boxes.sample], 0)
        * on[:, None]
        - (ratio[:, None] * across)[:, :, None] * own[:, None],
        corner=gram * jnp.dot(on.T * a[None], on, precision=PRECISION)
        + jnp.dot(own.T * ratio[None], own, precision=PRECISION),
    )
    factors = systems.factor(boxes, point, matrix)
    over_multipliers, over_products = systems.prices(boxes, point)
    margin_error = jnp.dot(a, own, precision=PRECISION) - jnp.where(problem.real, 1.0, -1.0)
    over_multipliers += margin_error
    over_products -= a[:, None] * across

    now = systems.products(boxes, point)
    pairs = m + 2 * jnp.sum(boxes.real) + w
    mean = (systems.total(now) + jnp.dot(slack, a, precision=PRECISION)) / pairs

    def move(change: systems.Products, by_weight: Array) -> tuple[Point, Array, Array, Array]:
        """The step of the point, of the weights, and of the slack to first and second order."""
        share = by_weight / slack
        gradient = (
            over_multipliers + jnp.dot(share, own, precision=PRECISION),
            over_products - share[:, None] * across,
        )
        step = systems.direction(boxes, factors, point, gradient, change)
        turned, along_turned, turn = _directions(problem, step, tangent)
        by_slack = -jnp.sum(coefficients * along_turned, axis=1)
        return step, (by_weight - a * by_slack) / slack, by_slack, turn / 2

    def length(step: Point, by_weight: Array, by_slack: Array, turn: Array) -> Array:
        # The slack falls as slack + t by_slack - t^2 turn.
        root = jnp.sqrt(by_slack**2 + 4 * turn * slack) - by_slack
        bend = jnp.min(2 * slack / jnp.where(root > 0, root, jnp.finfo(root.dtype).tiny))
        reach = jnp.minimum(systems.longest(boxes, point, step), systems.reach(a, by_weight))
        return jnp.minimum(reach, bend)

    ahead = move(jax.tree.map(jnp.negative, now), -slack * a)
    step, by_weight, by_slack, turn = ahead
    far = jnp.minimum(1, length(*ahead))
    there = systems.total(systems.products(boxes, systems.moved(point, step, far)))
    there += jnp.dot(slack + far * by_slack, a + far * by_weight, precision=PRECISION)
    target = mean * jnp.clip(there / pairs / mean, 0, 1) ** 3
    extra = systems.second_order(boxes, step)
    wanted = jax.tree.map(lambda a, b: target - a - b, now, extra)
    best = move(wanted, target - slack * a - by_slack * by_weight + a * turn)
    far = jnp.minimum(1, 0.98 * length(*best))
    fresh = state._replace(
        point=systems.moved(point, best[0], far), weight=a + far * best[1], steps=state.steps + 1
    )
    ok = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(fresh)]))
    fresh = jax.tree.map(partial(jnp.where, ok), fresh, state)
    fresh = _renewed(problem, fresh)
    still = jnp.all(fresh.tangent == tangent)
    size = jnp.sum(jnp.where(problem.real, point.multipliers, 0))
    error = jnp.max(jnp.where(problem.real, jnp.abs(over_multipliers), 0))
    left = mean * pairs / size
    done = ok & still & (left <= ENOUGH) & (error <= MARGIN_ERROR)
    return fresh._replace(open=left, done=done, stuck=~ok)


def _renewed(problem: _Problem, state: _State) -> _State:
    """Tangents where the neurons' directions are now, unless the network misses the margins.

    New tangents may lengthen p_j beyond 1: multipliers and products then shrink together.
    """
    along = _directions(problem, state.point, state.tangent)[1]
    y = jnp.where(problem.own, 1.0, -1.0)
    q = jnp.dot(state.weight, y * relu(along), precision=PRECISION)
    classifies = jnp.min(jnp.where(problem.real, q, jnp.inf)) > LEAST_MARGIN
    live = state.weight > LEAST_WEIGHT * jnp.max(state.weight)
    new = jnp.where((live & classifies)[:, None], problem.own & (along > 0), state.tangent)
    longest = jnp.sqrt(jnp.max(_directions(problem, state.point, new)[2]))
    shrink = jnp.where(longest > 1, jnp.maximum(2 - longest, 0.5) / longest, 1)
    point = state.point._replace(
        multipliers=state.point.multipliers * shrink,
        products=jnp.where(problem.boxes.real, state.point.products * shrink, state.point.products),
    )
    return state._replace(point=point, tangent=new)


def _network(
    problem: _Problem, state: _State, params: Params, x: Array, y: Array, chosen: Array
) -> Params:
    """The network of the directions and weights, at min margin 1; neurons with a slack are dead."""
    coefficients, _, squared = _directions(problem, state.point, state.tangent)
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
