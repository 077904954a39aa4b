"""Whether any, or all, of many truths hold."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool


def any_of(truths: Any, axis: int | None = None) -> Bool[Array, "..."]:
    """As `jnp.any` of numbers or truths. They are counted: XLA's CPU compiler takes three times as
    long for an `or` of a thousand (jaxlib 0.10.2), a quarter of a second each."""
    return jnp.sum(jnp.asarray(truths, bool), axis=axis, dtype=jnp.int32) > 0


def all_of(truths: Any, axis: int | None = None) -> Bool[Array, "..."]:
    """As `jnp.all`, counted as in `any_of`."""
    return jnp.sum(~jnp.asarray(truths, bool), axis=axis, dtype=jnp.int32) == 0
