"""Random labelled points, and the checks that every dataset passes before it is trained on."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt.networks import (
    PRECISION,
    Params,
    Size,
    check_parameters,
    check_sizes,
    checked,
)
from jaxkkt.numerics.arithmetic import ratio, root, scale
from jaxkkt.numerics.keys import unrolled
from jaxkkt.numerics.requirements import (
    as_arrays,
    as_samples,
    require_both_labels,
    require_precision,
    unshared,
)

# Norms are summed over so many coordinates at a time.
BLOCK = 16
# Draws of all labels, of which the first with both is taken: the theory asks for both.
LABEL_DRAWS = 32


class Dataset(NamedTuple):
    """Points x (m, d) with labels y (m,) in {-1, 1}. A padded sample is a zero row with y = 0."""

    x: Float[Array, "*lanes m d"]
    y: Float[Array, "*lanes m"]


def sphere(
    key: PRNGKeyArray, samples: Size, dim: Size, shape: tuple[int, int] | None = None
) -> Dataset:
    """x uniform on the sphere of radius sqrt(d), y uniform on {-1, 1} with both labels present.

    Vardi et al. (2022), Section 6. The labels are drawn until both occur, since the theory asks
    for both; without that a set of 4 samples has one class in an eighth of all draws.

    With a static `shape` (m', d') the sizes may be traced: the data come back padded to that
    shape, with the same numbers, but for rounding under `jit`, by keys of JAX's default kind; other
    keys, as "rbg" or without `jax_threefry_partitionable`, draw others at another dimension. Raises
    ValueError for fewer than 2 samples, a dimension below 1, or sizes beyond `shape`.
    """
    x, y = _draw(key, samples, dim, shape)
    norm = _norms(x)[:, None]
    return Dataset(x * ratio(root(dim, x), norm), y)


def unit_sphere(
    key: PRNGKeyArray, samples: Size, dim: Size, shape: tuple[int, int] | None = None
) -> Dataset:
    """`sphere` with |x| = 1: the inputs that the theorems of Wang et al. (2022) ask for."""
    x, y = sphere(key, samples, dim, shape)
    return Dataset(x / root(dim, x), y)


def gaussian(
    key: PRNGKeyArray, samples: Size, dim: Size, shape: tuple[int, int] | None = None
) -> Dataset:
    """x ~ N(0, I/d), so that |x| is about 1; labels, padding and errors as in `sphere`.

    Vardi et al. (2022), Section 6, the second data distribution.
    """
    x, y = _draw(key, samples, dim, shape)
    return Dataset(x / root(dim, x), y)


def pad(data: Dataset, samples: int, dim: int) -> Dataset:
    """Zero rows and zero coordinates up to (samples, dim); padded samples get the label 0.

    Raises ValueError when asked to shrink, for several datasets that are stacked, and unless both
    are arrays of floating-point numbers of one precision.
    """
    require_precision(**data._asdict())
    m, d = _sizes(data)
    if samples < m or dim < d:
        raise ValueError(
            f"cannot pad {m} samples of dimension {d} to {samples} samples of dimension {dim}: "
            f"padding only adds; ask for at least ({m}, {d})"
        )
    return Dataset(
        x=jnp.pad(data.x, ((0, samples - m), (0, dim - d))), y=jnp.pad(data.y, (0, samples - m))
    )


def unpad(data: Dataset, samples: int, dim: int) -> Dataset:
    """The first samples and coordinates: what was given to `pad`.

    Raises ValueError for more than there are, for sizes below 1, and for several datasets that are
    stacked.
    """
    m, d = _sizes(data)
    if not (1 <= samples <= m and 1 <= dim <= d):
        raise ValueError(f"x of shape {data.x.shape} has no part of shape {(samples, dim)}")
    return Dataset(data.x[:samples, :dim], data.y[:samples])


def _sizes(data: Dataset) -> tuple[int, int]:
    if data.x.ndim != 2:
        raise ValueError(
            f"data have x (m, d), got {data.x.shape}: of several that are stacked, map over them "
            "by jax.vmap"
        )
    m, d = data.x.shape
    return m, d


def half_distances(
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    others: Float[Array | np.ndarray, "m d"] | Sequence,
    labels: Float[Array | np.ndarray, " m"] | Sequence,
) -> Float[Array, " n"]:
    """Half the distance from every point to the nearest of `others` with the opposite label.

    min_j |x_i - others_j| / 2 over y_i labels_j < 0; inf where there is none. At perturbations of
    this size no classifier is robust at both ends, whatever it is. Padding is a zero row with the
    label 0. Off by up to 1e-3 of the points' norms, by rounding in float32. The derivative is 0
    where the distance is 0 or inf.
    Raises ValueError for other labels, points of several dimensions, and unless all hold
    floating-point numbers of one precision.
    """
    x, y = as_samples(x=x, y=y)
    others, labels = as_samples(x.dtype, x=others, y=labels)
    if x.shape[1] != others.shape[1]:
        told = f"others must have the points' dimension, {x.shape[1]}, got {others.shape}"
        raise ValueError(told)
    # A distance does not depend on its unit, whose derivative times inf would be NaN.
    unit = jax.lax.stop_gradient(jnp.maximum(scale(x), scale(others)))
    x, others = x / unit, others / unit  # squares in other units may not be representable
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(others**2, axis=1)[None]
    squared = squares - 2 * jnp.dot(x, others.T, precision=PRECISION)
    opposite = y[:, None] * labels[None] < 0
    nearest = jnp.min(jnp.where(opposite, squared, jnp.inf), axis=1, initial=jnp.inf)
    moves = (nearest > 0) & (nearest < jnp.inf)
    still = jax.lax.stop_gradient(jnp.maximum(nearest, 0))  # 0, inf or NaN: roots of themselves
    return unit * jnp.where(moves, jnp.sqrt(jnp.where(moves, nearest, 1)), still) / 2


def validate(x: Array | np.ndarray | Sequence, y: Array | np.ndarray | Sequence) -> Dataset:
    """The data as JAX arrays; ValueError unless x is (m, d) and finite, y (m,) with both -1 and 1.

    x and y must hold floating-point numbers of one precision. float64 arrays are refused while JAX
    would round them to float32 without saying so. Lists of numbers take the precision of the other
    argument, or JAX's default. Of traced arrays, under `jit` and `vmap`, only shapes and precision
    are checked. Copies NumPy arrays: what is changed in them later does not change the data.
    """
    return check(unshared(x), unshared(y))


def check(x: Array | np.ndarray | Sequence, y: Array | np.ndarray | Sequence) -> Dataset:
    """`validate` without copies, for data that are not given back to the caller."""
    given = {"x": x, "y": y}
    require_precision(**{n: a for n, a in given.items() if not isinstance(a, list | tuple)})
    arrays = Dataset(*as_arrays(**given))
    if np.ndim(x) != 2:
        raise ValueError(f"x must have the shape (samples, dimension), got {np.shape(x)}")
    m, d = np.shape(x)
    if m < 1 or d < 1:
        raise ValueError(f"x needs at least one sample and one dimension, got shape {(m, d)}")
    if np.shape(y) != (m,):
        rows = ": samples are the rows of x, so transpose it" if np.shape(y) == (d,) else ""
        told = f"y must have one label per sample, shape ({m},), got {np.shape(y)}{rows}"
        raise ValueError(told)
    if any(isinstance(array, jax.core.Tracer) for array in (x, y)):
        return arrays
    bad_rows = np.flatnonzero(~np.isfinite(np.asarray(x)).all(axis=1))
    if bad_rows.size:
        raise ValueError(
            f"x must be finite, but {bad_rows.size} rows hold NaN or inf, first row {bad_rows[0]}"
        )
    require_both_labels(y, "sample")
    return arrays


def validate_for(
    params: Params, x: Array | np.ndarray | Sequence, y: Array | np.ndarray | Sequence
) -> Dataset:
    """`check` of data that a network is trained on, or certified for, in its precision.

    Raises ValueError, too, unless that is one network on inputs of the data's dimension.
    """
    check(x, y)
    data = Dataset(*as_arrays(checked(params).w.dtype, x=x, y=y))
    check_parameters(params, data.x.shape[1])
    return data


def _norms(x: Array) -> Array:
    """|x_i|, rounded alike whatever coordinates of zeros are padded on."""
    m, d = x.shape
    blocks = jnp.pad(x, ((0, 0), (0, max(2 * BLOCK - d, -d % BLOCK)))).reshape(m, -1, BLOCK)

    def add(total: Array, block: Array) -> tuple[Array, None]:
        return total + block * block, None

    total = jax.lax.scan(add, jnp.zeros((m, BLOCK), x.dtype), blocks.swapaxes(0, 1))[0]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return jnp.sqrt(total[:, 0])


def _draw(
    key: PRNGKeyArray, samples: Size, dim: Size, shape: tuple[int, int] | None
) -> tuple[Array, Array]:
    if not isinstance(samples, jax.core.Tracer) and samples < 2:
        raise ValueError(f"need at least 2 samples, one of each label, got {samples}")
    m, d = check_sizes(shape, samples=samples, dimension=dim)
    live = jnp.arange(m, dtype=jnp.int32) < samples
    columns = jnp.arange(d, dtype=jnp.int32) < dim

    key_x, key_y = jax.random.split(unrolled(key))

    # A row's draws, and so the data, do not depend on how many rows and columns are padded on.
    def row(i: Array) -> tuple[Array, Array]:
        return (
            jax.random.normal(jax.random.fold_in(key_x, i), (d,)),
            jax.random.bits(jax.random.fold_in(key_y, i), dtype="uint32"),
        )

    x, bits = jax.vmap(row)(jnp.arange(m))
    draws = (bits[None] >> jnp.arange(LABEL_DRAWS, dtype=jnp.uint32)[:, None]) & 1
    y = jnp.where(live, 2 * draws.astype(x.dtype) - 1, 0)
    return jnp.where(live[:, None] & columns[None], x, 0), y[first_with_both(y)]


def first_with_both(labels: Float[Array, "draws m"]) -> Int[Array, ""]:
    """The place of the first draw in which both labels occur; 0 where they do in none."""
    return jnp.argmax((jnp.max(labels, axis=1) > 0) & (jnp.min(labels, axis=1) < 0))
