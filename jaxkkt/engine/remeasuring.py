"""Measurements that a sweep is extended by, of networks that were kept: nothing is trained."""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp

from jaxkkt import datasets, networks
from jaxkkt.engine.machine.devices import cores, device, out_of_memory, settings, using
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.programs.draws import Drawing, draw_batch, pad_params, stacked
from jaxkkt.engine.programs.measuring import measure_batch
from jaxkkt.engine.programs.telling import Telling, Told
from jaxkkt.engine.programs.trained import Trained
from jaxkkt.engine.running.rows import Row, raised
from jaxkkt.engine.running.streams import LEAST_LANES
from jaxkkt.engine.tables.records import Known
from jaxkkt.measurements import Measurement
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import by_value


def remeasured(
    lacking: Mapping[Run, Known],
    network: Callable[[Run], Params | None],
    buckets: Sequence[Bucket],
    stop: Event,
) -> Generator[list[Row], None, None]:
    """The rows of kept networks with the measurements that they lack, some at a time, as they are
    made.

    A run that raises ends with that, and the others go on. Where memory runs out fewer are measured
    at a time. Left out are runs whose `network` is none, those of measurements that ask for the
    networks on the way, which are not kept, and those that memory does not hold.
    """
    mode, place = settings(), device()

    def of_kept(bucket: Bucket, telling: Telling, runs: Sequence[Run]) -> list[Row]:
        kept = {} if stop.is_set() else {run: network(run) for run in runs}
        return complete(bucket, telling, {run: p for run, p in kept.items() if p is not None})

    def complete(bucket: Bucket, telling: Telling, mine: Mapping[Run, Params]) -> list[Row]:
        if stop.is_set() or not mine:
            return []
        try:
            with using(mode, place):
                found = _measured(bucket, telling, mine, lacking)
        except Exception as error:
            smaller = out_of_memory(error)
            if len(mine) == 1 and not smaller:
                return [raised(run, error) for run in mine]
        else:
            each = zip(mine, found, strict=True)
            return [_completed(lacking[run], some, bucket.measured_as) for run, some in each]
        at_a_time = 1
        if smaller:
            if bucket.slots <= LEAST_LANES:
                return []  # they train again
            bucket = bucket.with_lanes(max(LEAST_LANES, bucket.slots // 2))
            telling, at_a_time = Telling.of(bucket), bucket.turn
        left = list(mine.items())
        parts = [dict(left[i : i + at_a_time]) for i in range(0, len(left), at_a_time)]
        return [row for part in parts for row in complete(bucket, telling, part)]

    pool = ThreadPoolExecutor(cores())
    try:
        tasks = [
            pool.submit(of_kept, bucket, telling, runs)
            for bucket in buckets
            for telling, runs in _turns(bucket, lacking)
        ]
        for task in as_completed(tasks):
            yield task.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _turns(
    bucket: Bucket, lacking: Mapping[Run, Known]
) -> Generator[tuple[Telling, list[Run]], None, None]:
    """The bucket's lacking runs, as many at a time as it measures, those that are drawn alike."""
    runs = [
        run
        for run in bucket.runs
        if run in lacking and not _asks_for_curve(run, lacking[run].lacks)
    ]
    if not runs:
        return
    telling = Telling.of(bucket)
    alike: dict[Drawing, list[Run]] = {}
    for run in runs:
        alike.setdefault(telling.drawing(run), []).append(run)
    for mine in alike.values():
        for i in range(0, len(mine), bucket.turn):
            yield telling, mine[i : i + bucket.turn]


def _measured(
    bucket: Bucket, telling: Telling, mine: Mapping[Run, Params], lacking: Mapping[Run, Known]
) -> Sequence[Any]:
    """What each of the runs lacks."""
    asked = [_those_at(run.measure, lacking[run].lacks) for run in mine]
    trained, no_curves = _trained(bucket, telling, mine), [None] * len(mine)
    return measure_batch(list(mine), asked, trained, bucket.side_by_side, no_curves)().of_each()


def _trained(bucket: Bucket, telling: Telling, kept: Mapping[Run, Params]) -> Trained:
    """The networks with what they started from and trained on, as a sweep measures them."""
    m, d, k = bucket.measured_at
    words = telling.rows_of([Told(run, i) for i, run in enumerate(kept)], bucket)
    drawing, runs = telling.drawing(next(iter(kept))), list(kept)
    drawn = draw_batch(drawing, jnp.asarray(words), runs, bucket.slots, bucket.side_by_side)
    params = stacked([pad_params(one, k, d) for one in kept.values()], bucket.turn)
    start = jax.vmap(lambda some: networks.pad(some, k, d))(drawn.start) if bucket.starts else None
    return Trained(params, start, jax.vmap(lambda some: datasets.pad(some, m, d))(drawn.data))


def _completed(
    had: Known, found: tuple[Mapping[str, Any], Mapping[str, int]] | Exception, measured_as: str
) -> Row:
    """The row with what it lacked, which was measured so."""
    if isinstance(found, Exception):
        return raised(had.row.run, found)
    values, owners = found
    try:
        row = had.row.with_values(values, {name: had.lacks[j] for name, j in owners.items()})
    except ValueError as error:
        return raised(had.row.run, error)
    if measured_as in row.computed_as.split(", "):
        return row
    return row._replace(computed_as=f"{row.computed_as}, {measured_as}")


@by_value
def _those_at(
    measurements: tuple[Measurement, ...], places: tuple[int, ...]
) -> tuple[Measurement, ...]:
    """One and the same tuple for runs that lack the same: what follows from it is kept by that."""
    return tuple(measurements[i] for i in places)


def _asks_for_curve(run: Run, places: Sequence[int]) -> bool:
    return any("curve" in run.measure[i].needs() for i in places)
