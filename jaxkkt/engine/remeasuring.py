"""Measurements that a sweep is extended by, of networks that were kept: nothing is trained."""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event

from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.devices import cores, device, settings, using
from jaxkkt.engine.draws import draw
from jaxkkt.engine.lanes import Row, raised
from jaxkkt.engine.measuring import measure
from jaxkkt.engine.records import Known
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run


def remeasured(
    lacking: Mapping[Run, Known],
    network: Callable[[Run], Params | None],
    buckets: Sequence[Bucket],
    stop: Event,
) -> Generator[Row, None, None]:
    """The rows of kept networks with the measurements that they lack, by place, as they are made.

    A run that raises ends with that. Left out are runs whose `network` is
    none, and those of measurements that ask for the networks on the way, which are not kept.
    """
    mode, place = settings(), device()

    def complete(run: Run, shape: tuple[int, int, int]) -> Row | None:
        params = None if stop.is_set() else network(run)
        if params is None:
            return None
        row, places, _ = lacking[run]
        missing = [run.measure[i] for i in places]
        try:
            with using(mode, place):
                start, data = draw(run)
                found = measure(run, missing, params, start, data, shape)
            return row.with_values(found, places)
        except Exception as error:
            return raised(run, error)

    pool = ThreadPoolExecutor(cores())
    try:
        tasks = [
            pool.submit(complete, run, bucket.measured_at)
            for bucket in buckets
            for run in bucket.runs
            if run in lacking and not _asks_for_curve(run, lacking[run].lacks)
        ]
        for task in as_completed(tasks):
            row = task.result()
            if row is not None:
                yield row
    finally:
        pool.shutdown(cancel_futures=True)


def _asks_for_curve(run: Run, places: Sequence[int]) -> bool:
    return any("curve" in run.measure[i].needs() for i in places)
