"""The lazy regime: networks whose neurons stay in small balls around where they started.

f(x) = k^(-1/2) sum_j a_j relu(w_j . x), a_j = +-1 fixed, is a network with v_j = a_j / sqrt(k);
its initialization is `networks.lazy`. The lazy ball asks of every neuron j that
|w_j - w_j,0| <= C0 / sqrt(k) = C0 |v_j|. Wang et al. (2022), Definition 2.1.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxkkt.networks import Params, checked_network
from jaxkkt.numerics.arithmetic import lengths, ratio
from jaxkkt.numerics.requirements import (
    on_device,
    one_or_each,
    require_not_negative,
    require_precision,
    unshared,
)


def distances(params: Params, start: Params) -> Float[Array, " k"]:
    """|w_j - w_j,0| for every neuron; the derivative is 0 where that is 0.

    Raises ValueError for networks that do not fit together.
    """
    return lengths(_moved(params, start))


def project(
    params: Params,
    start: Params,
    weight_radius: float | Float[Array | np.ndarray, ""] | Float[Array | np.ndarray, " k"],
) -> Params:
    """The nearest network with |w_j - w_j,0| <= V = `weight_radius` for every j, each on its own.

    The radius is one for all neurons, or one for each. b and v stay as they are: with biases that
    move, (w_j, b_j) may end further from its start. Within V is to the rounding of the coordinates,
    eps |w_j|: smaller balls need float64. Raises ValueError
    for networks that do not fit together, and a radius that is negative or not finite, or neither
    one nor one for each neuron.
    Wang et al. (2022), Algorithm 1, line 11, for V = C0 / sqrt(k).
    """
    require_not_negative(weight_radius=weight_radius)
    moved = _moved(params, start)
    b, v = (on_device(unshared(leaf)) for leaf in (params.b, params.v))
    largest = one_or_each("weight_radius", weight_radius, v, "neuron")[:, None]
    length = lengths(moved)[:, None]
    inside = start.w + moved * ratio(largest, length)
    return Params(jnp.where(length > largest, inside, params.w), b, v)


def _moved(params: Params, start: Params) -> Float[Array, "k d"]:
    """w - w_0."""
    params, start = checked_network(params), checked_network(start)
    require_precision(w=params.w, start=start.w)
    if params.w.shape != start.w.shape:
        raise ValueError(
            f"a network and its start must have the same shape, got w {params.w.shape} and "
            f"{start.w.shape}"
        )
    return params.w - start.w
