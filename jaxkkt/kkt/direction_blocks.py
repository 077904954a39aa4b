"""Newton systems of a polish: neurons eliminated by blocks of the size of their directions.

Multipliers and products act through the directions p_j = sum_i (on_ij lambda_i - tau_ij) z_i alone,
with curvature M_j = a_j (1 + p_j p_j^T / slack_j); the bounds add low tau^2 + up (lambda - tau)^2.
Write tau = share lambda + xi with share = up / (low + up), and Z for the points as rows. Without
xi, what neuron j leaves over lambda is

    (on_j - share_j) Z (M_j^-1 + G_j)^-1 Z^T (on_j - share_j),
    G_j = sum_i z_i z_i^T / (low + up)_ij,   Q_j = 1 + a_j G_j,   u_j = Q_j^-1 p_j,
    (M_j^-1 + G_j)^-1 = a_j Q_j^-1 + force_j u_j u_j^T.

Letters as in `systems`, with n = m; r the dimension of the points z_i.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxkkt.kkt import systems
from jaxkkt.kkt.systems import Boxes, Point
from jaxkkt.networks import PRECISION

# At an open kink low + up vanishes, and 1 / (low + up) swamps Q_j: no less than this share of
# a_j |z_i|^2 is taken, and the solution refined once.
FLOOR = 1e-4
# Numbers in what a group of neurons adds to the corner at once: fits caches.
GROUP = 400_000


def solver(
    points: Float[Array, "m r"],
    boxes: Boxes,
    point: Point,
    on: Float[Array, "w m"],
    p: Float[Array, "w r"],
    weight: Float[Array, " w"],
    slack: Float[Array, " w"],
) -> systems.Solve:
    """Solves with the second derivatives of the Lagrangian and the curvature of the bounds."""
    real, a = boxes.real, weight[:, None]
    low, up = systems.curvatures(boxes, point)
    held = low + jnp.where(real, FLOOR * a * jnp.sum(points**2, axis=1)[None], 0)
    whole = jnp.where(real, held + up, 1)
    share = up / whole
    onto = on - share
    taken = jnp.where(real, a / whole, 0)
    inverse, corner = _eliminated(points, taken, jnp.sqrt(a) * onto)

    def thinned(e: Array) -> Array:
        """Q_j^-1 e."""
        half = jnp.einsum("wij,wj->wi", inverse, e, precision=PRECISION)
        return jnp.einsum("wij,wi->wj", inverse, half, precision=PRECISION)

    def along(f: Array) -> Array:
        return jnp.dot(f, points.T, precision=PRECISION)

    def together(coefficients: Array) -> Array:
        return jnp.dot(coefficients, points, precision=PRECISION)

    u = thinned(p)
    # p (1 - 1/Q) p as a sum of squares: the slack is small against p^2.
    lost = jnp.sum(taken * along(u) ** 2, axis=1) + jnp.sum((p - u) ** 2, axis=1)
    force = weight / (slack + lost)
    across = along(u) * onto
    corner += jnp.dot(across.T * force[None], across, precision=PRECISION)
    alone = point.positive / point.multipliers
    at_corner = systems.corner_solver(corner + jnp.diag(jnp.sum(held * share, axis=0) + alone))

    def pushed(e: Array) -> Array:
        return a * thinned(e) + (force * jnp.sum(u * e, axis=1))[:, None] * u

    def once(on_multipliers: Array, on_products: Array) -> tuple[Array, Array]:
        through = on_products / whole
        e = -together(through)
        felt = share * on_products - onto * along(pushed(e))
        by_multipliers = at_corner(on_multipliers + jnp.sum(felt, axis=0))
        e += together(onto * by_multipliers[None])
        by_products = share * by_multipliers[None] + through + along(pushed(e)) / whole
        return by_multipliers, jnp.where(real, by_products, 0)

    def product(by_multipliers: Array, by_products: Array) -> tuple[Array, Array]:
        by_p = together(on * by_multipliers[None] - by_products)
        bent = (weight / slack * jnp.sum(p * by_p, axis=1))[:, None] * p
        felt = along(a * by_p + bent)
        by_room = up * (by_multipliers[None] - by_products)
        over_multipliers = alone * by_multipliers + jnp.sum(on * felt + by_room, axis=0)
        return over_multipliers, jnp.where(real, low * by_products - by_room - felt, 0)

    def solve(on_multipliers: Array, on_products: Array) -> tuple[Array, Array]:
        found = once(on_multipliers, on_products)
        seen = product(*found)
        more = once(on_multipliers - seen[0], on_products - seen[1])
        return found[0] + more[0], found[1] + more[1]

    return solve


def _eliminated(
    points: Float[Array, "m r"], taken: Float[Array, "w m"], onto: Float[Array, "w m"]
) -> tuple[Float[Array, "w r r"], Float[Array, "m m"]]:
    """Inverse Cholesky factors of Q_j, and sum_j onto z Q_j^-1 z^T onto.

    A group of neurons at a time, each factored alone, for the reason in `kink_blocks`.
    """
    (w, m), r = taken.shape, points.shape[1]
    group = min(w, max(1, GROUP // (r * m)))
    unit = jnp.eye(r, dtype=points.dtype)

    def add(corner: Array, neurons: tuple[Array, Array]) -> tuple[Array, Array]:
        taken, onto = neurons
        weighted = (points.T[None] * taken[:, None]).reshape(-1, m)
        q = jnp.dot(weighted, points, precision=PRECISION).reshape(-1, r, r) + unit[None]
        inverse = jax.lax.map(systems.inverse_factor, q)
        half = jnp.dot(points, inverse.reshape(-1, r).T, precision=PRECISION).reshape(m, -1, r)
        flat = (half * onto.T[:, :, None]).reshape(m, -1)
        return corner + jnp.dot(flat, flat.T, precision=PRECISION), inverse

    def grouped(values: Array) -> Array:
        return jnp.pad(values, ((0, -w % group), (0, 0))).reshape(-1, group, m)

    nothing = jnp.zeros((m, m), points.dtype)
    corner, inverse = jax.lax.scan(add, nothing, (grouped(taken), grouped(onto)))
    return inverse.reshape(-1, r, r)[:w], corner
