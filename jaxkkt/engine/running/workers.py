"""Processes of this machine as an executor that outlives the death of any of them."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from threading import Condition, Thread
from typing import Any

from jaxkkt.numerics.requirements import require_whole

# A task that was running so many times when a process died is what kills them.
KILLS = 3
# Where so many died, for each that there should be, and no task came to its end, none will.
DEATHS = 6
SECONDS_BETWEEN_LOOKS = 0.05


class WorkerKilled(RuntimeError):
    """A task that kills the process that it runs in."""


class Workers:
    """So many processes that train for a sweep:

        with jk.Workers(4) as workers:
            jk.sweep(runs, store="out", executor=workers)

    A process that is killed, by the system for its memory or by whoever, is replaced, and what it
    did is done again: when all else is done, and alone. What was running three times when a process
    died raises WorkerKilled, and the others go on. The processes end with this one, however that
    ends; signals are for this one alone.
    Raises RuntimeError in such a process: it imports the script that started it, whose workers must
    be below `if __name__ == "__main__":`.
    """

    def __init__(self, count: int) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a worker imports the script that starts it, and would start workers of its own: "
                'put what starts them below `if __name__ == "__main__":`'
            )
        require_whole("the number of workers", count, 1)
        self._count, self._pool = count, _new_pool(count)
        self._news, self._closed = Condition(), False
        self._waiting: deque[_Task] = deque()
        # Only the thread that gives tasks to the pool uses these:
        self._running: dict[Future[Any], _Task] = {}
        self._suspects: deque[_Task] = deque()
        self._deaths = 0  # since a task came to its end
        self._works = False  # a task has come to its end
        self._dead: ProcessPoolExecutor | None = None  # of which a process was seen to be dead
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        task = _Task(function, args)
        with self._news:
            if self._closed:
                raise RuntimeError("these workers were closed: make new ones")
            self._waiting.append(task)
            self._news.notify()
        return task.future

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes, with whatever they do."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _serve(self) -> None:
        failed: Exception | None = None
        try:
            self._give_out()
        except Exception as error:  # no pool can be made
            failed = error
        with self._news:
            self._closed = True
        self._end_pool()
        for task in [*self._waiting, *self._suspects, *self._running.values()]:
            if failed is not None:
                task.fail(failed)
            elif not task.future.cancel():
                task.fail(WorkerKilled("its workers were closed"))

    def _give_out(self) -> None:
        """Gives tasks to the pool until these workers are closed."""
        while True:
            with self._news:
                while not (self._closed or self._waiting or self._suspects or self._running):
                    self._news.wait()
                if self._closed:
                    return
            if self._somebody_died():
                self._replace()
            with self._news:
                while self._waiting and len(self._running) < self._count:
                    self._start(self._waiting.popleft())
            if self._suspects and not self._running:
                self._start(self._suspects.popleft())  # whose process dies now is known
            ended, _ = wait(self._running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            if any(map(_broken, ended)):
                self._replace()
                continue
            for future in ended:
                self._end(future)

    def _end(self, done: Future[Any]) -> None:
        self._deaths, self._works = 0, True
        self._running.pop(done).end(done)

    def _start(self, task: "_Task") -> None:
        if not task.future.running() and not task.future.set_running_or_notify_cancel():
            return
        try:
            self._running[self._pool.submit(task.function, *task.args)] = task
        except BrokenExecutor:  # by a death that is not seen yet; this task had no part in it
            dead: Future[Any] = Future()
            dead.set_exception(BrokenExecutor())
            task.kills -= 1
            self._running[dead] = task
        except Exception as error:  # no process can be started
            task.future.set_exception(error)

    def _processes(self) -> list[BaseProcess]:
        return list((self._pool._processes or {}).values())

    def _somebody_died(self) -> bool:
        """Also where the pool does not see it: it may not watch yet whom it has just started, and
        then hears of that death when somebody else's task ends."""
        dead = bool(connection.wait([process.sentinel for process in self._processes()], 0))
        # Seen twice, so that what it had sent before it died is read; idle, at once.
        seen, self._dead = self._dead is self._pool, self._pool if dead else None
        return dead and (seen or not self._running)

    def _end_pool(self) -> None:
        """Its processes too, with whatever they do; and nobody waits for the rest of what one of
        them was sending."""
        sent: Any = self._pool._result_queue
        for process in self._processes():
            with suppress(OSError, ValueError):
                process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with suppress(AttributeError, OSError):
            sent._writer.close()

    def _replace(self) -> None:
        """A new pool for one of which a process died: suspect is what was running."""
        for future in [f for f in self._running if f.done() and not _broken(f)]:
            self._end(future)
        suspects, self._running = list(self._running.values()), {}
        self._end_pool()
        self._deaths += 1
        for task in suspects:
            task.kills += 1
            if task.kills >= KILLS:
                why = f"{KILLS} processes died while they did this: it kills them"
                task.fail(WorkerKilled(why if self._works else f"{why}, or none can start: {_HOW}"))
            else:
                self._suspects.append(task)
        if self._deaths >= DEATHS * self._count:
            with self._news:
                lost = [*self._suspects, *self._waiting]
                self._suspects.clear()
                self._waiting.clear()
            for task in lost:
                why = f"no process lives long enough to do anything: {_HOW}"
                task.fail(WorkerKilled(why))
        self._pool = _new_pool(self._count)


_HOW = (
    "see what they print. Each imports the script that started it, which must be a file and have "
    'what starts workers below `if __name__ == "__main__":`'
)


class _Task:
    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.future: Future[Any] = Future()
        self.kills = 0

    def end(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self.future.set_result(done.result())
        else:
            self.future.set_exception(error)

    def fail(self, error: Exception) -> None:
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def _broken(done: Future[Any]) -> bool:
    return isinstance(done.exception(), BrokenExecutor)


class _Process(SpawnProcess):
    """A pool ends its processes by `terminate`, and they do not listen to SIGTERM."""

    def terminate(self) -> None:
        self.kill()


class _Context(SpawnContext):
    Process = _Process


def _new_pool(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, _Context(), initializer=_begin)


def _begin() -> None:
    """Ctrl-C, and what asks a whole group of processes to end, is for the one that sweeps: it lets
    its workers end their chunks."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


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
