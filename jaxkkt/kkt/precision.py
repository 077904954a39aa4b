"""Certificates and polish compute in float64, whatever the mode and precision of their caller."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """The function with its floating-point arrays widened, and 64 bits on while it runs.

    A residual of 1e-6 is a difference of numbers of size 1, which float32 resolves to 1e-7: the
    linear systems on the way there need more. Works under `jit` and `vmap` of 32-bit callers, too.
    The results come back in the precision of the first array that it was given, the network's, and
    in no less than float32.
    """

    takes = signature(function)

    @wraps(function)
    def wide(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            in_order = tuple(takes.bind(*args, **kwargs).arguments.values())
        except TypeError:
            return function(*args, **kwargs)  # which says so itself
        given = (leaf.dtype for leaf in jax.tree.leaves(in_order) if _is_float(leaf))
        precision = jax.dtypes.canonicalize_dtype(np.promote_types(next(given, float), np.float32))
        with jax.enable_x64(True):
            args, kwargs = _cast((args, kwargs), jnp.float64)
            return _cast(function(*args, **kwargs), precision)

    return wide


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if _is_float(leaf) else leaf, tree)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
