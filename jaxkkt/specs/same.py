"""Results kept by what they were computed from, told by its identity or by its value."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, TypeVar

import jax

T = TypeVar("T")

MOST = 4096
_FORGET: list[Callable[[], None]] = []


class Same(tuple[Any, ...]):
    """A tuple that equals no other of its kind: a fast key of what is shared. Beside its items it
    holds what was `computed` of it, see `of_same`."""

    computed: dict[Any, Any]

    def __new__(cls, items: Iterable[Any]) -> "Same":
        same = super().__new__(cls, items)
        same.computed = {}
        return same

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


# JAX's settings that decide on numbers.
SETTINGS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_default_matmul_precision",
)


def settings_of_numbers() -> tuple[Any, ...]:
    """How JAX computes in this thread, as far as it decides on numbers."""
    return tuple(getattr(jax.config, name) for name in SETTINGS)


@dataclass(frozen=True)
class Keyed:
    """Something that equals all that has its key."""

    key: Hashable
    thing: Any = field(compare=False)


def to_forget(forget: Callable[[], None]) -> None:
    """Has `forget_results` call this, too."""
    _FORGET.append(forget)


def forget_results() -> None:
    """Lets go of all that is kept."""
    for forget in _FORGET:
        forget()


def by_value(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.lru_cache` that `forget_results` clears, of each precision."""

    @lru_cache(MOST)
    def cached(_: Any, *args: Hashable) -> T:
        return function(*args)

    to_forget(cached.cache_clear)
    return wraps(function)(lambda *args: cached(settings_of_numbers(), *args))


def of_same(function: Callable[[Same], T], everywhere: bool = False) -> Callable[[Same], T]:
    """Keeps what follows from a `Same` with it, for as long as it lives and `forget_results` is not
    called: however many there are, each is looked at once. Of each precision, unless what follows
    is the same `everywhere`."""

    @wraps(function)
    def call(same: Same) -> T:
        since, now = same.computed, _SINCE[0]
        key: Any = function if everywhere else (function, *settings_of_numbers())
        found = since.get(key)
        if found is None or found[0] is not now:
            found = since[key] = now, function(same)
        return found[1]

    return call


# Results that are older than this were forgotten. A list: a name bound anew makes the package look
# changed.
_SINCE = [object()]


def _forget_those_of_same() -> None:
    _SINCE[0] = object()


to_forget(_forget_those_of_same)


def by_identity(function: Callable[..., T], everywhere: bool = False) -> Callable[..., T]:
    """`functools.lru_cache` for functions of objects that do not change, told apart by `is`; of
    each precision, unless what they return is the same `everywhere`.

    A thousand runs share a few specs: comparing those by value would take longer than what is
    computed of them.
    """
    kept: dict[tuple[Any, ...], tuple[tuple[Any, ...], T]] = {}
    lock = Lock()

    def forget() -> None:
        with lock:
            kept.clear()

    to_forget(forget)

    @wraps(function)
    def call(*args: Any) -> T:
        key = (*map(id, args), *(() if everywhere else settings_of_numbers()))
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
