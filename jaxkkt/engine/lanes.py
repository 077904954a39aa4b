"""Running a bucket: lanes of a compiled batch take runs from a queue until it is empty."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.draws import draw_padded
from jaxkkt.engine.programs import Programs
from jaxkkt.engine.specs import Run
from jaxkkt.networks import Params
from jaxkkt.training import State, Status

# A chunk of steps lasts about this long: progress is seen, and a stop heard, between chunks.
CHUNK_SECONDS = 0.5
FIRST_CHUNK = 20


class Row(NamedTuple):
    """A finished run: what was measured, and how it ended, as Python numbers."""

    run: Run
    values: dict[str, float | int]


@dataclass
class Tally:
    """What a stream has done so far, and is doing, for progress bars and reports."""

    lane_steps: int = 0
    useful_steps: int = 0
    run_seconds: float = 0.0
    # What it is doing; `work` is the expected work done on the runs not yet ended.
    work: float = 0.0
    busy_lanes: int = 0
    lanes: int = 0
    steps_per_second: float = 0.0
    log_losses: tuple[float, ...] = ()

    def useful_share(self) -> float:
        """Share of lane-steps that advanced a run; the rest went over finished or empty lanes."""
        return self.useful_steps / self.lane_steps if self.lane_steps else 1.0

    def rest(self) -> None:
        """Nothing is running."""
        self.work, self.busy_lanes, self.lanes = 0.0, 0, 0
        self.steps_per_second, self.log_losses = 0.0, ()


def together(tallies: Iterable[Tally]) -> Tally:
    """What several streams have done and are doing."""
    total = Tally()
    for tally in tallies:
        total.lane_steps += tally.lane_steps
        total.useful_steps += tally.useful_steps
        total.run_seconds += tally.run_seconds
        total.work += tally.work
        total.busy_lanes += tally.busy_lanes
        total.lanes += tally.lanes
        total.steps_per_second += tally.steps_per_second
        total.log_losses += tally.log_losses
    return total


class _Lane(NamedTuple):
    run: Run
    params: Params
    data: Dataset


def run_bucket(
    bucket: Bucket,
    queue: deque[Run],
    programs: Programs,
    expected_steps: int,
    tally: Tally,
    stop: Event | None = None,
) -> Iterator[Row]:
    """Trains and measures runs of the bucket, yielding each as it ends, until `queue` is empty.

    Other threads may take from the same queue. A run's numbers do not depend on its lane, on the
    runs beside it or on the chunk length. Ends between two chunks once `stop` is set.
    """
    lanes: list[_Lane | None] = [None] * bucket.lanes
    batch: tuple[State, Any] = programs.idle()
    chunk = FIRST_CHUNK
    while not (stop and stop.is_set()):
        for i in range(bucket.lanes):
            if lanes[i] is None and (run := _next(queue)):
                params, data = draw_padded(run, bucket.samples, bucket.d, bucket.width)
                lanes[i] = _Lane(run, params, data)
                batch = programs.place(batch, np.int32(i), params, data, run.shuffle_key())
        occupied = [i for i, lane in enumerate(lanes) if lane is not None]
        if not occupied:
            break
        started = perf_counter()
        # While runs wait, come back as soon as a lane falls free; after that, when all have ended.
        least = np.int32(len(occupied) if queue else 1)
        batch, taken = programs.advance(batch, np.int32(chunk), least)
        states = batch[0]
        ended, steps, log_loss = jax.device_get((states.status, states.steps, states.log_loss))
        seconds, trips = perf_counter() - started, int(taken)
        if trips == chunk:
            chunk = max(1, int(chunk * np.clip(CHUNK_SECONDS / seconds, 0.25, 4)))

        tally.run_seconds += seconds
        tally.lane_steps += trips * bucket.lanes
        tally.lanes, tally.busy_lanes = bucket.lanes, len(occupied)
        tally.steps_per_second = trips * len(occupied) / seconds
        tally.log_losses = tuple(log_loss[occupied].tolist())
        running = [i for i in occupied if ended[i] == Status.RUNNING]
        shares = np.minimum(steps[running] / expected_steps, 0.95)
        tally.work = float(shares.sum()) * bucket.padded_work / len(bucket.runs)
        for i in occupied:
            done = lanes[i]
            if done is None or ended[i] == Status.RUNNING:
                continue
            trained, ending = programs.decode(batch, np.int32(i), done.params, done.data)
            measured = programs.measure(trained, *done)
            values = jax.device_get({**measured, **ending})
            lanes[i] = None
            tally.useful_steps += int(steps[i]) + 1
            yield Row(done.run, {name: value.item() for name, value in values.items()})
    tally.rest()


def _next(queue: deque[Run]) -> Run | None:
    try:
        return queue.popleft()
    except IndexError:
        return None
