"""Sweeps in other processes and on other machines, by anything that can `submit`."""

import json
import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic, sleep
from typing import Any, NamedTuple, runtime_checkable
from typing import Protocol as Interface

import cloudpickle

from jaxkkt.engine.machine.devices import alone, devices, environment, split_among, threads, using
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.lane_counts import streams
from jaxkkt.engine.planning.trajectories import Trajectory, those_with
from jaxkkt.engine.running.rows import Row, raised
from jaxkkt.engine.running.streams import run_streams
from jaxkkt.engine.running.tally import Tally, together
from jaxkkt.engine.running.workers import end_with_parent
from jaxkkt.runs.run import Run, own_specs, told_of_own
from jaxkkt.specs.base import jsonable
from jaxkkt.specs.identity import function_name
from jaxkkt.specs.reading import from_json
from jaxkkt.store import differences

# A task is a part of a bucket, of at most this much work (half a minute of 2 cores) and this share
# of all.
OPERATIONS_PER_TASK = 5e12
SHARE_PER_TASK = 1 / 64
SECONDS_BETWEEN_LOOKS = 0.25
# How long a sweep that is stopped waits for what workers on this machine have.
SECONDS_TO_STOP = 10.0
# What executors raise for a task that kills its worker, `Workers` and Dask.
KILLED = ("WorkerKilled", "KilledWorker")

_IMPORTED_BY = os.getpid()


@runtime_checkable
class Executor(Interface):
    """Whatever can `submit`, and returns something with `done`, `result` and `cancel`.

    `concurrent.futures` does, so do Dask's `Client.get_executor()`, submitit and mpi4py.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any: ...


class _Reference(NamedTuple):
    """A run by the places of its parts in a table that all tasks of a bucket share, and whether it
    is the first of its trajectory."""

    parts: tuple[int, ...]
    seed: int
    keep: bool
    first: bool


class _Task(NamedTuple):
    """Some runs of a bucket, and what stands for them on the way to a worker."""

    common: bytes
    runs: tuple[Run, ...]
    references: list[_Reference]

    def alone(self) -> list["_Task"]:
        """A task for each run."""
        pairs = zip(self.runs, self.references, strict=True)
        return [_Task(self.common, (run,), [one._replace(first=True)]) for run, one in pairs]


def run_tasks(
    executor: Executor,
    buckets: Sequence[Bucket],
    done: Collection[Run],
    tallies: list[Tally],
    show: Callable[[], None],
    keep: Collection[Run],
    stop: Event,
    patience: float,
    checkpoints: Path | None,
) -> Generator[list[Row], None, None]:
    """Rows of the runs not in `done`, a task at a time; each task that ends adds to `tallies`.

    A task has some of a bucket's runs, and trains them in streams of its own. One that kills its
    worker is split, and a run that does so by itself ends with that. `show` is called now and then.
    Set `stop` to have the rows that there are when workers on this machine have ended their chunks;
    close the iterator to cancel the tasks that have not ended.

    Raises ValueError where a worker's versions, device or flags are not those of this process, the
    first error of a task, once the rows of others that have ended are through, and TimeoutError
    where for `patience` seconds no task has ended.
    """
    waiting: list[tuple[Any, _Task]] = []
    count, stopping = threads(), False

    def submit(task: _Task) -> None:
        places = str(wanted), None if checkpoints is None else str(checkpoints)
        future = executor.submit(train_part, task.common, task.references, count, *places)
        waiting.append((future, task))

    def ended() -> Iterator[list[Row]]:
        """The rows of the tasks that have ended; raises the first error at the end."""
        failed = None
        for future, task in list(waiting):
            if not future.done():
                continue
            waiting.remove((future, task))
            try:
                rows, tally = future.result()
            except Exception as error:
                if stopping:
                    continue
                if type(error).__name__ not in KILLED:
                    failed = failed or error
                elif len(task.runs) == 1:
                    yield [raised(task.runs[0], error)]
                else:
                    for one in task.alone():
                        submit(one)
                continue
            tallies.append(tally)
            yield [row._replace(run=task.runs[row.run]) for row in rows]
        if failed is not None:
            raise failed

    with TemporaryDirectory(prefix="jaxkkt-", ignore_cleanup_errors=True) as folder:
        wanted = Path(folder) / "wanted"
        wanted.touch()
        try:
            for task in _tasks(buckets, done, keep):
                submit(task)
            last, left = monotonic(), len(waiting)
            while waiting and not stop.is_set():
                yield from ended()
                if len(waiting) != left:
                    last, left = monotonic(), len(waiting)
                elif monotonic() - last > patience:
                    raise TimeoutError(
                        f"no task has ended for {patience:g} seconds, and {left} are waiting: are "
                        "there workers left? What has landed is kept"
                    )
                show()
                sleep(SECONDS_BETWEEN_LOOKS if waiting else 0)
            if waiting:
                stopping = True
                wanted.unlink()
                _cancel(waiting)
                last = monotonic()
                while waiting and monotonic() - last < SECONDS_TO_STOP:
                    yield from ended()
                    sleep(SECONDS_BETWEEN_LOOKS if waiting else 0)
        finally:
            _cancel(waiting)


def _cancel(waiting: Sequence[tuple[Any, _Task]]) -> None:
    for future, _ in waiting:
        with suppress(Exception):
            future.cancel()


class _NotWanted(Event):
    """Set when a file is gone that was there at first."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._seen = Path(path), Path(path).exists()

    def is_set(self) -> bool:
        return self._seen and not self._path.exists()


def train_part(
    common: bytes, references: list[_Reference], threads: int, wanted: str, saved: str | None
) -> tuple[list[Row], Tally]:
    """A task: trains and measures a part of a bucket, in a worker, as if it had the cores of the
    sweep's process: XLA splits large products among as many `threads`.

    Ends early, with the rows there are, when the file `wanted` is removed. Long runs are `saved`
    in a folder, where the worker has the one that it is in.
    """
    if os.getpid() != _IMPORTED_BY:
        raise RuntimeError(
            "this worker is a fork, in which JAX hangs: give the executor spawned processes, as "
            "ProcessPoolExecutor(4, multiprocessing.get_context('spawn')) does"
        )
    end_with_parent()
    split_among(threads)
    expected, bucket, parts, _ = _loaded(common)
    runs = tuple(_run(parts, reference) for reference in references)
    keep = {run for run, reference in zip(runs, references, strict=True) if reference.keep}
    firsts = [i for i, reference in enumerate(references) if reference.first]
    found = (runs[i:j] for i, j in pairwise([*firsts, len(runs)]))
    part = replace(bucket, trajectories=tuple(found))
    with using(expected["settings"]), alone():
        differing = differences(expected, environment(), ("in the sweep", "in the worker"))
        if differing:
            raise ValueError(
                "a worker would compute other bits than the process of the sweep; give both the "
                "same versions, devices and flags. What differs:\n  " + "\n  ".join(differing)
            )
        _require_same_functions(common)
        used = devices()
        tallies = [Tally() for _ in range(streams([part], used))]
        asked = _NotWanted(wanted)
        place = Path(saved) if saved is not None and Path(saved).parent.is_dir() else None
        ended = run_streams([part], (), tallies, used, lambda: None, keep, asked, place)
        rows = [row for some in ended for row in some]
        # The sweep knows its runs by their place: specs of own functions change on the way.
        places = {run: i for i, run in enumerate(runs)}
        told: Any = [
            row._replace(run=places[row.run], raised=_portable(row.raised))  # type: ignore[arg-type]
            for row in rows
        ]
        return told, together(tallies)


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one that can be pickled and says the same."""
    try:
        return cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


@lru_cache(maxsize=1)
def _loaded(common: bytes) -> Any:
    """The same objects for every task of a bucket: functions made anew would compile anew."""
    expected, bucket, parts, told = cloudpickle.loads(common)
    return expected, bucket, [_unpacked(part) for part in parts], told


@lru_cache(maxsize=1)
def _require_same_functions(common: bytes) -> None:
    """Raises ValueError where a worker's own functions compute something else than the sweep's, as
    far as it can be told what they do."""
    _, _, parts, told = _loaded(common)
    for reference, computed in told:
        run = _run(parts, reference)
        compared = zip(own_specs(run), computed, told_of_own(run), strict=True)
        others = [spec for spec, there, here in compared if there not in (None, here)]
        if others:
            names = sorted({function_name(spec.brought) for spec in others})
            raise ValueError(
                f"{', '.join(names)}: a worker computes something else by it than the "
                "process of the sweep, as where a module's global was set after its import, which "
                "a worker does not know. Make what is set a field of a class, or an array or "
                "number that the function closes over"
            )


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


def _run(parts: Sequence[Any], reference: _Reference) -> Run:
    return Run.of_fields(*(parts[i] for i in reference.parts)).with_seed(reference.seed)


def _tasks(
    buckets: Sequence[Bucket], done: Collection[Run], keep: Collection[Run]
) -> Iterator[_Task]:
    """The tasks; those of a bucket share what they have in common."""
    expected = environment()
    for bucket, groups in groupby(_parts(buckets, done), lambda part: part[0]):
        places: dict[Any, int] = {}
        tasks, first = [], dict[tuple[int, ...], tuple[_Reference, Run]]()
        for _, some in groups:
            references = [
                _Reference(
                    tuple(places.setdefault(part, len(places)) for part in run.apart_from_seed),
                    run.seed,
                    run in keep,
                    run is one[0],
                )
                for one in some
                for run in one
            ]
            runs = tuple(chain.from_iterable(some))
            tasks.append((runs, references))
            for reference, run in zip(references, runs, strict=True):
                first.setdefault(reference.parts, (reference, run))
        parts = [_packed(part) for part in places]
        told = [(one, known) for one, run in first.values() if any(known := told_of_own(run))]
        common = cloudpickle.dumps((expected, replace(bucket, trajectories=()), parts, told))
        for runs, references in tasks:
            yield _Task(common, runs, references)


def _parts(
    buckets: Sequence[Bucket], done: Collection[Run]
) -> Iterator[tuple[Bucket, list[Trajectory]]]:
    waiting = [(b, those_with(lambda run: run not in done, b.trajectories)) for b in buckets]
    work = {b: b.guessed_steps * b.padded_work / len(b.runs) for b in buckets}
    total = sum(len(left) * work[b] for b, left in waiting)
    most = min(OPERATIONS_PER_TASK, SHARE_PER_TASK * total)
    for bucket, left in waiting:
        size = max(bucket.lanes, int(most / work[bucket]))
        for i in range(0, len(left), size):
            yield bucket, left[i : i + size]
