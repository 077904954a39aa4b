"""Results kept by the identity of what they were computed from."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
_FORGET: list[Callable[[], None]] = []


class Same(tuple[Any, ...]):
    """A tuple that equals no other of its kind: a fast key of what is shared."""

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


def forget_results() -> None:
    """Lets go of all that is kept."""
    for forget in _FORGET:
        forget()


def by_same(function: Callable[[Same], T]) -> Callable[[Same], T]:
    """`by_identity` for functions of one `Same`, a key by itself: several times as fast."""
    cached = lru_cache(MOST)(function)
    _FORGET.append(cached.cache_clear)
    return cached


@dataclass(frozen=True)
class Keyed:
    """Something that equals all that has its key."""

    key: Hashable
    thing: Any = field(compare=False)


def by_key(function: Callable[[Keyed], T]) -> Callable[[Keyed], T]:
    """`functools.lru_cache` for functions whose result follows from the key."""
    cached = lru_cache(MOST)(function)
    _FORGET.append(cached.cache_clear)
    return cached


def by_identity(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.lru_cache` for functions of objects that do not change, told apart by `is`.

    A thousand runs share a few specs: comparing those by value would take longer than what is
    computed of them.
    """
    kept: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}
    lock = Lock()
    _FORGET.append(kept.clear)

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
                found = kept.setdefault(key, found)  # of two threads one has come first
        return found[1]

    return call
