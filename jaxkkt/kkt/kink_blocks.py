"""Newton systems of a certificate: neurons eliminated by blocks of the size of their kinks.

Few kinks a neuron make small blocks. Letters as in `systems`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt.kkt import systems
from jaxkkt.kkt.systems import Boxes, Point
from jaxkkt.networks import PRECISION


class Matrix(NamedTuple):
    """Second derivatives: tau_j with tau_j, tau_j with lambda, lambda with lambda."""

    blocks: Float[Array, "w n n"]
    cross: Float[Array, "w n m"]
    corner: Float[Array, "m m"]


def solver(boxes: Boxes, point: Point, matrix: Matrix) -> systems.Solve:
    """Solves with `matrix` and the curvature of the bounds.

    Blocks are factored one at a time: on a CPU, jaxlib's batched LAPACK kernels wait for threads
    of the pool that they run in, so two programs that factor batches at once would wait for each
    other for ever.
    """
    w, n = boxes.sample.shape
    m = point.multipliers.size
    low, up = systems.curvatures(boxes, point)
    rows, places = jnp.arange(w)[:, None], jnp.arange(n)[None]
    blocks = matrix.blocks.at[:, places[0], places[0]].add(jnp.where(boxes.real, low + up, 1))
    cross = matrix.cross.at[rows, places, boxes.sample].add(-up)

    def one(neuron: tuple[Array, Array]) -> tuple[Array, Array]:
        block, cross = neuron
        inverse = systems.inverse_factor(block)
        return inverse, jnp.dot(inverse, cross, precision=PRECISION)

    # A loop over nothing raises where jit is off (`jax.disable_jit`).
    inverse, half = jax.lax.map(one, (blocks, cross)) if w else (blocks, cross)
    flat = half.reshape(w * n, m)
    corner = matrix.corner - jnp.dot(flat.T, flat, precision=PRECISION)
    corner += jnp.diag(systems.gather(boxes, up, m) + point.positive / point.multipliers)
    at_corner = systems.corner_solver(corner)

    def solve(on_multipliers: Array, on_products: Array) -> tuple[Array, Array]:
        eliminated = jnp.einsum("wij,wj->wi", inverse, on_products, precision=PRECISION)
        seen = jnp.dot(eliminated.reshape(-1), flat, precision=PRECISION)
        by_multipliers = at_corner(on_multipliers - seen)
        rest = eliminated - jnp.dot(half, by_multipliers, precision=PRECISION)
        by_products = jnp.einsum("wij,wi->wj", inverse, rest, precision=PRECISION)
        return by_multipliers, jnp.where(boxes.real, by_products, 0)

    return solve
