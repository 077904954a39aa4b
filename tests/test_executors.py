"""Sweeps whose runs are trained in the workers of an executor."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from cases import rows_in, sweep
from executor_cases import Inline

import jaxkkt as jk
from jaxkkt.engine.running import executors
from jaxkkt.store import Writer

RUNS = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(3))

IN_PROCESSES = """
import json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import jaxkkt as jk

runs = jk.grid(d=[8, 12], samples=[6], width=[20], seed=[0])
with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
    table = jk.sweep(runs, progress=False, executor=executor)
print(json.dumps(table.flip_size.values.ravel().tolist()))
"""


@pytest.mark.slow
def test_processes_give_the_same_bits():
    here = sweep(jk.grid(d=[8, 12], samples=[6], width=[20], seed=[0]))
    out = subprocess.run(
        [sys.executable, "-c", IN_PROCESSES], check=True, capture_output=True
    ).stdout
    expected = here.flip_size.values.ravel()
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(np.array(json.loads(out)), expected)


@pytest.mark.usefixtures("one_lane")
class TestExecutors:
    @pytest.mark.slow
    def test_small_tasks_give_the_same_bits(self, monkeypatch, capsys):
        whole = sweep(RUNS)
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with ThreadPoolExecutor(2) as executor:
            table = sweep(RUNS, progress=True, executor=executor)
        xr.testing.assert_identical(table, whole)
        shown = capsys.readouterr().err
        assert "12/12 runs" in shown
        assert re.search(r"\(tasks: 12\); (99|100)\.\d% of lane-steps useful", shown)

    @pytest.mark.slow
    def test_a_stopped_sweep_goes_on_in_an_executor(self, tmp_path, monkeypatch):
        whole = sweep(RUNS)
        save, saved = Writer.add_all, []

        def stop(self, *row):
            if len(saved) >= 5:
                raise KeyboardInterrupt
            saved.extend(*row)
            save(self, *row)

        with monkeypatch.context() as patched:
            patched.setattr(Writer, "add_all", stop)
            with pytest.raises(KeyboardInterrupt):
                sweep(RUNS, store=tmp_path)
        executor = Inline()
        table = sweep(RUNS, store=tmp_path, executor=executor)
        xr.testing.assert_identical(table, whole)
        trained = [row for task in executor.tasks for row in task.result()[0]]
        assert len(trained) == 12 - len(saved)
        assert 5 <= len(saved) < 12

    def test_tasks_are_cancelled_when_a_row_cannot_be_saved(self, tmp_path, monkeypatch):
        def full(self, *row):
            raise OSError("no space left")

        monkeypatch.setattr(Writer, "add_all", full)
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        executor = Inline()
        with pytest.raises(OSError, match="no space left"):
            sweep(RUNS[:3], store=tmp_path, executor=executor)
        assert [task.cancelled for task in executor.tasks] == [False, True, True]

    @pytest.mark.slow
    def test_workers_keep_the_precision(self):
        with jax.enable_x64(True), ThreadPoolExecutor(1) as executor:
            table = sweep(RUNS[:1], executor=executor)
        size = table.flip_size_exact.item()
        assert np.isfinite(size)
        assert size != float(np.float32(size))

    def test_another_kind_of_worker_is_refused(self, monkeypatch):
        monkeypatch.setitem(os.environ, "XLA_FLAGS", "")

        class Elsewhere(Inline):
            def submit(self, function, *args):
                with monkeypatch.context() as patched:
                    patched.setitem(os.environ, "XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
                    return super().submit(function, *args)

        message = r"other bits than .*\n  xla_flags: '' in the sweep, '--xla.*in the worker"
        with pytest.raises(ValueError, match=message):
            sweep(RUNS[:1], executor=Elsewhere())

    def test_a_task_that_fails_loses_no_other_row(self, tmp_path, monkeypatch):
        class FirstFails(Inline):
            def submit(self, function, *args):
                task = super().submit(function, *args)
                if len(self.tasks) == 1:
                    future = Future()
                    future.set_exception(ArithmeticError("no such number"))
                    task.result = future.result
                return task

        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with pytest.raises(ArithmeticError, match="no such number"):
            sweep(RUNS[:3], store=tmp_path, executor=FirstFails())
        assert len(rows_in(tmp_path)) == 2

    def test_tasks_are_cancelled_when_one_cannot_be_submitted(self, monkeypatch):
        class Full(Inline):
            def submit(self, function, *args):
                if len(self.tasks) == 2:
                    raise OSError("the queue is full")
                return super().submit(function, *args)

        executor = Full()
        monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
        with pytest.raises(OSError, match="the queue is full"):
            sweep(RUNS[:3], executor=executor)
        assert [task.cancelled for task in executor.tasks] == [True, True]

    def test_forks_are_refused(self, monkeypatch):
        monkeypatch.setattr(executors, "_IMPORTED_BY", -1)
        with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="is a fork, in"):
            sweep(RUNS[:1], executor=executor)

    def test_there_is_work_for_many_workers(self):
        planned = jk.plan_sweep(jk.grid(d=[40, 60], alpha=[1.0], width=[200], seed=range(200)))
        parts = list(executors._parts(planned.buckets, ()))
        assert 48 <= len(parts) <= 80
        names = sorted(run.name for _, some in parts for one in some for run in one)
        assert names == sorted(run.name for b in planned.buckets for run in b.runs)


class Mode(IntEnum):
    FIRST = 1


class Modal(jk.Measurement):
    mode: Any = Mode.FIRST

    def measure(self, params):
        return {"named": params.v.max() + len(self.mode.name)}


def test_what_json_holds_as_something_else_travels_as_it_is():
    """A worker got the number of an enum, and a tuple for a named one."""
    part = Modal()
    assert isinstance(executors._packed(part), bytes)
    assert executors._unpacked(executors._packed(part)).mode is Mode.FIRST
    assert isinstance(executors._packed(jk.Flips()), str)
