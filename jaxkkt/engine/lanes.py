"""Running one bucket: lanes of a compiled batch take runs from a queue until it is empty."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.draws import draw_padded, rounded
from jaxkkt.engine.programs import Programs
from jaxkkt.engine.specs import Run
from jaxkkt.networks import Params
from jaxkkt.training import State, Status

# A chunk of steps lasts about this long: progress is shown, and a signal heard, between chunks.
CHUNK_SECONDS = 0.5
FIRST_CHUNK = 20


class Row(NamedTuple):
    """A finished run: what was measured, and how it ended, as Python numbers."""

    run: Run
    values: dict[str, float | int]


@dataclass
class Tally:
    """What a sweep has done so far, for progress bars and reports."""

    runs_done: int = 0
    progress: float = 0.0  # expected share of the bucket's running runs that is done, in runs
    lane_steps: int = 0
    useful_steps: int = 0
    run_seconds: float = 0.0
    busy_lanes: int = 0
    lanes: int = 0
    steps_per_second: float = 0.0
    log_losses: tuple[float, float] = (float("nan"), float("nan"))

    def useful_share(self) -> float:
        """Share of lane-steps that advanced a run; the rest went over finished or empty lanes."""
        return self.useful_steps / self.lane_steps if self.lane_steps else 1.0


class _Lane(NamedTuple):
    run: Run
    params: Params
    data: Dataset


def run_bucket(
    bucket: Bucket,
    runs: Iterable[Run],
    programs: Programs,
    expected_steps: int,
    tally: Tally,
    show: Callable[[Tally], None] = lambda _: None,
) -> Iterator[Row]:
    """Trains and measures `runs` (some or all of the bucket's), yielding each as it ends.

    A run's numbers do not depend on its lane, on the runs beside it or on the chunk length.
    """
    queue = deque(runs)
    lanes: list[_Lane | None] = [None] * bucket.lanes
    batch: tuple[State, Any] | None = None
    chunk = FIRST_CHUNK
    while queue or any(lanes):
        for i in range(bucket.lanes):
            if lanes[i] is None and queue:
                run = queue.popleft()
                params, data = draw_padded(run, bucket.samples, bucket.d, bucket.width)
                lanes[i] = _Lane(run, params, data)
                loaded = programs.load(params, data, run.shuffle_key())
                batch = programs.empty(loaded) if batch is None else batch
                batch = programs.place(batch, loaded, np.int32(i))
        assert batch is not None
        busy = sum(lane is not None for lane in lanes)
        started = perf_counter()
        # While runs wait, come back as soon as a lane falls free; after that, when all have ended.
        least = np.int32(busy if queue else 1)
        batch, trips = programs.advance(batch, np.int32(chunk), least)
        states = batch[0]
        ended, steps, log_loss = jax.device_get((states.status, states.steps, states.log_loss))
        seconds, trips = perf_counter() - started, int(trips)
        if trips == chunk:
            chunk = max(1, int(chunk * np.clip(CHUNK_SECONDS / seconds, 0.25, 4)))

        occupied = [i for i, lane in enumerate(lanes) if lane is not None]
        tally.run_seconds += seconds
        tally.lane_steps += trips * bucket.lanes
        tally.lanes, tally.busy_lanes = bucket.lanes, busy
        tally.steps_per_second = trips * busy / seconds
        tally.log_losses = (float(log_loss[occupied].min()), float(log_loss[occupied].max()))
        tally.progress = float(np.minimum(steps[occupied] / expected_steps, 0.95).sum())
        show(tally)
        for i in occupied:
            done = lanes[i]
            if done is None or ended[i] == Status.RUNNING:
                continue
            trained, ending = programs.decode(batch, np.int32(i), done.params, done.data)
            measured = programs.measure(trained, rounded(done.data))
            values = jax.device_get({**measured, **ending})
            lanes[i] = None
            tally.runs_done += 1
            tally.useful_steps += int(steps[i]) + 1
            yield Row(done.run, {name: value.item() for name, value in values.items()})
