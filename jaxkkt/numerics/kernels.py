"""Functions of a few numbers a run, each as one kernel of a CPU's program."""

from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

# An undocumented attribute of XLA's CPU backend, so it is used with versions that were tried alone.
TRIED = (0, 10), (0, 11), (0, 12)
AS_ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of single numbers, compiled as one kernel where it is for a CPU.

    XLA makes a kernel of every few operations. To start one takes a few tenths of a microsecond, as
    long as it runs on the numbers of some dozen lanes, and those of an optimizer's step were forty.
    Nor does XLA fuse the one kernel with what follows: else a number that decides what becomes of
    an array is computed again with every element.

    Arguments and results are scalars, or stacked by `jax.vmap`, in any tree. The function may not
    sum, sort or multiply arrays: for those XLA calls libraries, which its one kernel cannot. A
    traced number that it closes over must always be used, as an argument need not be. With other
    arguments than traced ones it is called as it is.
    """

    @wraps(function)
    def call(*args: Any) -> Any:
        known = jax.__version_info__[:2] in TRIED
        if not known or not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(args)):
            return function(*args)
        return jax.lax.platform_dependent(*args, cpu=partial(_on_cpu, function), default=function)

    return call


def _on_cpu(function: Callable[..., Any], *args: Any) -> Any:
    found = jax.jit(partial(_with_witness, function))(*args)
    marked = jax.tree.map(lambda a: set_xla_metadata(a, **AS_ONE_KERNEL), found)
    return jax.lax.optimization_barrier(marked)[0]


def _with_witness(function: Callable[..., Any], *args: Any) -> Any:
    """XLA ends the process at an argument that the kernel does not use, be it that others decide
    what it is for, or that it is a constant. So something is computed of all behind a barrier, and
    another keeps JAX from leaving that out."""
    args = jax.lax.optimization_barrier(args)
    return function(*args), reduce(jnp.logical_or, map(_looked_at, jax.tree.leaves(args)))


def _looked_at(number: jax.Array) -> jax.Array:
    """What cannot be known before the number is."""
    return number != number if jnp.issubdtype(number.dtype, jnp.inexact) else number.astype(bool)


def numbers_of(tree: Any) -> Any:
    """The tree without its arrays and keys, None in their place."""

    def number(leaf: Any) -> Any:
        is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)
        return None if jnp.ndim(leaf) or is_key else leaf

    return jax.tree.map(number, tree)
