"""An accelerator's slots: rows are made while it trains, and none is lost where memory runs out."""

from collections import deque
from dataclasses import replace
from threading import Event

import jax
import numpy as np
import pytest
import xarray as xr
from cases import squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine import driver, slots
from jaxkkt.engine.lanes import run_bucket
from jaxkkt.engine.programs import compile_bucket
from jaxkkt.engine.tally import Tally

RUNS = jk.grid(d=8, samples=6, width=20, seed=range(12), measure=squared_norm)


def of_an_accelerator(bucket):
    return replace(bucket, side_by_side=True).with_lanes(4)


@pytest.fixture
def accelerator(monkeypatch):
    """Sweeps are planned for one, of four lanes."""
    plan = driver.plan
    monkeypatch.setattr(driver, "plan", lambda *args: list(map(of_an_accelerator, plan(*args))))
    monkeypatch.setattr(driver, "streams", lambda *_: 1)


def test_rows_are_made_while_others_train(monkeypatch):
    bucket = of_an_accelerator(jk.plan_sweep(RUNS).buckets[0])
    programs, measure = compile_bucket(bucket), slots.measure_batch
    training, told, ended = Event(), Event(), []

    def advance(*args):
        if ended:
            training.set()
            assert told.wait(timeout=60)
        stepped, words = programs.advance(*args)
        status = programs.report.unpacked(np.asarray(words)).status
        ended.extend(np.flatnonzero(status != jk.Status.RUNNING))
        return stepped, words

    def measure_batch(*args):
        found = measure(*args)

        def wait():
            assert training.wait(timeout=60)
            return found()

        return wait

    monkeypatch.setattr(slots, "measure_batch", measure_batch)
    patched, rows = programs._replace(advance=advance), []
    for row in run_bucket(bucket, deque(bucket.trajectories), patched, Tally()):
        told.set()
        rows.append(row)
    assert {row.run for row in rows} == set(RUNS)


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_memory_that_runs_out_as_rows_are_made_loses_none(accelerator, monkeypatch, moment):
    whole = sweep(RUNS)
    measure, begun = slots.measure_batch, []

    def measure_batch(*args):
        begun.append(len(begun))
        found, mine = measure(*args), begun[-1]

        def wait():
            if mine == moment:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return found()

        return wait

    monkeypatch.setattr(slots, "measure_batch", measure_batch)
    table = sweep(RUNS)
    assert len(begun) > moment + 1
    xr.testing.assert_allclose(table, whole, rtol=1e-3)


def test_a_sweep_that_is_closed_leaves_no_thread(accelerator):
    bucket = of_an_accelerator(jk.plan_sweep(RUNS).buckets[0])
    found = run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), Tally())
    next(found)
    found.close()
    assert list(found) == []
