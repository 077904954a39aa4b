"""What the lemmas assume, and the sizes that they speak of."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxkkt.lazy import distances
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import lengths, ratio
from jaxkkt.numerics.requirements import require_positive, require_probability
from jaxkkt.numerics.truths import any_of
from jaxkkt.theory.checks import Assumption, below

Point = Float[Array, " d"]
Real = float | Float[Array, ""]
# How far |x| may be from 1 where |x| = 1 is assumed.
ROUNDING = 1e-5


def sizes(start: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The width k and the dimension d of a start, without its padding."""
    k, d = (jnp.sum(there, dtype=jnp.int32) for there in (neurons(start), coordinates(start)))
    return k.astype(start.w.dtype), d.astype(start.w.dtype)


def neurons(start: Params) -> Bool[Array, " k"]:
    """Which neurons are no padding."""
    return any_of(start.w != 0, axis=1) | (start.b != 0) | (start.v != 0)


def coordinates(start: Params) -> Bool[Array, " d"]:
    """Which coordinates are no padding."""
    return any_of(start.w != 0, axis=0)


def of_unit_length(x: Point, name: str = "|x| = 1") -> dict[str, Assumption]:
    return {name: below(jnp.abs(jnp.linalg.norm(x) - 1), ROUNDING)}


def inside_ball(params: Params, start: Params, x: Point, c0: Real) -> dict[str, Assumption]:
    """The lemmas' premises, with the edge of the ball inside: to the rounding of w."""
    top, eps = jnp.abs(params.v), jnp.finfo(params.w.dtype).eps
    furthest = jnp.max(ratio(distances(params, start), top))
    rounding = c0 * ROUNDING + 4 * eps * jnp.max(ratio(lengths(params.w), top))
    return {
        **of_unit_length(x),
        "|w_j - w_j,0| <= C0 / sqrt(k)": below(furthest, c0 + rounding),
        **without_biases(params, start),
        **_of_unit_top(params, start),
    }


def without_biases(*networks: Params) -> dict[str, Assumption]:
    """Definition 2.1 has none."""
    largest = jnp.max(jnp.array([jnp.max(jnp.abs(one.b)) for one in networks]))
    return {"no biases": below(largest, 0.0)}


def _of_unit_top(*networks: Params) -> dict[str, Assumption]:
    """Definition 2.1: v_j = +-1/sqrt(k), at the start and after training."""
    start = networks[-1]
    there, root = neurons(start), jnp.sqrt(sizes(start)[0])
    off = [jnp.where(there, jnp.abs(jnp.abs(one.v) * root - 1), 0) for one in networks]
    moved = jnp.abs(networks[0].v - start.v) * root
    furthest = jnp.max(jnp.array([jnp.max(a) for a in (*off, moved)]))
    return {"v_j = +-1/sqrt(k), not trained": below(furthest, ROUNDING)}


def require(gamma: Any = None, **numbers: Any) -> None:
    require_positive(**numbers)
    if gamma is not None:
        require_probability(gamma=gamma)
