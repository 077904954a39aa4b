"""Ctrl-C and SIGTERM: the first ends a sweep in order, the second at once."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("jaxkkt")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A sweep was asked to stop, and did when what had ended was saved.

    `code` is what a process that ends so returns: 130 after Ctrl-C, 143 after SIGTERM.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.code = 128 + number


class Request(threading.Event):
    """Whether somebody asked to stop, and by which signal; how many sweeps look at it."""

    number: int = signal.SIGINT
    sweeps: int = 0


_above: list[Request] = []


@contextmanager
def listening(command: bool = False) -> Iterator[Request]:
    """A request that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt.

    Around a `command` the first raises Stopped where no sweep is under way, and the second ends the
    process at once: it has nothing else to lose. Within another one it is that one. Outside the
    main thread signals are left as they are.
    """
    request = _above[0] if _above else Request()
    if _above or threading.current_thread() is not threading.main_thread():
        request.sweeps += 1
        try:
            yield request
        finally:
            request.sweeps -= 1
        return

    def heard(number: int, frame: FrameType | None) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if not request.is_set():
            request.number = number
            request.set()
            if not request.sweeps:
                raise Stopped(f"stopped by {name}", number)
            log.warning("%s: stopping after this chunk of steps; once more to leave at once", name)
        elif command:
            os._exit(128 + number)
        else:
            raise KeyboardInterrupt

    request.sweeps = 0 if command else 1

    # A handler that is not Python's, as of a program that Python runs within, is left alone.
    mine = [number for number in SIGNALS if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, heard) for number in mine}
    _above.append(request)
    try:
        yield request
    finally:
        _above.clear()
        for number, handler in before.items():
            # A process that was asked to stop ends soon; what it still compiles need not hold it.
            signal.signal(number, signal.SIG_DFL if command and request.is_set() else handler)
