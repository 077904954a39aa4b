"""The interior-point method of a polish, whose tangents are renewed while it solves the problem.

The problem is convex in the multipliers; see `polish` for where it comes from. Letters: m samples,
w working neurons, z_i = (x_i, 1), or x_i.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.kkt import direction_blocks, systems
from jaxkkt.kkt.systems import Boxes, Point
from jaxkkt.networks import PRECISION, relu
from jaxkkt.numerics.truths import all_of, any_of

# Tangents are renewed once the network that the weights make has this share of the margins asked.
LEAST_MARGIN = 0.5
# Neurons below this share of the largest weight, and of their slack, keep their tangents.
LEAST_WEIGHT = 1e-3
# What should vanish, summed, against sum_i lambda_i; and the error of margins and lengths.
ENOUGH = 1e-10
ERROR = 1e-9


class Problem(NamedTuple):
    """points: z_i, in any basis of their span. sign: s_j of the working neurons. own: y_i = s_j.

    boxes: every sample of the other class. longest: the largest |z_i|.
    """

    points: Float[Array, "m r"]
    real: Bool[Array, " m"]
    sign: Float[Array, " w"]
    own: Bool[Array, "w m"]
    boxes: Boxes
    longest: Float[Array, ""]


class State(NamedTuple):
    """`weight`: a_j, the price of |p_j| <= 1. `tangent`: own samples taken as active.

    `slack`: (1 - |p_j|^2) / 2, but where new tangents have changed p_j: the steps then close the
    difference. `stuck`: a step was not finite.
    """

    point: Point
    weight: Float[Array, " w"]
    slack: Float[Array, " w"]
    tangent: Bool[Array, "w m"]
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    stuck: Bool[Array, ""]


def problem_of(points: Array, y: Array, sign: Array) -> Problem:
    """The problem of points z_i with labels y_i (0 for padding), for neurons of these signs s_j."""
    real = y != 0
    side = y[None] * sign[:, None]
    every = jnp.broadcast_to(jnp.arange(y.size), side.shape)
    squared = jnp.where(real, jnp.sum(points**2, axis=1), 0)
    longest = jnp.sqrt(jnp.max(squared))
    return Problem(points, real, sign, side > 0, Boxes(every, side < 0), longest)


def start(problem: Problem, tangent: Array) -> State:
    """Equal multipliers, small enough that every |p_j| <= 1/2."""
    m = problem.real.size
    ones = jnp.ones(m, problem.points.dtype)
    point = systems.start(problem.boxes, ones, ones[0])
    squared = jnp.sum(directions(problem, point, tangent)[1] ** 2, axis=1)
    level = 0.5 * jax.lax.rsqrt(jnp.maximum(jnp.max(squared), 1e-300))
    price = level
    point = systems.start(problem.boxes, level * ones, price)
    slack = (1 - level**2 * squared) / 2
    no = jnp.array(False)
    return State(point, price / slack, slack, tangent, jnp.zeros((), jnp.int32), no, no)


def directions(problem: Problem, point: Point, tangent: Array) -> tuple[Array, Array]:
    """Coefficients of p_j in the points z_i, and p_j."""
    taken = jnp.where(problem.boxes.real, point.products, 0)
    coefficients = jnp.where(tangent, point.multipliers[None], 0) - taken
    return coefficients, jnp.dot(coefficients, problem.points, precision=PRECISION)


def outweighs(problem: Problem, state: State, slack: Array) -> Array:
    """Whether neurons live: at a KKT point a weight is 0, or its slack. Weights are of the unit
    1 / |z|, so that the answer does not depend on that of the data."""
    return problem.longest * state.weight > slack


def _step(problem: Problem, state: State) -> State:
    """A predictor and corrector step; then neurons that crossed a sample renew their tangents."""
    boxes, points = problem.boxes, problem.points
    point, a, slack, tangent = state.point, state.weight, state.slack, state.tangent
    p = directions(problem, point, tangent)[1]
    along = jnp.dot(p, points.T, precision=PRECISION)
    across = jnp.where(boxes.real, along, 0)
    on = jnp.where(tangent, 1.0, 0.0)
    own = on * along
    missing = (1 - jnp.sum(p**2, axis=1)) / 2 - slack
    solve = direction_blocks.solver(points, boxes, point, on, p, a, slack)
    over_multipliers, over_products = systems.prices(boxes, point)
    margin_error = jnp.dot(a, own, precision=PRECISION) - jnp.where(problem.real, 1.0, -1.0)
    over_multipliers += margin_error
    over_products -= a[:, None] * across

    now = systems.products(boxes, point)
    pairs = point.multipliers.size + 2 * jnp.sum(boxes.real, dtype=p.dtype) + a.size
    mean = (systems.total(now) + jnp.dot(slack, a, precision=PRECISION)) / pairs

    def move(change: systems.Products, by_weight: Array) -> tuple[Point, Array, Array, Array]:
        """The step of the point, of the weights, and of the slack to first and second order."""
        share = (by_weight - a * missing) / slack
        gradient = (
            over_multipliers + jnp.dot(share, own, precision=PRECISION),
            over_products - share[:, None] * across,
        )
        step = systems.direction(boxes, solve, point, gradient, change)
        by_p = directions(problem, step, tangent)[1]
        by_slack = missing - jnp.sum(p * by_p, axis=1)
        return step, (by_weight - a * by_slack) / slack, by_slack, jnp.sum(by_p**2, axis=1) / 2

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
    # No lower than asked: prices near rounding would spoil the margins.
    size = jnp.sum(jnp.where(problem.real, point.multipliers, 0))
    target = jnp.maximum(target, 0.1 * ENOUGH * size / pairs)
    extra = systems.second_order(boxes, step)
    wanted = jax.tree.map(lambda a, b: target - a - b, now, extra)
    best = move(wanted, target - slack * a - by_slack * by_weight + a * turn)
    far = jnp.minimum(1, 0.98 * length(*best))
    step, by_weight, by_slack, turn = best
    fresh = state._replace(
        point=systems.moved(point, step, far),
        weight=a + far * by_weight,
        slack=slack + far * by_slack - far**2 * turn,
        steps=state.steps + 1,
    )
    ok = all_of(jnp.stack([all_of(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(fresh)]))
    fresh = jax.tree.map(partial(jnp.where, ok), fresh, state)
    fresh = _renewed(problem, fresh)
    still = all_of(fresh.tangent == tangent)
    left = mean * pairs / size
    error = jnp.max(jnp.where(problem.real, jnp.abs(over_multipliers), 0))
    error = jnp.maximum(error, jnp.max(jnp.abs(missing)))
    return fresh._replace(done=ok & still & (left <= ENOUGH) & (error <= ERROR), stuck=~ok)


def _renewed(problem: Problem, state: State) -> State:
    """Tangents where the neurons' directions are now, unless the network misses the margins.

    New tangents may lengthen p_j beyond 1. The slack is then as large as what it misses, so that
    it leaves the steps room.
    """
    points = problem.points
    along = jnp.dot(
        directions(problem, state.point, state.tangent)[1], points.T, precision=PRECISION
    )
    y = jnp.where(problem.own, 1.0, -1.0)
    q = jnp.dot(state.weight, y * relu(along), precision=PRECISION)
    classifies = jnp.min(jnp.where(problem.real, q, jnp.inf)) > LEAST_MARGIN
    # Those that end in the network too, however little they weigh there: their tangents count.
    heavy = state.weight > LEAST_WEIGHT * jnp.max(state.weight)
    live = heavy | outweighs(problem, state, state.slack)
    new = jnp.where((live & classifies)[:, None], problem.own & (along > 0), state.tangent)
    squared = jnp.sum(directions(problem, state.point, new)[1] ** 2, axis=1)
    roomy = jnp.maximum(state.slack, jnp.abs(1 - squared) / 2)
    changed = any_of(new != state.tangent, axis=1)
    return state._replace(tangent=new, slack=jnp.where(changed, roomy, state.slack))


def solved(problem: Problem, state: State, max_steps: Array) -> State:
    """The state where the conditions hold, or where the steps have run out."""

    def going(state: State) -> Array:
        return ~(state.done | state.stuck) & (state.steps < max_steps)

    return jax.lax.while_loop(going, partial(_step, problem), state)
