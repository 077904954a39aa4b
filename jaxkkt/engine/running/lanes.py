"""Running a bucket: slots of a compiled batch take runs from a queue until it is empty."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import jax
import numpy as np

from jaxkkt.engine.machine.devices import out_of_memory
from jaxkkt.engine.planning.buckets import REFILLS, Bucket
from jaxkkt.engine.planning.trajectories import Trajectory
from jaxkkt.engine.programs.training import Programs
from jaxkkt.engine.running.checkpoints import Saved
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.running.slots import RAISED, RUNNING, Slots, Start
from jaxkkt.engine.running.tally import Tally
from jaxkkt.runs.run import Run

# A chunk of steps lasts about this long: progress is seen, and a stop heard, between chunks.
CHUNK_SECONDS = 1.0
FIRST_CHUNK = 20
# When a sweep is stopped it saves the runs that have trained for so long.
SECONDS_WORTH_SAVING = 5.0


class OutOfMemory(Exception):
    """The device's memory does not hold the lanes; `left` were in them, each of so many bytes."""

    def __init__(self, left: Sequence[Trajectory], slot_bytes: int) -> None:
        told = f"{len(left)} runs at a time" if left else "any run"
        super().__init__(
            f"no memory for {told}, of about {slot_bytes / 2**20:,.1f} MiB "
            "each beside what their measurements take: train narrower networks or on fewer "
            "samples, measure less, or take a device of more memory"
        )
        self.left = left


def run_bucket(
    bucket: Bucket,
    queue: deque[Trajectory],
    programs: Programs,
    tally: Tally,
    stop: Event | None = None,
    keep: Collection[Run] = (),
    saved: Saved | None = None,
    streams: int = 1,
) -> Iterator[list[Row]]:
    """Trains and measures runs of the bucket, until `queue` is empty, yielding the rows of those
    that end together; of an accelerator while the next train. Those of a trajectory go on from
    where the one before ended.

    As many `streams` as told may take from the same queue. A run's numbers do not depend on its
    slot, on the runs beside it or on the chunk length. A run whose data or measurements raise ends
    with that. Ends between two chunks once `stop` is set. With a folder for what is `saved`, long
    runs are saved there now and then, and when stopped, and go on from where they were.

    Raises OutOfMemory where the device has too little for the bucket's lanes.
    """
    with _another_thread(bucket.side_by_side) as start:
        slots = Slots(bucket, programs, saved, keep, start, streams)
        try:
            yield from _run(slots, queue, tally, stop)
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            yield [row for row, _ in slots.raised] + slots.take_undrawn()
            raise OutOfMemory(slots.left, bucket.slot_bytes) from error


@contextmanager
def _another_thread(wanted: bool) -> Iterator[Start]:
    """Where an accelerator trains, so that rows are made meanwhile. A stream of a CPU has a core of
    its own, so there one follows the other."""
    if not wanted:
        yield lambda function: function
        return
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result


def _run(
    slots: Slots, queue: deque[Trajectory], tally: Tally, stop: Event | None
) -> Iterator[list[Row]]:
    bucket = slots.bucket
    chunk, expected, few = FIRST_CHUNK, bucket.guessed_steps, max(1, bucket.lanes // REFILLS)
    while not (stop and stop.is_set()):
        slots.take_in(queue)
        occupied = slots.occupied
        if not occupied:
            break
        # Where none waits to be taken in, all run to their ends.
        wait = slots.advance(chunk, ended=few if queue or bucket.resumes else bucket.lanes)
        yield from _rows(slots, tally)
        told, seconds = wait()
        trips = int(told.trips)
        if trips >= chunk:
            chunk = max(1, int(chunk * np.clip(CHUNK_SECONDS / seconds, 0.25, 4)))

        tally.run_seconds += seconds
        tally.lane_steps += trips * bucket.lanes
        tally.lanes, tally.busy_lanes = bucket.lanes, min(len(occupied), bucket.lanes)
        tally.steps_per_second = trips * tally.busy_lanes / seconds
        tally.log_losses = tuple(told.log_loss[occupied].tolist())
        status = told.status.tolist()
        running = [i for i in occupied if status[i] == RUNNING]
        shares = np.minimum(told.steps[running] / expected, 0.95)
        tally.work = float(shares.sum()) * bucket.padded_work / len(bucket.runs)
        ended = [i for i in occupied if status[i] != RUNNING]
        if running and all(status[i] == RAISED for i in ended):
            ended = []  # told beside others that end
        for i in range(0, len(ended), bucket.turn):
            slots.take_out(ended[i : i + bucket.turn], told)
            if not bucket.side_by_side:
                yield from _rows(slots, tally)
        slots.save_if_due()
    yield from _rows(slots, tally)
    yield slots.take_undrawn()
    if stop and stop.is_set():
        slots.save(SECONDS_WORTH_SAVING)
    tally.rest()


def _rows(slots: Slots, tally: Tally) -> Iterator[list[Row]]:
    """Those that there are; after them, so as not to be the first, those of runs not drawn."""
    some = False
    for rows, steps in slots.rows():
        some = True
        tally.useful_steps += steps
        yield rows
    if some:
        yield slots.take_undrawn()
