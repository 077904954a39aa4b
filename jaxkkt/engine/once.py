"""A result that threads share: the first to ask computes it, the others wait for it."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from jaxkkt.specs.same import to_forget

T = TypeVar("T")


class once(Generic[T]):
    """`functools.cache` for threads, of functions with hashable arguments, by position.

    `functools.cache` computes twice what two threads ask for at the same time: seconds, where that
    is a compilation. What raised is computed again by the next who asks. `forget_results` lets go
    of it.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        self._results: dict[Hashable, Future[T]] = {}
        self._lock = Lock()
        to_forget(self.cache_clear)

    def __call__(self, *args: Hashable) -> T:
        with self._lock:
            first = args not in self._results
            result = self._results.setdefault(args, Future())
        if first:
            try:
                result.set_result(self._function(*args))
            except BaseException as error:
                with self._lock:
                    self._results.pop(args, None)
                result.set_exception(error)
        return result.result()

    def cache_clear(self) -> None:
        with self._lock:
            self._results.clear()
