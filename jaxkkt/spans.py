"""Random vectors of any dimension, in coordinates of the subspace that they span.

Training, margins and flips know of points only their inner products, and of weights the part in the
span of the points. n Gaussian vectors of R^d have the same inner products, in distribution, as the
rows of a triangular (n, n) matrix (Bartlett 1933). So d may be ten million, or more than any memory
holds, at the cost of n.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxkkt.datasets import LABEL_DRAWS, first_with_both
from jaxkkt.numerics.keys import unrolled


class Ambient(NamedTuple):
    """The dimension d of the space that the points are from."""

    d: Float[Array, ""]


def gaussian_rows(
    key: PRNGKeyArray,
    count: int,
    columns: int,
    d: float | Float[Array, ""],
    first: int = 0,
) -> Float[Array, "count columns"]:
    """Rows first, ..., first + count - 1 of a matrix whose rows are standard normal vectors of R^d.

    All rows, those of calls with another `first` among them, are in the same coordinates. Row i is
    normal before column i, there the length of the rest of the vector, chi with d - i degrees of
    freedom, and 0 beyond. Raises ValueError for more rows than columns or
    dimensions, and for a negative `first`.
    """
    if first < 0:
        raise ValueError(f"rows are counted from 0 on, got first = {first}")
    if first + count > columns:
        raise ValueError(f"{first + count} vectors span {first + count} columns, got {columns}")
    if not isinstance(d, jax.core.Tracer) and not d <= float(np.finfo(np.float32).max):
        raise ValueError(f"d must be a finite number in float32, got {d}")
    if not isinstance(d, jax.core.Tracer) and d < first + count:
        raise ValueError(f"{first + count} vectors are in general position from d on, got d = {d}")
    normal_key, chi_key = jax.random.split(unrolled(key))
    row, column = jnp.arange(first, first + count)[:, None], jnp.arange(columns)[None]
    normal = jax.random.normal(normal_key, (count, columns))
    freedom = jnp.asarray(d, normal.dtype) - row.astype(normal.dtype)
    rest = jnp.sqrt(2 * jax.random.gamma(chi_key, freedom / 2, (count, 1), normal.dtype))
    return jnp.where(column < row, normal, jnp.where(column == row, rest, 0))


def sphere(
    key: PRNGKeyArray, samples: int, d: float | Float[Array, ""]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """`datasets.sphere` of R^d in coordinates of its span: |x_i| = sqrt(d), y uniform on {-1, 1}.

    Labels as there: both occur. Raises ValueError for fewer than 2 samples.
    """
    if samples < 2:
        raise ValueError(f"need at least 2 samples, one of each label, got {samples}")
    key_x, key_y = jax.random.split(unrolled(key))
    x = gaussian_rows(key_x, samples, samples, d)
    draws = jax.random.rademacher(key_y, (LABEL_DRAWS, samples), x.dtype)
    norm = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x * (jnp.sqrt(jnp.asarray(d, x.dtype)) / norm), draws[first_with_both(draws)]
