"""Python's garbage collector, where there is nothing for it to find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
