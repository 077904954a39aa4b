"""What threads share is computed once."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from jaxkkt.engine.machine.once import once
from jaxkkt.specs.same import forget_results


def test_threads_that_ask_at_the_same_time_share_one_computation():
    calls = []
    ready = Barrier(4, timeout=30)

    @once
    def slow(number):
        calls.append(number)
        time.sleep(0.2)  # for the others to ask
        return object()

    def ask(_):
        ready.wait()
        return slow(1)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(4)))
    assert calls == [1]
    assert len(set(map(id, answers))) == 1


def test_what_raised_is_computed_again():
    calls = []

    @once
    def fails_first(number):
        calls.append(number)
        if len(calls) == 1:
            raise OSError("once")
        return number

    with pytest.raises(OSError, match="once"):
        fails_first(2)
    assert fails_first(2) == 2


def test_what_was_computed_is_let_go_of_with_all_that_is_kept():
    calls = []
    noted = once(calls.append)
    noted(3)
    noted(3)
    assert calls == [3]
    forget_results()
    noted(3)
    assert calls == [3, 3]


def test_ctrl_c_leaves_nobody_waiting():
    """It may come before the first thing that is computed."""

    class Interrupted(dict):
        def setdefault(self, key, value):
            super().setdefault(key, value)
            raise KeyboardInterrupt

    doubled = once(lambda number: 2 * number)
    doubled._results = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        doubled(4)
    doubled._results = dict(doubled._results)
    with ThreadPoolExecutor(1) as thread:
        again = thread.submit(doubled, 4)
        assert again.exception(timeout=30) is None
    assert again.result() == 8
