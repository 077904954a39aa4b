"""Sweeps in other processes and on other machines, by anything that can `submit`."""

import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from time import sleep
from typing import Any, runtime_checkable
from typing import Protocol as Interface

import cloudpickle

from jaxkkt.engine.buckets import Bucket, streams
from jaxkkt.engine.devices import devices, environment, using
from jaxkkt.engine.lanes import Row, Tally, together
from jaxkkt.engine.specs import Run
from jaxkkt.engine.store import differences
from jaxkkt.engine.streams import run_streams
from jaxkkt.measurements import Measurement
from jaxkkt.protocols import Protocol

# A task is a part of a bucket, of at most this much work (half a minute of 2 cores) and this share
# of all.
OPERATIONS_PER_TASK = 5e12
SHARE_PER_TASK = 1 / 64
SECONDS_BETWEEN_LOOKS = 0.25

_IMPORTED_BY = os.getpid()


@runtime_checkable
class Executor(Interface):
    """Whatever can `submit`, and returns something with `done`, `result` and `cancel`.

    `concurrent.futures` does, so do Dask's `Client.get_executor()`, submitit and mpi4py.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any: ...


def run_tasks(
    executor: Executor,
    buckets: Sequence[Bucket],
    done: Collection[Run],
    protocol: Protocol,
    measurements: Sequence[Measurement],
    tallies: list[Tally],
    show: Callable[[], None],
) -> Generator[Row, None, None]:
    """Rows of the runs not in `done`, a task at a time; each task that ends adds to `tallies`.

    A task has some of a bucket's runs, and trains them in streams of its own. `show` is called now
    and then. Close the iterator to cancel the tasks that have not ended.

    Raises ValueError where a worker's versions, device or flags are not those of this process, and
    the first error of a task, once the rows of others that have ended are through.
    """
    common = cloudpickle.dumps((environment(), protocol, list(measurements)))
    tasks: list[Any] = []
    try:
        for part in _parts(buckets, done, protocol.expected_steps):
            tasks.append(executor.submit(train_part, common, part))
        while tasks:
            failed = None
            for task in list(tasks):
                if task.done():
                    tasks.remove(task)
                    try:
                        rows, tally = task.result()
                    except Exception as error:
                        failed = failed or error
                        continue
                    tallies.append(tally)
                    yield from rows
            if failed is not None:
                raise failed
            show()
            sleep(SECONDS_BETWEEN_LOOKS if tasks else 0)
    finally:
        for task in tasks:
            with suppress(Exception):
                task.cancel()


def train_part(common: bytes, part: Bucket) -> tuple[list[Row], Tally]:
    """A task: trains and measures a part of a bucket, in a worker."""
    if os.getpid() != _IMPORTED_BY:
        raise RuntimeError(
            "this worker is a fork, in which JAX hangs: give the executor spawned processes, as "
            "ProcessPoolExecutor(4, multiprocessing.get_context('spawn')) does"
        )
    expected, protocol, measurements = _loaded(common)
    with using(expected["settings"]):
        differing = differences(expected, environment(), ("in the sweep", "in the worker"))
        if differing:
            raise ValueError(
                "a worker would compute other bits than the process of the sweep; give both the "
                "same versions, devices and flags. What differs:\n  " + "\n  ".join(differing)
            )
        used = devices()
        tallies = [Tally() for _ in range(streams([part], used))]
        rows = run_streams([part], (), protocol, measurements, tallies, used, lambda: None)
        return list(rows), together(tallies)


@lru_cache(maxsize=1)
def _loaded(common: bytes) -> Any:
    """The same objects for every task of a sweep: functions made anew would compile anew."""
    return cloudpickle.loads(common)


def _parts(buckets: Sequence[Bucket], done: Collection[Run], steps: int) -> Iterator[Bucket]:
    waiting = [(b, [run for run in b.runs if run not in done]) for b in buckets]
    work = {b: steps * b.padded_work / len(b.runs) for b in buckets}
    total = sum(len(runs) * work[b] for b, runs in waiting)
    most = min(OPERATIONS_PER_TASK, SHARE_PER_TASK * total)
    for bucket, runs in waiting:
        size = max(bucket.lanes, int(most / work[bucket]))
        for i in range(0, len(runs), size):
            yield replace(bucket, runs=tuple(runs[i : i + size]))
