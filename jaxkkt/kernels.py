"""Functions of a few numbers a run, each as one kernel of a CPU's program."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

# Of XLA's CPU backend alone, and not documented: of versions that were not tried nothing is asked.
TRIED = (0, 10)
AS_ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of single numbers, compiled as one kernel where it is for a CPU.

    XLA makes a kernel of every few operations. To start one takes a few tenths of a microsecond, as
    long as it runs on the numbers of some dozen lanes, and those of an optimizer's step were forty.
    Nor does XLA fuse the one kernel with what follows: else a number that decides what becomes of
    an array is computed again with every element.

    Arguments and results are scalars, or stacked by `jax.vmap`, in any tree. The function may not
    sum or multiply arrays: for those XLA calls libraries, which its one kernel cannot. With other
    arguments than traced ones it is called as it is.
    """

    def on_cpu(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)

        def of_leaves(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(tree, leaves))

        traced, shape = jax.make_jaxpr(of_leaves, return_shape=True)(*leaves)
        jaxpr = traced.jaxpr
        used = _used(jaxpr)
        # Arguments that are handed on are results of other operations, which would be marked.
        handed_on = [
            next((i for i, a in enumerate(jaxpr.invars) if a is out), None) for out in jaxpr.outvars
        ]

        def kernel(*some: Any) -> list[Any]:
            left = iter(some)
            zeros = (jnp.zeros(a.shape, a.dtype) for a in traced.in_avals)
            given = [next(left) if u else z for u, z in zip(used, zeros, strict=True)]
            found = jax.extend.core.jaxpr_as_fun(traced)(*given)
            return [out for out, i in zip(found, handed_on, strict=True) if i is None]

        computed = jax.jit(kernel)(*(leaf for leaf, u in zip(leaves, used, strict=True) if u))
        marked = iter(set_xla_metadata(out, **AS_ONE_KERNEL) for out in computed)
        found = [next(marked) if i is None else leaves[i] for i in handed_on]
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    @wraps(function)
    def call(*args: Any) -> Any:
        known = jax.__version_info__[:2] == TRIED
        if not known or not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(args)):
            return function(*args)
        return jax.lax.platform_dependent(*args, cpu=on_cpu, default=function)

    return call


def numbers_of(tree: Any) -> Any:
    """The tree without its arrays, None in their place."""
    return jax.tree.map(lambda leaf: None if jnp.ndim(leaf) else leaf, tree)


def _used(jaxpr: Any) -> list[bool]:
    """Which arguments a result is computed from. XLA ends the process where a kernel has others."""
    needed = set(_variables(jaxpr.outvars)) - set(jaxpr.invars)
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= set(_variables(equation.invars))
    return [argument in needed for argument in jaxpr.invars]


def _variables(atoms: Any) -> list[Any]:
    return [atom for atom in atoms if isinstance(atom, jax.extend.core.Var)]
