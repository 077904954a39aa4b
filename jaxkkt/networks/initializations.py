"""Random networks to start from. A neuron's draw depends on the key and its row alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt.networks.depth2 import Params
from jaxkkt.numerics.arithmetic import root
from jaxkkt.numerics.keys import unrolled

Size = int | Int[Array, ""]
Scale = float | Float[Array, ""]


def torch_linear(
    key: PRNGKeyArray,
    width: Size,
    dim: Size,
    scale: Scale = 1.0,
    shape: tuple[int, int] | None = None,
) -> Params:
    """PyTorch's default for two `Linear` layers: uniform on +-1/sqrt(fan_in), times `scale`.

    fan_in is d for w and b and k for v. The experiments of Vardi et al. (2022) do not state
    their initialization; this is the default of the framework they name.

    A neuron's draw depends on the key and its row alone. With a static `shape` (k', d') the width
    and dimension may be traced: the network comes back padded with zeros to that shape, with the
    same numbers, but for rounding under `jit`, by keys of JAX's default kind; other keys, as "rbg"
    or without `jax_threefry_partitionable`, draw others at another shape. Raises ValueError for a
    width or dimension below 1 or beyond `shape`.
    """
    return _draw(lambda k, n: jax.random.uniform(k, n, minval=-1.0), key, width, dim, scale, shape)


def gaussian(
    key: PRNGKeyArray,
    width: Size,
    dim: Size,
    scale: Scale = 1.0,
    shape: tuple[int, int] | None = None,
) -> Params:
    """Normal draws of variance 1/fan_in, times `scale`: w, b ~ N(0, 1/d), v ~ N(0, 1/k).

    Arguments, padding and errors as in `torch_linear`.
    """
    return _draw(jax.random.normal, key, width, dim, scale, shape)


def lazy(
    key: PRNGKeyArray,
    width: Size,
    dim: Size,
    scale: Scale = 1.0,
    shape: tuple[int, int] | None = None,
    biases: bool = False,
) -> Params:
    """f(x) = k^(-1/2) sum_j a_j relu(w_j . x): w_j ~ N(0, I) times `scale`, a_j uniform on {-1, 1}.

    v_j = a_j / sqrt(k) and b = 0, or b_j ~ N(0, 1) times `scale` with `biases`. Made for training
    that moves w (and b) alone: `jk.protocols.lazy_flow`, `lazy_sgd`. Arguments, padding and errors
    as in `torch_linear`. Wang et al. (2022), Definition 2.1.
    """
    drawn = _draw(jax.random.normal, key, width, dim, 1.0, shape)
    # `_draw` divides by the square roots of the fan-in, the scale that v keeps.
    size = jnp.asarray(scale * root(dim, drawn.w), drawn.w.dtype)
    top = jnp.sign(drawn.v) / root(width, drawn.v)
    return Params(drawn.w * size, drawn.b * (size if biases else 0), top)


def check_sizes(shape: tuple[int, int] | None, **sizes: Size) -> tuple[int, int]:
    """The static shape to draw at; ValueError when a size is below 1, is no whole number, or does
    not fit it."""
    traced = [name for name, size in sizes.items() if isinstance(size, jax.core.Tracer)]
    if shape is None and traced:
        raise ValueError(f"traced sizes need the static `shape` to pad to: {', '.join(traced)}")
    for i, (name, size) in enumerate(sizes.items()):
        if name in traced:
            continue
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
        if not float(size).is_integer():
            raise ValueError(f"{name} must be a whole number, got {size}: round it first")
        if shape is not None and size > shape[i]:
            raise ValueError(f"{name} {size} does not fit the shape {shape}")
    return shape if shape is not None else tuple(int(size) for size in sizes.values())  # type: ignore[return-value]


def _draw(
    draw: Callable[[PRNGKeyArray, tuple[int, ...]], Array],
    key: PRNGKeyArray,
    width: Size,
    dim: Size,
    scale: Scale,
    shape: tuple[int, int] | None,
) -> Params:
    k, d = check_sizes(shape, width=width, dimension=dim)
    key = unrolled(key)

    def row(j: Array) -> Array:
        return draw(jax.random.fold_in(key, j), (d + 2,))

    rows = jax.vmap(row)(jnp.arange(k))
    live = jnp.arange(k, dtype=jnp.int32) < width
    columns = jnp.arange(d, dtype=jnp.int32) < dim
    # The draws of b and v come first: those of w then do not move when d grows.
    b, v, w = rows[:, 0], rows[:, 1], rows[:, 2:]
    return Params(
        w=jnp.where(live[:, None] & columns[None], w, 0) * (scale / root(dim, w)),
        b=jnp.where(live, b, 0) * (scale / root(dim, w)),
        v=jnp.where(live, v, 0) * (scale / root(width, v)),
    )
