"""Division and norms that neither overflow nor divide by zero; roots of sizes, and round ones."""

import jax.numpy as jnp
from jaxtyping import Array


def ratio(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def root(size: int | Array, of: Array) -> Array:
    """sqrt(size) in the precision of an array: traced whole numbers have 32 bits, and so their
    roots would."""
    return jnp.sqrt(jnp.asarray(size, of.dtype))


def round_up(size: int) -> int:
    """The next of few round sizes: 64, 256 and multiples of 1,024."""
    return next((most for most in (64, 256) if size <= most), -(-size // 1024) * 1024)


def scale(a: Array) -> Array:
    """The largest |a|, and 1 where that is 0, infinite or NaN."""
    largest = jnp.max(jnp.abs(a), initial=0)
    return jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)


def lengths(rows: Array) -> Array:
    """Norms along the last axis, of rows whose squares may not be representable."""
    largest = jnp.max(jnp.abs(rows), axis=-1)
    # A norm has no derivative at 0, where JAX's is NaN, and that of |x| is 1: 0 is taken.
    of_unit_size = jnp.where(largest[..., None] == 0, 1, _over(rows, largest))
    return jnp.where(largest == 0, 0, largest * jnp.linalg.norm(of_unit_size, axis=-1))


def unit(rows: Array) -> Array:
    """Rows over their `lengths`; rows of zeros stay."""
    return _over(rows, lengths(rows))


def _over(rows: Array, sizes: Array) -> Array:
    """Rows over a size each, and 0 where that is 0."""
    # XLA multiplies by the reciprocal, and takes that of very large sizes for 0.
    share = jnp.where(sizes > 1, 2.0**-24, 1.0).astype(rows.dtype)
    return ratio(rows * share[..., None], (sizes * share)[..., None])
