"""A result that threads share: the first to ask computes it, the others wait for it."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once(function: Callable[P, T]) -> Callable[P, T]:
    """`functools.cache` for threads, of hashable positional arguments.

    `functools.cache` computes twice what two threads ask for at the same time: seconds, where that
    is a compilation. What raised is computed again by the next who asks.
    """
    results: dict[Hashable, Future[T]] = {}
    lock = Lock()

    @wraps(function)
    def shared(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            first = args not in results
            result = results.setdefault(args, Future())
        if first:
            try:
                result.set_result(function(*args, **kwargs))
            except BaseException as error:
                with lock:
                    del results[args]
                result.set_exception(error)
        return result.result()

    return shared
