"""What a function computes, as a hash: its compiled text and the constants in it, not its name."""

from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np


def digest_of_function(function: Callable[..., Any], *arguments: Any) -> str:
    """A hash of what `function` computes from arrays like `arguments`.

    It is that of the function's StableHLO: operations, literals, and the arrays it closes over.
    Raises ValueError for a function that cannot be traced, or that calls back into Python, where
    the text does not show what is computed.
    """
    name = function_name(function)

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
    """Makes the source of this package, all Python files in `folder`, part of every identity.

    Its functions and classes are then known by their code, and need not be traced to be told
    from others: any edit in the folder makes other runs. For a package of studies.
    """
    _COVERED[package] = folder
    digest_of_code.cache_clear()


def covered(thing: Any) -> bool:
    """Whether a class or function belongs to a package whose source is part of every identity."""
    return str(getattr(thing, "__module__", "")).split(".")[0] in _COVERED


@cache
def digest_of_code() -> str:
    """A hash of the source of jaxkkt and of what else is covered, whatever version it has."""
    hashed = sha256()
    for package, folder in sorted(_COVERED.items()):
        for path in sorted(folder.rglob("*.py")):
            hashed.update(f"{package} {path.relative_to(folder).as_posix()}\n".encode())
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


_COVERED: dict[str, Path] = {__name__.split(".")[0]: Path(__file__).parent.parent}
