"""Interior-point methods over multipliers and their products with slopes: what they share.

A certificate and a polish look for multipliers lambda_i >= 0 and, where neuron j has a kink at
sample i, for products tau_ij = lambda_i sigma'_ij with 0 <= tau_ij <= lambda_i. Products of
different neurons meet in lambda alone, so the matrix of every step is an arrow: neurons are
eliminated one by one, and a corner of the size of lambda is left. How they are differs:
`kink_blocks`, `direction_blocks`.

Letters: m samples; w neurons with at most n boxed samples each.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from jaxkkt.networks import PRECISION

# Relative to a unit diagonal: keeps the corner factorable where samples repeat.
RIDGE = 1e-13

# From the right sides over lambda and tau to their changes.
Solve = Callable[[Float[Array, " m"], Float[Array, "w n"]], tuple[Array, Array]]


class Boxes(NamedTuple):
    """Whose slopes are free: `sample` i of each neuron, where `real`; the rest is padding."""

    sample: Int[Array, "w n"]
    real: Bool[Array, "w n"]


class Point(NamedTuple):
    """Multipliers, products, and the prices of lambda >= 0, tau >= 0 and tau <= lambda.

    A direction in which a point moves has the same parts.
    """

    multipliers: Float[Array, " m"]
    products: Float[Array, "w n"]
    positive: Float[Array, " m"]
    lower: Float[Array, "w n"]
    upper: Float[Array, "w n"]


class Products(NamedTuple):
    """The complementary products of a point, or what they should become."""

    positive: Float[Array, " m"]
    lower: Float[Array, "w n"]
    upper: Float[Array, "w n"]


def start(boxes: Boxes, multipliers: Float[Array, " m"], price: Float[Array, ""]) -> Point:
    """Products in the middle of their boxes, and every complementary product equal to `price`."""
    middle = jnp.where(boxes.real, multipliers[boxes.sample] / 2, 1)
    edge = jnp.where(boxes.real, price / middle, 1)
    return Point(multipliers, middle, price / multipliers, edge, edge)


def room(boxes: Boxes, point: Point) -> Float[Array, "w n"]:
    """lambda_i - tau_ij, and 1 for padding."""
    top = jnp.where(boxes.real, point.multipliers[boxes.sample], 2)
    return top - point.products


def products(boxes: Boxes, point: Point) -> Products:
    """lambda nu, tau alpha, (lambda - tau) beta; 0 for padding."""
    return Products(
        point.multipliers * point.positive,
        jnp.where(boxes.real, point.products * point.lower, 0),
        jnp.where(boxes.real, room(boxes, point) * point.upper, 0),
    )


def total(products: Products) -> Float[Array, ""]:
    return sum((jnp.sum(p) for p in products), jnp.zeros((), products.positive.dtype))


def prices(boxes: Boxes, point: Point) -> tuple[Float[Array, " m"], Float[Array, "w n"]]:
    """What the bounds add to the gradient: to that of lambda, and to that of tau."""
    upper = jnp.where(boxes.real, point.upper, 0)
    lower = jnp.where(boxes.real, point.lower, 0)
    return -point.positive - gather(boxes, upper, point.multipliers.size), upper - lower


def curvatures(boxes: Boxes, point: Point) -> tuple[Float[Array, "w n"], Float[Array, "w n"]]:
    """What the bounds add to the second derivatives: of tau >= 0, and of tau <= lambda."""
    low = jnp.where(boxes.real, point.lower / point.products, 0)
    return low, jnp.where(boxes.real, point.upper / room(boxes, point), 0)


def direction(
    boxes: Boxes,
    solve: Solve,
    point: Point,
    gradient: tuple[Float[Array, " m"], Float[Array, "w n"]],
    change: Products,
) -> Point:
    """The Newton step that cancels `gradient` and changes the complementary products by `change`.

    `gradient` is that of the Lagrangian, over lambda and tau; `solve` solves the Newton system.
    """
    space = room(boxes, point)
    low, up = change.lower / point.products, jnp.where(boxes.real, change.upper / space, 0)
    on_products = jnp.where(boxes.real, low - up - gradient[1], 0)
    on_multipliers = (
        gather(boxes, up, point.multipliers.size)
        + change.positive / point.multipliers
        - gradient[0]
    )
    by_multipliers, by_products = solve(on_multipliers, on_products)
    by_room = jnp.where(boxes.real, by_multipliers[boxes.sample] - by_products, 0)
    return Point(
        by_multipliers,
        by_products,
        (change.positive - point.positive * by_multipliers) / point.multipliers,
        jnp.where(boxes.real, (change.lower - point.lower * by_products) / point.products, 0),
        jnp.where(boxes.real, (change.upper - point.upper * by_room) / space, 0),
    )


def second_order(boxes: Boxes, step: Point) -> Products:
    """What a full step adds to the complementary products beyond its linear part."""
    by_room = jnp.where(boxes.real, step.multipliers[boxes.sample] - step.products, 0)
    return Products(
        step.multipliers * step.positive, step.products * step.lower, by_room * step.upper
    )


def longest(boxes: Boxes, point: Point, step: Point) -> Float[Array, ""]:
    """How many times the step can be taken before a bound is met."""
    by_room = jnp.where(boxes.real, step.multipliers[boxes.sample] - step.products, 0)
    lengths = [reach(a, b) for a, b in zip(point, step, strict=True)]
    return jnp.min(jnp.stack([*lengths, reach(room(boxes, point), by_room)]))


def reach(value: Float[Array, "..."], change: Float[Array, "..."]) -> Float[Array, ""]:
    """The largest t with value + t change >= 0 everywhere."""
    if value.size == 0:  # of which JAX's derivative is NaN
        return jnp.full((), jnp.inf, value.dtype)
    falls = change < 0
    return jnp.min(jnp.where(falls, value / jnp.where(falls, -change, 1), jnp.inf))


def moved(point: Point, step: Point, length: Float[Array, ""]) -> Point:
    return jax.tree.map(lambda a, b: a + length * b, point, step)


def gather(boxes: Boxes, values: Float[Array, "w n"], m: int) -> Float[Array, " m"]:
    """Sums over the neurons, for each sample."""
    return jnp.zeros(m, values.dtype).at[boxes.sample].add(values)


def inverse_factor(block: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The inverse of a positive definite block's Cholesky factor.

    Products with it are several times faster than substitutions in batches.
    """
    unit = jnp.eye(block.shape[0], dtype=block.dtype)
    return solve_triangular(jnp.linalg.cholesky(block), unit, lower=True)


def corner_solver(corner: Float[Array, "m m"]) -> Callable[[Float[Array, " m"]], Array]:
    """b -> x with corner x = b, once refined; the corner is positive semidefinite."""
    scale = jax.lax.rsqrt(jnp.diagonal(corner))
    scaled = corner * scale[:, None] * scale[None] + RIDGE * jnp.eye(scale.size, dtype=scale.dtype)
    factor = jnp.linalg.cholesky(scaled)

    def once(b: Array) -> Array:
        return scale * cho_solve((factor, True), scale * b)

    def solve(b: Array) -> Array:
        x = once(b)
        return x + once(b - jnp.dot(corner, x, precision=PRECISION))

    return solve
