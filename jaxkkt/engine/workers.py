"""Processes of this machine as an executor that outlives the death of any of them."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from threading import RLock, Thread
from types import TracebackType
from typing import Any

# A task that was running so many times when a process died is what kills them.
KILLS = 3
# Where so many died, for each that there should be, and no task came to its end, none will.
DEATHS = 6


class WorkerKilled(RuntimeError):
    """A task that kills the process that it runs in."""


class Workers:
    """So many processes that train for a sweep:

        with jk.Workers(4) as workers:
            jk.sweep(runs, store="out", executor=workers)

    A process that is killed, by the system for its memory or by whoever, is replaced, and what it
    did is done again: at first beside others, then alone. What was running three times when a
    process died raises WorkerKilled, and the others go on. The processes end with this one, however
    that ends.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a sweep needs at least 1 worker, got {count}")
        self._count, self._pool = count, self._new_pool(count)
        self._lock, self._closed = RLock(), False
        self._running: list[_Task] = []
        self._suspects: deque[_Task] = deque()
        self._deaths = 0  # since a task came to its end

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        task = _Task(function, args)
        with self._lock:
            if self._closed:
                raise RuntimeError("these workers were closed: make new ones")
            self._start(task)
        return task.future

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes, with whatever they do."""
        with self._lock:
            self._closed = True
            processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(OSError, AttributeError, ValueError):
                process.terminate()

    def _start(self, task: "_Task") -> None:
        self._running.append(task)
        pool = self._pool
        try:
            inner = pool.submit(task.function, *task.args)
        except BrokenExecutor:  # and its callbacks are still to come
            self._replace(pool)
            return
        inner.add_done_callback(lambda done: self._ended(task, pool, done))

    def _ended(self, task: "_Task", pool: ProcessPoolExecutor, done: Future[Any]) -> None:
        """Called by the pool, in a thread of its own."""
        with self._lock:
            if done.cancelled() or self._closed:
                task.future.cancel()
                return
            error = done.exception()
            if isinstance(error, BrokenExecutor):
                self._replace(pool)
                return
            if pool is not self._pool:
                return  # its processes are gone; the task was given to others meanwhile
            self._running.remove(task)
            self._deaths = 0
            self._next_suspect()
        if not task.future.set_running_or_notify_cancel():
            return
        if error is None:
            task.future.set_result(done.result())
        else:
            task.future.set_exception(error)

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """Gives what a broken pool had to a new one; suspect is what was running there."""
        if broken is not self._pool:
            return
        self._pool = self._new_pool(self._count)
        self._deaths += 1
        suspects, others = self._running[: self._count], self._running[self._count :]
        self._running = []
        for task in suspects:
            task.kills += 1
            if task.kills < KILLS:
                self._suspects.append(task)
            else:
                task.fail(f"{KILLS} processes died while they did this: it kills them")
        if self._deaths >= DEATHS * self._count:
            for task in [*others, *self._suspects]:
                task.fail("no process lives long enough to do anything: see what they print")
            others, self._suspects = [], deque()
        for task in others:
            self._start(task)
        self._next_suspect()

    def _next_suspect(self) -> None:
        """One at a time, when nothing else runs: whose process dies then is known."""
        while self._suspects and not self._running:
            task = self._suspects.popleft()
            if not task.future.cancelled():
                self._start(task)

    @staticmethod
    def _new_pool(count: int) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(count, context, initializer=end_with_parent)


class _Task:
    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.future: Future[Any] = Future()
        self.kills = 0

    def fail(self, why: str) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(WorkerKilled(why))


def end_with_parent() -> None:
    """Lets this process end as soon as the one that started it has, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is None or _watching:
        return
    _watching.append(True)
    join = parent.join

    def watch() -> None:
        join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


_watching: list[bool] = []
