"""Sweeps in other processes and on other machines, by anything that can `submit`."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from time import sleep
from typing import Any, runtime_checkable
from typing import Protocol as Interface

import cloudpickle
import jax

from jaxkkt.engine.buckets import Bucket, streams
from jaxkkt.engine.devices import devices, environment
from jaxkkt.engine.lanes import Row, Tally, together
from jaxkkt.engine.specs import Run
from jaxkkt.engine.store import differences
from jaxkkt.engine.streams import run_streams
from jaxkkt.measurements import Measurement
from jaxkkt.training import Protocol

# A task is a part of a bucket of about this much work: half a minute of 2 cores.
OPERATIONS_PER_TASK = 5e12
SECONDS_BETWEEN_LOOKS = 0.25


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

    A task has one bucket's runs, and trains them in streams of its own. `show` is called now and
    then. Close the iterator to cancel the tasks that have not begun.

    Raises ValueError where a worker's versions or device are not those of this process, and what
    a task raises.
    """
    here = environment()
    tasks = [
        executor.submit(train_part, cloudpickle.dumps((here, bucket, part, protocol, measurements)))
        for bucket in buckets
        for part in _parts(bucket, done, protocol.expected_steps)
    ]
    try:
        while tasks:
            ended = [task for task in tasks if task.done()]
            for task in ended:
                tasks.remove(task)
                rows, tally = task.result()
                tallies.append(tally)
                yield from rows
            show()
            if not ended:
                sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        for task in tasks:
            task.cancel()


def train_part(work: bytes) -> tuple[list[Row], Tally]:
    """A task: trains and measures some of a bucket's runs, in a worker."""
    expected, bucket, part, protocol, measurements = cloudpickle.loads(work)
    with jax.enable_x64(expected["x64"]):
        _check_same(expected, environment())
        used = devices()
        tallies = [Tally() for _ in range(streams([bucket], used))]
        rest = set(bucket.runs).difference(part)
        rows = run_streams([bucket], rest, protocol, measurements, tallies, used, lambda: None)
        return list(rows), together(tallies)


def _parts(bucket: Bucket, done: Collection[Run], steps: int) -> list[list[Run]]:
    waiting = [run for run in bucket.runs if run not in done]
    work = steps * bucket.padded_work / len(bucket.runs)
    size = max(bucket.lanes, int(OPERATIONS_PER_TASK / work), 1)
    return [waiting[i : i + size] for i in range(0, len(waiting), size)]


def _check_same(expected: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    differing = differences(expected, here, ("in the sweep's process", "in the worker"))
    if differing:
        raise ValueError(
            "a worker would compute other bits than the sweep's own process; give both the same "
            "versions, device and flags. What differs:\n  " + "\n  ".join(differing)
        )
