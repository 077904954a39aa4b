"""The descent of a polish: a convex problem in multipliers, solved while its tangents are renewed.

See `polish` for where it comes from. Letters: m samples, w working neurons, z_i = (x_i, 1).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.kkt import systems
from jaxkkt.kkt.systems import Boxes, Matrix, Point
from jaxkkt.networks import PRECISION, relu

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


class Problem(NamedTuple):
    """gram: z_i . z_l. sign: s_j of the working neurons. own: y_i = s_j. boxes: the other class."""

    gram: Float[Array, "m m"]
    real: Bool[Array, " m"]
    sign: Float[Array, " w"]
    own: Bool[Array, "w m"]
    boxes: Boxes


class State(NamedTuple):
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


def start(problem: Problem, tangent: Array) -> State:
    """Equal multipliers, small enough that every |p_j| <= 1/2."""
    m = problem.real.size
    ones = jnp.ones(m, problem.gram.dtype)
    point = systems.start(problem.boxes, ones, ones[0])
    squared = directions(problem, point, tangent)[2]
    level = 0.5 * jax.lax.rsqrt(jnp.maximum(jnp.max(squared), 1e-300))
    price = level
    point = systems.start(problem.boxes, level * ones, price)
    weight = 2 * price / (1 - level**2 * squared)
    no = jnp.array(False)
    return State(point, weight, tangent, ones[0], jnp.zeros((), jnp.int32), no, no)


def directions(problem: Problem, point: Point, tangent: Array) -> tuple[Array, Array, Array]:
    """Coefficients of p_j in the points z_i, p_j . z_i, and |p_j|^2."""
    boxes = problem.boxes
    rows = jnp.arange(tangent.shape[0])[:, None]
    coefficients = jnp.where(tangent, point.multipliers[None], 0)
    taken = jnp.where(boxes.real, point.products, 0)
    coefficients = coefficients.at[rows, boxes.sample].add(-taken)
    along = jnp.dot(coefficients, problem.gram, precision=PRECISION)
    return coefficients, along, jnp.sum(coefficients * along, axis=1)


def _step(problem: Problem, state: State) -> State:
    """A predictor and corrector step; then neurons that crossed a sample renew their tangents."""
    boxes, gram = problem.boxes, problem.gram
    point, a, tangent = state.point, state.weight, state.tangent
    w, m = tangent.shape
    rows = jnp.arange(w)[:, None]
    coefficients, along, squared = directions(problem, point, tangent)
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
    pairs = m + 2 * jnp.sum(boxes.real, dtype=gram.dtype) + w
    mean = (systems.total(now) + jnp.dot(slack, a, precision=PRECISION)) / pairs

    def move(change: systems.Products, by_weight: Array) -> tuple[Point, Array, Array, Array]:
        """The step of the point, of the weights, and of the slack to first and second order."""
        share = by_weight / slack
        gradient = (
            over_multipliers + jnp.dot(share, own, precision=PRECISION),
            over_products - share[:, None] * across,
        )
        step = systems.direction(boxes, factors, point, gradient, change)
        _, along_turned, turn = directions(problem, step, tangent)
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


def _renewed(problem: Problem, state: State) -> State:
    """Tangents where the neurons' directions are now, unless the network misses the margins.

    New tangents may lengthen p_j beyond 1: multipliers and products then shrink together.
    """
    along = directions(problem, state.point, state.tangent)[1]
    y = jnp.where(problem.own, 1.0, -1.0)
    q = jnp.dot(state.weight, y * relu(along), precision=PRECISION)
    classifies = jnp.min(jnp.where(problem.real, q, jnp.inf)) > LEAST_MARGIN
    live = state.weight > LEAST_WEIGHT * jnp.max(state.weight)
    new = jnp.where((live & classifies)[:, None], problem.own & (along > 0), state.tangent)
    longest = jnp.sqrt(jnp.max(directions(problem, state.point, new)[2]))
    shrink = jnp.where(longest > 1, jnp.maximum(2 - longest, 0.5) / longest, 1)
    point = state.point._replace(
        multipliers=state.point.multipliers * shrink,
        products=jnp.where(problem.boxes.real, state.point.products * shrink, state.point.products),
    )
    return state._replace(point=point, tangent=new)


def solved(problem: Problem, state: State, max_steps: Array, few: int) -> State:
    """The state where the conditions hold, or where it is clear that `few` neurons are enough."""
    live_limit = few * 3 // 4

    def going(state: State) -> Array:
        live = jnp.sum(state.weight > LEAST_WEIGHT * jnp.max(state.weight))
        clear = (state.open < CLEAR) & (live <= live_limit)
        return ~(state.done | state.stuck | clear) & (state.steps < max_steps)

    return jax.lax.while_loop(going, partial(_step, problem), state)


def kept(
    problem: Problem, state: State, chosen: Array, keep: Array
) -> tuple[Problem, State, Array]:
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
