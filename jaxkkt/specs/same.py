"""Results kept by the identity of what they were computed from."""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
_KEPT: list[dict[Any, Any]] = []


def forget_results() -> None:
    """Lets go of all that is kept."""
    for kept in _KEPT:
        kept.clear()


def by_identity(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.lru_cache` for functions of objects that do not change, told apart by `is`.

    A thousand runs share a few specs: comparing those by value would take longer than what is
    computed of them.
    """
    kept: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}
    lock = Lock()
    _KEPT.append(kept)

    @wraps(function)
    def call(*args: Any) -> T:
        key = tuple(map(id, args))
        found = kept.get(key)
        if found is None:
            # The arguments are kept too, so that their ids stay theirs.
            found = args, function(*args)
            with lock:
                while len(kept) >= MOST:
                    kept.pop(next(iter(kept)), None)
                kept[key] = found
        return found[1]

    return call
