"""Streams: threads that train side by side, each a batch of lanes of its own."""

import gc
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import chain, cycle
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Any, TypeVar

import jax

from jaxkkt.engine.machine.devices import cores, out_of_memory, settings, using
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.trajectories import Trajectory, beginning_at, those_with
from jaxkkt.engine.programs.training import Programs, compile_bucket
from jaxkkt.engine.running.checkpoints import Saved
from jaxkkt.engine.running.lanes import OutOfMemory, run_bucket
from jaxkkt.engine.running.rows import Row, all_raised
from jaxkkt.engine.running.tally import Tally
from jaxkkt.runs.run import Run

T = TypeVar("T")

log = logging.getLogger("jaxkkt")

SECONDS_BETWEEN_SHOWS = 0.25
MOST_COMPILERS = 4
# A batch of one lane is compiled to other bits than those of several.
LEAST_LANES = 2


def run_streams(
    buckets: Sequence[Bucket],
    done: Collection[Run],
    tallies: Sequence[Tally],
    devices: Sequence[jax.Device],
    show: Callable[[], None],
    keep: Collection[Run] = (),
    asked: Event | None = None,
    checkpoints: Path | None = None,
) -> Generator[list[Row], None, None]:
    """Rows of the runs not in `done`, some at a time, as they end; a stream for each of `tallies`.

    Streams take the devices in turn, and runs from the same queues. Every other one goes through
    the buckets from their end: so they meet at runs of middling length, and none trains the longest
    run alone while the others have nothing left. Other threads compile ahead of them.
    Where the programs of a bucket cannot be compiled, or memory does not hold one of its runs, its
    runs end with what raised.
    `show` is called now and then, in the caller's thread. Once `asked` is set the streams end with
    their chunk, and the iterator when it has yielded the rows there are. Close it to stop them,
    too; rows not yet yielded are lost.
    """
    ended: SimpleQueue[list[Row] | None] = SimpleQueue()
    stop, here, used = Event(), settings(), devices[: len(tallies)]
    saved = None if checkpoints is None else Saved(checkpoints)
    lock, at_work = Lock(), Counter[int]()  # by queue

    def compile_ahead(bucket: Bucket, device: jax.Device) -> Programs:
        with using(here, device):
            return compile_bucket(bucket)

    def stream(tally: Tally, device: jax.Device, waiting: Sequence[Any]) -> None:
        with using(here, device):
            for bucket, queue, programs in waiting:
                try:
                    compiled = compiled_before_a_stop(programs[device]) if queue else None
                except Exception as error:  # of an own optimizer
                    if out_of_memory(error):
                        raise
                    for one in all_of(queue):
                        ended.put(all_raised(one, error))
                    continue
                if compiled:
                    with lock:
                        at_work[id(queue)] += 1
                    none_fits = None
                    try:
                        for rows in fitting(bucket, queue, compiled, tally):
                            ended.put(rows)
                    except OutOfMemory as raised:  # not even empty lanes fit
                        none_fits = raised
                    with lock:
                        at_work[id(queue)] -= 1
                        others = at_work[id(queue)]
                    if none_fits and not others:  # who may have the memory for what is left
                        for one in all_of(queue):
                            ended.put(all_raised(one, none_fits))

    def fitting(
        bucket: Bucket, queue: deque[Trajectory], programs: Programs, tally: Tally
    ) -> Iterator[list[Row]]:
        """The rows of a bucket; where memory runs out with half the lanes, and so on down to 2."""
        while not stop.is_set():
            try:
                yield from run_bucket(
                    bucket, queue, programs, tally, stop, keep, saved, len(tallies)
                )
                return
            except OutOfMemory as error:
                if bucket.slots <= LEAST_LANES:
                    if not error.left:  # not even empty lanes fit
                        raise
                    yield [row for one in error.left for row in all_raised(one, error)]
                    continue
                queue.extendleft(error.left)
                # First without slots that wait for a lane: the lanes stay, and so the bits.
                some_wait = bucket.slots > bucket.lanes
                lanes = bucket.lanes if some_wait else max(LEAST_LANES, bucket.lanes // 2)
                told = "out of memory with %d networks (%s): going on with %d"
                log.warning(told, bucket.slots, bucket.computed_as, lanes)
                bucket = bucket.with_lanes(lanes)
            gc.collect()  # frames of what raised hold the memory of the lanes
            programs = compile_bucket(bucket)

    def compiled_before_a_stop(programs: Future[Programs]) -> Programs | None:
        while not stop.is_set():
            if wait([programs], SECONDS_BETWEEN_SHOWS).done:
                return programs.result()
        return None

    # Nobody waits for what they compile after a stop.
    compiler = ThreadPoolExecutor(len(used) * compilers(used[0]))
    with ThreadPoolExecutor(len(tallies)) as pool:
        try:
            left = [
                # One that was saved on its way goes on from there.
                (b, deque(beginning_at(lambda run: saved is not None and run in saved, whole)))
                for b in buckets
                if (whole := those_with(lambda run: run not in done, b.trajectories))
            ]
            places = range(len(left))
            programs = {
                i: {device: compiler.submit(compile_ahead, left[i][0], device) for device in used}
                for i in (from_both_ends(places) if len(tallies) > 1 else places)
            }
            waiting = [(*left[i], programs[i]) for i in places]
            ways = cycle((waiting, waiting[::-1]))
            streams = [pool.submit(stream, *each) for each in zip(tallies, cycle(used), ways)]
            for future in streams:
                future.add_done_callback(lambda _: ended.put(None))
            going = len(streams)
            while going:
                if asked is not None and asked.is_set():
                    stop.set()
                some = all_in(ended, SECONDS_BETWEEN_SHOWS)
                found = [rows for rows in some if rows is not None]
                if rows := list(chain.from_iterable(found)):
                    yield rows
                going -= len(some) - len(found)
                for future in streams:
                    if len(found) < len(some) and future.done():
                        future.result()  # raises what the stream did
                show()
        finally:
            stop.set()
            compiler.shutdown(wait=False, cancel_futures=True)


def compilers(device: jax.Device) -> int:
    """How many threads compile for a device: one where its cores train, several where they wait."""
    return 1 if device.platform == "cpu" else max(1, min(MOST_COMPILERS, cores() // 2))


def all_of(queue: deque[T]) -> Iterator[T]:
    """What is left in a queue, until there is nothing; others may take from it, too."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()


def from_both_ends(items: Sequence[T]) -> list[T]:
    """The first, the last, the second, the last but one, and so on."""
    return [items[-1 - i // 2 if i % 2 else i // 2] for i in range(len(items))]


def all_in(queue: SimpleQueue[T], seconds: float) -> list[T]:
    """What is in a queue; where there is nothing, what comes first within so many seconds."""
    found = []
    with suppress(Empty):
        found.append(queue.get(timeout=seconds))
        while True:
            found.append(queue.get_nowait())
    return found
