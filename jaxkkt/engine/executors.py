"""Sweeps in other processes and on other machines, by anything that can `submit`."""

import json
import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from threading import Event
from time import sleep
from typing import Any, NamedTuple, runtime_checkable
from typing import Protocol as Interface

import cloudpickle

from jaxkkt.engine.buckets import Bucket, streams
from jaxkkt.engine.devices import alone, devices, environment, split_among, threads, using
from jaxkkt.engine.lanes import Row, Tally, together
from jaxkkt.engine.streams import run_streams
from jaxkkt.runs.run import Run
from jaxkkt.specs.base import from_json, jsonable
from jaxkkt.store import differences

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


class _Reference(NamedTuple):
    """A run by the places of its parts in a table that all tasks of a bucket share."""

    parts: tuple[int, ...]
    seed: int
    keep: bool


def run_tasks(
    executor: Executor,
    buckets: Sequence[Bucket],
    done: Collection[Run],
    tallies: list[Tally],
    show: Callable[[], None],
    keep: Collection[Run] = (),
    stop: Event | None = None,
) -> Generator[Row, None, None]:
    """Rows of the runs not in `done`, a task at a time; each task that ends adds to `tallies`.

    A task has some of a bucket's runs, and trains them in streams of its own. `show` is called now
    and then. Close the iterator, or set `stop`, to cancel the tasks that have not ended.

    Raises ValueError where a worker's versions, device or flags are not those of this process, and
    the first error of a task, once the rows of others that have ended are through.
    """
    tasks: list[tuple[Any, tuple[Run, ...]]] = []
    count = threads()
    try:
        for common, runs, references in _tasks(buckets, done, keep):
            task = executor.submit(train_part, common, references, count)
            tasks.append((task, runs))
        while tasks and not (stop and stop.is_set()):
            failed = None
            for task, runs in list(tasks):
                if task.done():
                    tasks.remove((task, runs))
                    try:
                        rows, tally = task.result()
                    except Exception as error:
                        failed = failed or error
                        continue
                    tallies.append(tally)
                    yield from (row._replace(run=runs[row.run]) for row in rows)
            if failed is not None:
                raise failed
            show()
            sleep(SECONDS_BETWEEN_LOOKS if tasks else 0)
    finally:
        for task, _ in tasks:
            with suppress(Exception):
                task.cancel()


def train_part(
    common: bytes, references: list[_Reference], threads: int
) -> tuple[list[Row], Tally]:
    """A task: trains and measures a part of a bucket, in a worker, as if it had the cores of the
    sweep's process: XLA splits large products among as many `threads`."""
    if os.getpid() != _IMPORTED_BY:
        raise RuntimeError(
            "this worker is a fork, in which JAX hangs: give the executor spawned processes, as "
            "ProcessPoolExecutor(4, multiprocessing.get_context('spawn')) does"
        )
    split_among(threads)
    expected, bucket, parts = _loaded(common)
    runs = tuple(_run(parts, reference) for reference in references)
    keep = {run for run, reference in zip(runs, references, strict=True) if reference.keep}
    part = replace(bucket, runs=runs)
    with using(expected["settings"]), alone():
        differing = differences(expected, environment(), ("in the sweep", "in the worker"))
        if differing:
            raise ValueError(
                "a worker would compute other bits than the process of the sweep; give both the "
                "same versions, devices and flags. What differs:\n  " + "\n  ".join(differing)
            )
        used = devices()
        tallies = [Tally() for _ in range(streams([part], used))]
        rows = list(run_streams([part], (), tallies, used, lambda: None, keep))
        # The sweep knows its runs by their place: specs of own functions change on the way.
        places = {run: i for i, run in enumerate(runs)}
        found: Any = [
            row._replace(run=places[row.run], raised=_portable(row.raised))  # type: ignore[arg-type]
            for row in rows
        ]
        return found, together(tallies)


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one that can be pickled and says the same."""
    try:
        return cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


@lru_cache(maxsize=1)
def _loaded(common: bytes) -> Any:
    """The same objects for every task of a bucket: functions made anew would compile anew."""
    expected, bucket, parts = cloudpickle.loads(common)
    return expected, bucket, [_unpacked(part) for part in parts]


def _packed(part: Any) -> str | bytes:
    """A part of a run as JSON; pickled by value where a worker could not read it back from that.

    So are what is defined in a notebook or script, own arrays, and functions without a name.
    """
    try:
        text = json.dumps(jsonable(part))
        if '"__main__:' not in text and from_json(json.loads(text)) == part:
            return text
    except ValueError:
        pass
    return cloudpickle.dumps(part)


def _unpacked(part: str | bytes) -> Any:
    return from_json(json.loads(part)) if isinstance(part, str) else cloudpickle.loads(part)


_PARTS = ("data", "network", "initialization", "protocol", "measure", "curve")


def _run(parts: Sequence[Any], reference: _Reference) -> Run:
    fields = {name: parts[i] for name, i in zip(_PARTS, reference.parts, strict=True)}
    return Run(**fields, seed=reference.seed)


def _tasks(
    buckets: Sequence[Bucket], done: Collection[Run], keep: Collection[Run]
) -> Iterator[tuple[bytes, tuple[Run, ...], list[_Reference]]]:
    """Of every task what its bucket shares, its runs, and what stands for them."""
    expected = environment()
    for bucket, groups in groupby(_parts(buckets, done), lambda part: part[0]):
        places: dict[Any, int] = {}
        tasks = []
        for _, runs in groups:
            references = [
                _Reference(
                    tuple(
                        places.setdefault((name, getattr(run, name)), len(places))
                        for name in _PARTS
                    ),
                    run.seed,
                    run in keep,
                )
                for run in runs
            ]
            tasks.append((runs, references))
        parts = [_packed(value) for _, value in places]
        common = cloudpickle.dumps((expected, replace(bucket, runs=()), parts))
        for runs, references in tasks:
            yield common, runs, references


def _parts(
    buckets: Sequence[Bucket], done: Collection[Run]
) -> Iterator[tuple[Bucket, tuple[Run, ...]]]:
    waiting = [(b, [run for run in b.runs if run not in done]) for b in buckets]
    work = {b: b.guessed_steps * b.padded_work / len(b.runs) for b in buckets}
    total = sum(len(runs) * work[b] for b, runs in waiting)
    most = min(OPERATIONS_PER_TASK, SHARE_PER_TASK * total)
    for bucket, runs in waiting:
        size = max(bucket.lanes, int(most / work[bucket]))
        for i in range(0, len(runs), size):
            yield bucket, tuple(runs[i : i + size])
