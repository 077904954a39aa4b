"""Python's garbage collector, where there is nothing for it to find."""

import atexit
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

SECONDS_BETWEEN_COLLECTIONS = 20.0
# Python 3.12 freezes some hundred objects of its own as it starts; who freezes has thousands.
FROZEN_BY_PYTHON = 2000


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector: where hundreds of thousands of objects are made, and all of them stay,
    it would go through them again and again, a third of the time. What other threads leave behind
    meanwhile waits."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """`uncollected`, for imports, whose objects stay as long as the process. Afterwards they count
    as old: the collector would go through all of them once more at the next few objects."""
    with uncollected():
        yield
        if gc.get_freeze_count() < FROZEN_BY_PYTHON:  # what somebody has frozen stays frozen
            gc.freeze()
            gc.unfreeze()


@contextmanager
def seldom_collected() -> Iterator[Callable[[], None]]:
    """`uncollected`, for what takes long and leaves some garbage: to call what this gives collects
    it, now and then. By itself the collector would look at all rows at every few thousand."""
    last = monotonic()

    def collect() -> None:
        nonlocal last
        if monotonic() - last > SECONDS_BETWEEN_COLLECTIONS:
            gc.collect()
            last = monotonic()

    with uncollected():
        yield collect


def left_at_exit() -> None:
    """Where this process ends, the collector would go through all objects once more, for half a
    second: they end with the process. To call this again changes nothing."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
