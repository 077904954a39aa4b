"""BLAS runs on one thread while a sweep does."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
from cases import sweep
from threadpoolctl import threadpool_info, threadpool_limits

import jaxkkt as jk
from jaxkkt.engine.machine import devices as engine_devices
from jaxkkt.engine.machine.devices import alone


def test_blas_runs_on_one_thread():
    class Threads(jk.Measurement):
        on_host = True

        def measure(self, params):
            pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
            return {"threads": max(pool["num_threads"] for pool in pools)}

    runs = jk.grid(d=8, samples=6, width=20, seed=0, measure=Threads)
    assert sweep(runs).threads.item() == 1
    with ThreadPoolExecutor(1) as executor:
        assert sweep(runs, executor=executor).threads.item() == 1


def test_libraries_that_came_with_an_import_are_looked_for(monkeypatch):
    looks = []
    look = engine_devices.ThreadpoolController
    monkeypatch.setattr(engine_devices, "ThreadpoolController", lambda: looks.append(1) or look())
    for imported in (["one"], [], ["two"]):
        for name in imported:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        with engine_devices.alone():
            pass
    assert len(looks) == 2


def test_the_last_one_out_gives_back_the_threads_of_blas():
    """A sweep that ended beside another took its limit, and left its own for good."""

    def counts():
        np.eye(2) @ np.eye(2)
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        first, second = alone(), alone()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert counts() == {1}
        second.__exit__(None, None, None)
        assert counts() == {2}
