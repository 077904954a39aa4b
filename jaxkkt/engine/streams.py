"""Streams: threads that train side by side, each a batch of lanes of its own."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

import jax

from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.lanes import Row, Tally, run_bucket
from jaxkkt.engine.programs import Programs, compile_bucket
from jaxkkt.engine.specs import Run
from jaxkkt.measurements import Measurement
from jaxkkt.training import Protocol

SECONDS_BETWEEN_SHOWS = 0.25


def run_streams(
    buckets: Sequence[Bucket],
    done: Collection[Run],
    protocol: Protocol,
    measurements: Sequence[Measurement],
    tallies: Sequence[Tally],
    show: Callable[[], None],
) -> Generator[Row, None, None]:
    """Rows of the runs not in `done`, as they end; one stream for each of `tallies`.

    All streams go through the buckets in order and take runs from the same queues; one more thread
    compiles ahead of them. `show` is called now and then, in the caller's thread. Close the
    iterator to stop the streams: they end with their chunk, and runs not yet yielded are lost.
    """
    ended: SimpleQueue[Row | None] = SimpleQueue()
    stop, same_settings = Event(), _same_settings()

    def compile_ahead(bucket: Bucket) -> Programs:
        with same_settings():
            return compile_bucket(bucket, protocol, measurements)

    def stream(tally: Tally) -> None:
        steps = protocol.expected_steps
        with same_settings():
            for bucket, queue, programs in waiting:
                if queue and not stop.is_set():
                    for row in run_bucket(bucket, queue, programs.result(), steps, tally, stop):
                        ended.put(row)

    with ThreadPoolExecutor(1) as compiler, ThreadPoolExecutor(len(tallies)) as pool:
        try:
            queues = [(b, deque(run for run in b.runs if run not in done)) for b in buckets]
            waiting = [
                (b, queue, compiler.submit(compile_ahead, b)) for b, queue in queues if queue
            ]
            streams = [pool.submit(stream, tally) for tally in tallies]
            for future in streams:
                future.add_done_callback(lambda _: ended.put(None))
            going = len(streams)
            while going:
                try:
                    row = ended.get(timeout=SECONDS_BETWEEN_SHOWS)
                except Empty:
                    pass
                else:
                    if row is not None:
                        yield row
                    else:
                        going -= 1
                        for future in streams:
                            if future.done():
                                future.result()  # raises what the stream did
                show()
        finally:
            stop.set()
            compiler.shutdown(wait=False, cancel_futures=True)


def _same_settings() -> Callable[[], AbstractContextManager[None]]:
    """Enters this thread's `with jax.default_device(...)` and the like in other threads."""
    config: Any = jax.config
    device, x64 = config.jax_default_device, config.jax_enable_x64

    @contextmanager
    def same() -> Iterator[None]:
        with jax.default_device(device), jax.enable_x64(x64):
            yield

    return same
