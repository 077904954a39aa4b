"""N(x) = sum_j v_j relu(w_j . x + b_j): outputs, margins, gradients over inputs and parameters."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxkkt.numerics.requirements import (
    as_arrays,
    as_samples,
    on_device,
    require_dimension,
    require_labels,
    require_precision,
    require_rows,
)

# Every matrix product in the package names its precision: accelerators otherwise round
# float32 operands to TF32 or bfloat16 without saying so.
PRECISION = jax.lax.Precision.HIGHEST

# jax.nn.relu has derivative 0 at 0, which makes zero padding inert; jnp.maximum(x, 0) has 1/2.
relu = jax.nn.relu


class Params(NamedTuple):
    """Parameters of N(x) = sum_j v_j relu(w_j . x + b_j); one row a neuron.

    The type stands for the kind of network: depth 2 and plain ReLU. Functions that take `Params`
    hold for this kind alone; another kind brings a type, outputs and gradients of its own.

    Shapes: w (k, d), b (k,), v (k,). Vardi et al. (2022), Section 2.
    """

    w: Float[Array, "*lanes k d"]
    b: Float[Array, "*lanes k"]
    v: Float[Array, "*lanes k"]


def preactivations(
    params: Params, x: Float[Array | np.ndarray, "*m d"] | Sequence
) -> Float[Array, "*m k"]:
    """w_j . x_i + b_j for every sample and neuron. Errors as in `apply`."""
    params = checked(params)
    (x,) = as_arrays(params.w.dtype, x=x)
    if x.ndim == 0:
        raise ValueError("x must hold a point or a stack of them, shape (..., d), got ()")
    check_parameters(params, x.shape[-1])
    pre = jnp.dot(x, params.w.T, precision=PRECISION)
    return pre + jnp.broadcast_to(params.b, pre.shape)


def apply(params: Params, x: Float[Array | np.ndarray, "*m d"] | Sequence) -> Float[Array, "*m"]:
    """N(x) = sum_j v_j relu(w_j . x + b_j), for one input or a stack of them.

    Raises ValueError unless the network and x hold floating-point numbers of one precision that
    JAX keeps, and points of the network's dimension; lists of numbers take the precision of the
    network.
    """
    return jnp.dot(relu(preactivations(params, x)), params.v, precision=PRECISION)


def margins(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
) -> Float[Array, " m"]:
    """q_i = y_i N(x_i); positive where the sample is classified correctly, 0 for padding.

    Errors as in `apply`, and for labels other than -1 and 1, and 0 for padding (a row of zeros).
    """
    params = checked(params)
    points, labels = as_arrays(params.w.dtype, x=x, y=y)
    require_labels(y, x)
    return labels * apply(params, points)


def value_and_pullback(
    params: Params, x: Float[Array | np.ndarray, "m d"] | Sequence
) -> tuple[Float[Array, " m"], Callable[[Float[Array, " m"]], Params]]:
    """N(x_i), and the map from c to the gradient of sum_i c_i N(x_i) over the parameters.

    With c_i = dF / dN(x_i) that is the gradient of a function F of the outputs. relu'(0) = 0.
    Cost: one product of m k d for the outputs, one for the gradient. Errors as in `apply`.
    """
    params = checked(params)
    (x,) = as_arrays(params.w.dtype, x=x)
    require_rows(x=x)
    outputs, pull = value_and_pullback_from(preactivations(params, x), params.v)

    def pullback(c: Float[Array, " m"]) -> Params:
        on_pre, on_v = pull(c)
        on_w = jnp.dot(x.T, on_pre, precision=PRECISION).T
        # Not a sum over the rows: of 64 rows of 100,000 that takes XLA ten times as long on a CPU.
        on_b = jnp.dot(jnp.ones_like(c), on_pre, precision=PRECISION)
        return Params(w=on_w, b=on_b, v=on_v)

    return outputs, pullback


def value_and_pullback_from(
    pre: Float[Array, "m k"], v: Float[Array, " k"]
) -> tuple[
    Float[Array, " m"],
    Callable[[Float[Array, " m"]], tuple[Float[Array, "m k"], Float[Array, " k"]]],
]:
    """`value_and_pullback` over the preactivations and v, where the preactivations are known."""
    hidden = relu(pre)

    def pull(c: Float[Array, " m"]) -> tuple[Float[Array, "m k"], Float[Array, " k"]]:
        on_pre = jnp.where(pre > 0, c[:, None] * v[None], 0)
        return on_pre, jnp.dot(c, hidden, precision=PRECISION)

    return jnp.dot(hidden, v, precision=PRECISION), pull


def value_and_input_gradient(
    params: Params, x: Float[Array | np.ndarray, "*m d"] | Sequence
) -> tuple[Float[Array, "*m"], Float[Array, "*m d"]]:
    """N(x) and grad N(x) = sum_j v_j 1[w_j . x + b_j > 0] w_j, for one input or a stack of them.

    Cost: two products of m k d. Errors as in `apply`.
    """
    return value_and_input_gradient_from(preactivations(params, x), params)


def value_and_input_gradient_from(
    pre: Float[Array, "*m k"], params: Params
) -> tuple[Float[Array, "*m"], Float[Array, "*m d"]]:
    """`value_and_input_gradient` where the preactivations are known, for one product of m k d."""
    outputs = jnp.dot(relu(pre), params.v, precision=PRECISION)
    active = jnp.where(pre > 0, params.v, 0)
    return outputs, jnp.dot(active, params.w, precision=PRECISION)


def squared_norm(params: Params) -> Float[Array, ""]:
    """||theta||^2 = sum_j ||w_j||^2 + b_j^2 + v_j^2, of one network. Errors as in `apply`."""
    params = checked_network(params)
    return sum((jnp.vdot(p, p, precision=PRECISION) for p in params), jnp.zeros((), params.v.dtype))


def pad(params: Params, width: int, dim: int) -> Params:
    """The same function, of one network, with zero neurons and coordinates up to (width, dim).

    Zero neurons have zero gradients and stay zero (relu'(0) = 0); so does the weight of an
    input coordinate that is zero on every sample. Raises ValueError when asked to shrink, and as
    `apply` does.
    """
    params = checked_network(params)
    k, d = params.w.shape
    if width < k or dim < d:
        raise ValueError(
            f"cannot pad a network of width {k} and dimension {d} to width {width} and "
            f"dimension {dim}: padding only adds; ask for at least ({k}, {d})"
        )
    more = width - k
    return Params(
        w=jnp.pad(params.w, ((0, more), (0, dim - d))),
        b=jnp.pad(params.b, (0, more)),
        v=jnp.pad(params.v, (0, more)),
    )


def unpad(params: Params, width: int, dim: int) -> Params:
    """The first neurons and coordinates of one network: what was given to `pad`.

    Raises ValueError for more than there are, for sizes below 1, and for networks that are stacked.
    """
    if params.w.ndim != 2:
        raise ValueError(
            f"a network has w (k, d), got {params.w.shape}: of networks that are stacked, map over "
            "them by jax.vmap"
        )
    if not (1 <= width <= params.w.shape[0] and 1 <= dim <= params.w.shape[1]):
        raise ValueError(f"w of shape {params.w.shape} has no part of shape {(width, dim)}")
    return Params(params.w[:width, :dim], params.b[:width], params.v[:width])


def checked(params: Params) -> Params:
    """The parameters as JAX arrays; ValueError unless they are `Params` of arrays as in `apply`."""
    if not isinstance(params, Params):
        raise ValueError(
            "a network must be given as jaxkkt.Params(w, b, v), the parameters of a depth-2 ReLU "
            f"network, got {type(params).__name__}"
        )
    require_precision(**params._asdict())
    return Params(*map(on_device, params))


def checked_network(params: Params) -> Params:
    """One network, on inputs of any dimension, as JAX arrays. Errors as in `check_parameters`."""
    params = checked(params)
    check_parameters(params, params.w.shape[-1] if params.w.ndim else 1)
    return params


def checked_samples(params: Params, x: Any, y: Any) -> tuple[Params, Array, Array]:
    """One network and samples (n, d) with labels (n,), as JAX arrays. Errors as in `margins`."""
    params = checked(params)
    x, y = as_samples(params.w.dtype, x=x, y=y)
    check_parameters(params, x.shape[1])
    return params, x, y


def check_parameters(params: Params, dim: int) -> None:
    """Raises ValueError unless these are the parameters of one network on inputs of dimension d.

    Their precision is checked as in `apply`.
    """
    checked(params)
    require_dimension(dim)
    k = params.v.shape[0] if params.v.ndim else 0
    if k < 1 or (params.w.shape, params.b.shape, params.v.shape) != ((k, dim), (k,), (k,)):
        hint = ": of networks that are stacked, map over them by jax.vmap"
        raise ValueError(
            f"a network on inputs of dimension {dim} needs w (k, {dim}), b (k,), v (k,) with "
            f"k >= 1, got w {params.w.shape}, b {params.b.shape}, v {params.v.shape}"
            f"{hint if params.w.ndim > 2 else ''}"
        )
