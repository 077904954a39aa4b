"""The multipliers and slopes that bring sum_i lambda_i y_i g_i closest to theta.

A convex quadratic program in lambda_i >= 0 and, at kinks, in lambda_i sigma'_ij, solved by an
interior-point method. Letters and conditions as in `certificate`.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkkt import networks
from jaxkkt.kkt import kink_blocks, systems, variables
from jaxkkt.kkt.systems import Boxes, Point
from jaxkkt.networks import PRECISION, Params, relu
from jaxkkt.numerics.truths import all_of

ITERATIONS = 60
# Interior-point steps end when the products that should vanish sum to this share of |theta|^2, or
# of the squared residual. A residual of 1e-7 is then right to a few percent, larger ones to 1e-9.
ENOUGH = 1e-15
ENOUGH_OF_RESIDUAL = 1e-9
# Preactivations below this share of |(w_j, b_j)| |(x_i, 1)| are 0.
ROUNDING = 1e-14


class Problem(NamedTuple):
    """The least squares min |theta - sum_i lambda_i y_i g_i|^2 / 2, theta at min margin 1.

    gram: z_i . z_l for z_i = (x_i, 1), or x_i without biases. pull: y_i v_j,
    hidden: relu(w_j . x_i + b_j). corner, linear: the second and first derivatives over lambda of
    what each neuron's active samples give. size: |theta|^2.
    """

    gram: Float[Array, "m m"]
    pre: Float[Array, "m k"]
    pull: Float[Array, "m k"]
    hidden: Float[Array, "m k"]
    active: Bool[Array, "m k"]
    boxes: Boxes
    neurons: Int[Array, " w"]
    corner: Float[Array, "m m"]
    linear: Float[Array, " m"]
    size: Float[Array, ""]


def problem_of(
    theta: Params,
    x: Array,
    y: Array,
    kinked: Array,
    w: int,
    n: int,
    trained: tuple[str, ...] | None,
) -> Problem:
    """The problem of a network, with free slopes at up to n kinks of each of w neurons.

    Taken are the neurons with most kinks; the slopes of all other pairs are 1[pre > 0].
    """
    pre = networks.preactivations(theta, x)
    gram = variables.gram(x, trained)
    _, neurons = jax.lax.top_k(jnp.sum(kinked, axis=0, dtype=jnp.int32), w)
    mine = kinked[:, neurons].T
    free, sample = jax.lax.top_k(mine.astype(jnp.int32), n)
    boxes = Boxes(sample, free > 0)
    boxed = jnp.zeros_like(kinked).at[sample, neurons[:, None]].max(boxes.real)
    # Beyond rounding: a sign that is noise may differ wherever the compiler computes it anew.
    active = (pre > ROUNDING * _sizes(theta, x, trained)) & ~boxed
    pull, hidden = y[:, None] * theta.v[None], relu(pre)
    on = jnp.where(active, pull, 0)
    outputs = y[:, None] * hidden
    corner = gram * jnp.dot(on, on.T, precision=PRECISION)
    corner += jnp.dot(outputs, outputs.T, precision=PRECISION)
    linear = jnp.sum(on * pre, axis=1) + jnp.dot(outputs, theta.v, precision=PRECISION)
    size = networks.squared_norm(theta)
    return Problem(gram, pre, pull, hidden, active, boxes, neurons, corner, linear, size)


class _Terms(NamedTuple):
    """The quadratic program of a problem: its matrix, its linear part over tau and over lambda, and
    the mean size of the pulls."""

    matrix: kink_blocks.Matrix
    over_products: Float[Array, "w n"]
    over_multipliers: Float[Array, " m"]
    size: Float[Array, ""]


def _terms(problem: Problem, y: Array) -> _Terms:
    boxes, neurons, real = problem.boxes, problem.neurons, y != 0
    pull = jnp.where(boxes.real, problem.pull[boxes.sample, neurons[:, None]], 0)
    grams = problem.gram[boxes.sample[:, :, None], boxes.sample[:, None, :]]
    on = jnp.where(problem.active, problem.pull, 0)[:, neurons].T
    matrix = kink_blocks.Matrix(
        blocks=pull[:, :, None] * pull[:, None, :] * grams,
        cross=pull[:, :, None] * problem.gram[boxes.sample] * on[:, None, :],
        corner=problem.corner,
    )
    linear = pull * problem.pre[boxes.sample, neurons[:, None]]
    # The mean size of the pulls: their sum is twice that of the margins, which may be below 0.
    size = jnp.sum(jnp.where(real, jnp.abs(problem.linear), 0)) / jnp.sum(real, dtype=y.dtype)
    size = jnp.where(size > 0, size, 1)
    # A padded sample's multiplier costs as much as a real one gains, and goes to 0.
    return _Terms(matrix, linear, jnp.where(real, problem.linear, -size), size)


def _gradient(boxes: Boxes, terms: _Terms, point: Point) -> tuple[Array, Array]:
    """Of the Lagrangian, over lambda and tau."""
    matrix = terms.matrix
    over_multipliers, over_products = systems.prices(boxes, point)
    tau = jnp.where(boxes.real, point.products, 0)
    mixed = jnp.einsum("wnm,m->wn", matrix.cross, point.multipliers, precision=PRECISION)
    blocks = jnp.einsum("wij,wj->wi", matrix.blocks, tau, precision=PRECISION)
    corner = jnp.dot(matrix.corner, point.multipliers, precision=PRECISION)
    corner += jnp.einsum("wnm,wn->m", matrix.cross, tau, precision=PRECISION)
    return (
        corner - terms.over_multipliers + over_multipliers,
        blocks + mixed - terms.over_products + over_products,
    )


@jax.custom_jvp
def nearest(problem: Problem, y: Array) -> Point:
    """The multipliers and products of the least squares, by Mehrotra's predictor and corrector.

    Its derivatives, in either mode, are those of the conditions that hold at its end.
    """
    boxes, real = problem.boxes, y != 0
    m = y.size
    terms = _terms(problem, y)
    pairs = m + 2 * jnp.sum(boxes.real, dtype=y.dtype)

    def step(point: Point) -> tuple[Point, Array]:
        now = systems.products(boxes, point)
        mean = systems.total(now) / pairs
        slope = _gradient(boxes, terms, point)
        solve = kink_blocks.solver(boxes, point, terms.matrix)
        move = partial(systems.direction, boxes, solve, point, slope)
        ahead = move(jax.tree.map(jnp.negative, now))
        length = jnp.minimum(1, systems.longest(boxes, point, ahead))
        there = systems.total(systems.products(boxes, systems.moved(point, ahead, length))) / pairs
        target = mean * (there / mean) ** 3
        extra = systems.second_order(boxes, ahead)
        wanted = jax.tree.map(lambda a, b: target - a - b, now, extra)
        best = move(wanted)
        length = jnp.minimum(1, 0.99 * systems.longest(boxes, point, best))
        left = mean * pairs / problem.size
        # The best multipliers' squared residual is |theta|^2 - theta . sum_i lambda_i y_i g_i.
        gained = jnp.vdot(
            problem.linear, jnp.where(real, point.multipliers, 0), precision=PRECISION
        )
        products = jnp.where(boxes.real, point.products, 0)
        gained += jnp.vdot(terms.over_products, products, precision=PRECISION)
        enough = jnp.maximum(ENOUGH, ENOUGH_OF_RESIDUAL * (1 - gained / problem.size))
        return systems.moved(point, best, length), left > enough

    def going(carry: tuple[Point, Array, Array]) -> Array:
        _, open_, trips = carry
        return (trips < ITERATIONS) & open_

    def body(carry: tuple[Point, Array, Array]) -> tuple[Point, Array, Array]:
        point, _, trips = carry
        new, open_ = step(point)
        ok = all_of(jnp.stack([all_of(jnp.isfinite(leaf)) for leaf in new]))
        point = jax.tree.map(partial(jnp.where, ok), new, point)
        return point, ok & open_, trips + 1

    even = jnp.sum(jnp.where(real[:, None] & real[None], problem.corner, 0))
    level = terms.size * jnp.sum(real, dtype=y.dtype) / jnp.where(even > 0, even, 1)
    point = systems.start(boxes, jnp.full(m, level), terms.size * level)
    carry = (point, jnp.array(True), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going, body, carry)[0]


@nearest.defjvp
def _moves(primals: tuple[Problem, Array], tangents: tuple[Problem, Array]) -> tuple[Point, Point]:
    """By how much the point must move for the gradient to stay as it is, and the products, too."""
    problem, y = primals
    point = nearest(problem, y)

    def gradient(problem: Problem) -> tuple[Array, Array]:
        return _gradient(problem.boxes, _terms(problem, y), point)

    _, slope = jax.jvp(gradient, primals[:1], tangents[:1])
    solve = kink_blocks.solver(problem.boxes, point, _terms(problem, y).matrix)
    still = jax.tree.map(jnp.zeros_like, systems.products(problem.boxes, point))
    return point, systems.direction(problem.boxes, solve, point, slope, still)


def multipliers(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    trained: tuple[str, ...] | None = None,
) -> Float[Array, " m"]:
    """lambda >= 0 that brings sum_i lambda_i y_i g_i closest to theta, with sigma' = 1[pre > 0].

    theta is taken as it is; 0 for padded samples. NaN where network or data are NaN or infinite, or
    products of theirs are beyond the largest number. Works in the precision of its arguments.
    `trained` as in `certificate`; traced biases of 0 are taken as trained where it is not given.
    Has derivatives by `jax.grad` and `jax.jacfwd`.
    Raises ValueError for data that do not fit the network, and labels other than -1 and 1 (0 for
    padding, a row of zeros).
    """
    params, x, y = networks.checked_samples(params, x, y)
    trained = variables.chosen(params, trained)
    free = jnp.zeros((x.shape[0], params.v.size), bool)
    problem = problem_of(params, x, y, free, 0, 0, trained)
    finite = jnp.array([all_of(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(problem)])
    found = jnp.where(all_of(finite), nearest(problem, y).multipliers, jnp.nan)
    return jnp.where(y != 0, found, 0)


def kinks(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    tolerance: float | Array,
    trained: tuple[str, ...] | None = None,
) -> Bool[Array, "m k"]:
    """|w_j . x_i + b_j| <= tolerance |(w_j, b_j)| |(x_i, 1)| for neurons with v_j != 0.

    Without biases |w_j . x_i| <= tolerance |w_j| |x_i|; `trained` as in `multipliers`. No pair of a
    padded sample is at a kink. Errors as in `multipliers`, and for a tolerance outside [0, 1).
    """
    if not isinstance(tolerance, jax.core.Tracer) and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
    params, x, y = networks.checked_samples(params, x, y)
    return _kinks(params, x, y, tolerance, variables.chosen(params, trained))


@partial(jax.jit, static_argnames="trained")
def _kinks(
    params: Params, x: Array, y: Array, tolerance: float | Array, trained: tuple[str, ...] | None
) -> Bool[Array, "m k"]:
    near = jnp.abs(networks.preactivations(params, x)) <= tolerance * _sizes(params, x, trained)
    return near & (y != 0)[:, None] & (params.v != 0)[None]


def _sizes(params: Params, x: Array, trained: tuple[str, ...] | None) -> Array:
    """|(w_j, b_j)| |z_i|, what a preactivation is small against."""
    rows = jnp.sqrt(jnp.sum(params.w**2, axis=1) + params.b**2)
    return variables.lengths(x, trained)[:, None] * rows[None]
