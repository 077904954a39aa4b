"""What a function computes, as a hash: its compiled text and the constants in it, not its name."""

from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np


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
    if "callback" in text:
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
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def cover(package: str, folder: Path) -> None:
    """Tells the functions and classes of a package by its source: all Python files in `folder`.

    They need not be traced then; any edit in the folder makes other runs of those that use them.
    For a package of studies. Raises ValueError for a package that is covered already, elsewhere.
    """
    if _COVERED.setdefault(package, folder) != folder:
        raise ValueError(f"{package} is covered already, by {_COVERED[package]}, not by {folder}")


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
_COVERED: dict[str, Path] = {PACKAGE: Path(__file__).parent.parent}
