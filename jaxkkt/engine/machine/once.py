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
        mine = Future[T]()
        try:
            with self._lock:
                result = self._results.setdefault(args, mine)
            if result is mine:
                mine.set_result(self._function(*args))
        except BaseException as error:  # be it Ctrl-C, anywhere here: nobody is to wait in vain
            with self._lock:
                if self._results.get(args) is mine:
                    del self._results[args]
            if not mine.done():
                mine.set_exception(error)
            raise
        return result.result()

    def cache_clear(self) -> None:
        with self._lock:
            self._results.clear()
