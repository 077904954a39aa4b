"""What functions and specs compute, as a hash: compiled text and the constants in it, not names."""

import re
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkkt.specs.same import settings_of_numbers

T = TypeVar("T")


def digest_of_function(function: Callable[..., Any], *arguments: Any, name: str = "") -> str:
    """A hash of what `function` computes from arrays like `arguments`; errors call it `name`.

    It is that of the function's StableHLO: operations, literals, and the arrays it closes over.
    Raises ValueError for a function that cannot be traced, or that calls back into Python, where
    the text does not show what is computed.
    """
    name = name or function_name(function)

    def computes(*traced: Any) -> Any:
        return function(*traced)

    try:
        lowered: Any = jax.jit(computes).lower(*arguments)
        text = lowered.as_text()
    except Exception as error:
        raise ValueError(
            f"what {name} computes cannot be told, since it cannot be traced by JAX ({error}); "
            "write it with jax.numpy, or go on without a store"
        ) from error
    if re.search(r"custom_call @\w*callback", text):
        raise ValueError(
            f"what {name} computes cannot be told, since it calls back into Python; "
            "write it with jax.numpy, or go on without a store"
        )
    hashed = sha256(text.encode())
    for constant in getattr(lowered._lowering, "const_args", ()):
        hashed.update(digest_of_array(constant).encode())
    return hashed.hexdigest()


def digest_of_array(array: Any) -> str:
    """A hash of an array's numbers, shape and type."""
    values = np.ascontiguousarray(array)
    hashed = sha256(f"{values.dtype.str} {values.shape} ".encode())
    hashed.update(values.tobytes())
    return hashed.hexdigest()


def function_name(function: Any) -> str:
    """Where a function can be imported from, "module:name"."""
    function = unwrapped(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def short_name(function: Any) -> str:
    """What a function is called in tables: "function" where it has no name."""
    return str(getattr(unwrapped(function), "__name__", "function"))


def unwrapped(function: Any) -> Any:
    """What a `functools.partial` calls; another function as it is."""
    while isinstance(function, partial):
        function = function.func
    return function


class Used(NamedTuple):
    """What tells what a `Spec` computes: itself, for all that differ in its numbers, the sizes that
    its `computations` name, and whether in float64."""

    spec: Any
    sizes: tuple[tuple[str, Any], ...]
    settings: tuple[Any, ...]

    @classmethod
    def at(cls, spec: Any, sizes: Mapping[str, Any]) -> "Used":
        asked = signature(spec.computations).parameters
        mine = tuple((name, size) for name, size in sizes.items() if name in asked)
        told = spec if spec.told_by_values else any_numbers(spec)
        return cls(told, mine, settings_of_numbers())


def refuse_changed(used: Used) -> None:
    """Raises ValueError where what an own spec computes is not what it computed when it was first
    used here, or first used at these sizes: JAX keeps what it compiled of a function, whatever
    becomes of what that reads.

    For functions that JAX cannot trace nothing is kept, and nothing refused.
    """
    brought = used.spec.brought
    _, first = _FIRST.setdefault((used.spec.compiled_as, used.settings), (brought, used))
    try:
        same = all(
            digest_of(one) == digest_of.__wrapped__(one) for one in dict.fromkeys((first, used))
        )
    except ValueError:
        return
    if not same:
        raise ValueError(
            f"{function_name(brought)} computes something else than when it was first used here, "
            "and what was compiled of it would go on with the old. If it reads a global, an array "
            "or a method that has changed: define it anew (run its cell again), make what changes "
            "a field of a class, or call jaxkkt.engine.forget(). If it draws numbers by NumPy, "
            "which would be the same for all seeds: draw them by jax.random, from its key"
        )


def forget_specs() -> None:
    """What own specs compute is looked at anew."""
    _FIRST.clear()
    digest_of.cache_clear()


# Functions and classes from outside the package, with what first used each.
_FIRST: dict[Hashable, tuple[Any, Used]] = {}


@cache
def digest_of(used: Used) -> str:
    """A hash of what a spec computes; ValueError where that cannot be told."""
    name, on_host = function_name(used.spec.brought), getattr(used.spec, "on_host", False)
    found = list(used.spec.computations(**dict(used.sizes)))
    # Of what it is given the host makes float64 where it is asked to.
    with jax.enable_x64(True) if on_host else nullcontext():
        return " ".join(digest_of_function(f, *args, name=name) for f, args in found)


def given(spec: Any, name: str, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What a method of a seed gives that is not compiled, as one of `computations`."""
    try:
        found = [jax.tree.map(np.asarray, getattr(spec, name)(seed, *args)) for seed in _SEEDS]
    except Exception as error:
        raise ValueError(
            f"what {name} of {spec.label!r} gives cannot be told, since it raises for seed 0 or 1 "
            f"({error}); make it work there, or go on without a store"
        ) from error
    return partial(jax.tree.map, jnp.asarray, found), ()


# What is not compiled is told apart by what it gives for these seeds.
_SEEDS = (0, 1)


def any_numbers(spec: T) -> T:
    """The spec for any of its numbers."""
    return jax.tree.map(lambda leaf: type(leaf)(0), spec)


def cover(package: str, folder: Path) -> None:
    """Tells the functions and classes of a package by its source: all Python files in `folder`.

    They need not be traced then; any edit in the folder makes other runs of those that use them.
    For a package of studies. Raises ValueError for a package that is covered already, elsewhere.
    """
    if _COVERED.setdefault(package, folder) != folder:
        raise ValueError(f"{package} is covered already, by {_COVERED[package]}, not by {folder}")
    digest_of_code(package)  # of what is imported, whatever becomes of its files


def package_of(thing: Any) -> str | None:
    """The covered package that a class or function belongs to, if it does."""
    package = str(getattr(thing, "__module__", "")).split(".")[0]
    return package if package in _COVERED else None


@cache
def digest_of_code(package: str) -> str:
    """A hash of the source of a covered package, whatever version it has."""
    folder, hashed = _COVERED[package], sha256()
    for path in sorted(folder.rglob("*.py")):
        hashed.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


PACKAGE = __name__.split(".")[0]
_COVERED: dict[str, Path] = {}
cover(PACKAGE, Path(__file__).parent.parent)
