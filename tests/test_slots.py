"""An accelerator's slots: rows are made while it trains, and none is lost where memory runs out."""

from collections import Counter, deque
from dataclasses import replace
from itertools import chain
from threading import Event, active_count
from weakref import ref

import jax
import numpy as np
import pytest
import xarray as xr
from cases import SOON, refuse_to_draw, squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine import driver
from jaxkkt.engine.programs.trained import Alone
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.engine.running import ended, lanes, slots, streams
from jaxkkt.engine.running.lanes import OutOfMemory, run_bucket
from jaxkkt.engine.running.tally import Tally

RUNS = jk.grid(d=8, samples=6, width=20, seed=range(12), optimizer=SOON, measure=squared_norm)


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
        status = programs.report.unpack_on_host(np.asarray(words)).status
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
    for some in run_bucket(bucket, deque(bucket.trajectories), patched, Tally()):
        told.set()
        rows += some
    assert {row.run for row in rows} == set(RUNS)


@pytest.mark.parametrize(
    "moment", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 5))]
)
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
    assert len(begun) > moment
    # Fewer lanes round otherwise, and rounding decides on the last step.
    xr.testing.assert_allclose(table.steps, whole.steps, rtol=0, atol=1)
    xr.testing.assert_allclose(table.drop_vars("steps"), whole.drop_vars("steps"), rtol=1e-3)


def test_lanes_that_did_not_fit_are_free_before_fewer_are_made(accelerator, monkeypatch):
    """Frames of what raised in the other thread hold them, and only the collector finds those."""
    compiled, made, left = streams.compile_bucket, [], []

    class Noted(slots.Slots):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(ref(self))

    def compile_bucket(bucket):
        left.append([one for one in made if one() is not None])
        programs = compiled(bucket)

        def advance(*args):
            if bucket.lanes > 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return programs.advance(*args)

        return programs._replace(advance=advance)

    monkeypatch.setattr(lanes, "Slots", Noted)
    monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
    assert (sweep(RUNS).status == jk.Status.CONVERGED).all()
    assert left == [[], []]
    assert len(made) == 2


def test_what_is_closed_leaves_no_thread():
    bucket = of_an_accelerator(jk.plan_sweep(RUNS).buckets[0])
    found = run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), Tally())
    before = active_count()
    next(found)
    assert active_count() == before + 1
    found.close()
    assert active_count() == before


@pytest.mark.parametrize(("count", "taken"), [(1, (6, 6, 0)), (2, (6, 3, 2)), (4, (3, 3, 2))])
def test_streams_share_the_last_runs(count, taken):
    bucket = replace(jk.plan_sweep(RUNS).buckets[0], lanes=2, slots=6)
    programs, queue = compile_bucket(bucket), deque(bucket.trajectories)
    found = []
    for _ in taken:
        stream = slots.Slots(bucket, programs, None, (), lambda train: train, count)
        stream.take_in(queue)
        found.append(len(stream.occupied))
    assert tuple(found) == taken


@pytest.fixture
def untrainable(monkeypatch):
    """The first three runs draw what cannot be trained on."""
    draw = slots.draw_batch

    def draw_batch(drawing, words, runs, *rest):
        drawn = draw(drawing, words, runs, *rest)
        seeds = np.full(len(drawn.valid), 3)
        seeds[: len(runs)] = [run.seed for run in runs]
        return drawn._replace(valid=drawn.valid & (seeds > 2))

    monkeypatch.setattr(slots, "draw_batch", draw_batch)


PLANS = pytest.mark.parametrize("plan", [of_an_accelerator, lambda bucket: bucket.with_lanes(4)])


@PLANS
def test_runs_that_raise_are_told_after_others(untrainable, plan):
    """A sweep gives up where its first rows are all of such."""
    bucket = plan(jk.plan_sweep(RUNS).buckets[0])
    rows = list(
        chain(*run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), Tally()))
    )
    raised = [row.run.seed for row in rows if row.raised]
    assert sorted(raised) == [0, 1, 2]
    assert not rows[0].raised


@PLANS
@pytest.mark.parametrize("stage", ["place", "decode", "begin", "wait"])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_rows_of_runs_that_raised_outlive_memory_that_runs_out(
    untrainable, plan, stage, turn, monkeypatch
):
    bucket = plan(jk.plan_sweep(RUNS).buckets[0])
    programs, measure, calls = compile_bucket(bucket), slots.measure_batch, Counter()

    def full(here, function):
        def call(*args):
            calls[here] += 1
            if (here, calls[here]) == (stage, turn):
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return function(*args)

        return call

    measure_batch = full("begin", lambda *args: full("wait", measure(*args)))
    monkeypatch.setattr(slots, "measure_batch", measure_batch)
    changed = {name: full(name, getattr(programs, name)) for name in ("place", "decode")}
    patched = programs._replace(**changed)
    rows, queue = [], deque(bucket.trajectories)
    with pytest.raises(OutOfMemory) as caught:
        rows.extend(chain.from_iterable(run_bucket(bucket, queue, patched, Tally())))
    left = [run for one in (*queue, *caught.value.left) for run in one]
    assert sorted(run.seed for run in (*left, *(row.run for row in rows))) == list(range(12))


def test_rows_of_runs_that_cannot_be_drawn_are_told_once(monkeypatch):
    """Where memory runs out as a sweep that is stopped saves its runs, too."""

    class FromNowOn(Event):
        def is_set(self):
            before = super().is_set()
            self.set()
            return before

    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    some = RUNS[:4]
    for run in some:
        refuse_to_draw(monkeypatch, run.seed)
    monkeypatch.setattr(slots.Slots, "save", full)
    (bucket,) = jk.plan_sweep(some).buckets
    bucket = bucket.with_lanes(len(some))
    programs, rows = compile_bucket(bucket), []
    found = run_bucket(bucket, deque(bucket.trajectories), programs, Tally(), FromNowOn())
    with pytest.raises(OutOfMemory):
        rows.extend(chain.from_iterable(found))
    assert sorted(row.run.seed for row in rows) == list(range(4))


def test_memory_that_runs_out_as_a_kept_network_is_fetched_takes_fewer_lanes(
    accelerator, monkeypatch, tmp_path
):
    fetch, failed = Alone.params.fget, []

    def params(alone):
        if not failed:
            failed.append(alone)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return fetch(alone)

    monkeypatch.setattr(Alone, "params", property(params))
    table = sweep(RUNS, store=tmp_path, keep="params")
    assert failed
    assert (table.status == jk.Status.CONVERGED).all()
    for run in RUNS:
        params = jk.load_network(tmp_path, run)
        assert params.w.shape == (20, 8)


def test_a_run_whose_row_cannot_be_made_ends_no_other(accelerator, monkeypatch):
    made = ended.Occupant.on_the_way

    def on_the_way(self):
        if self.run.seed == 3:
            raise ValueError("no such moment")
        return made(self)

    monkeypatch.setattr(ended.Occupant, "on_the_way", on_the_way)
    table = sweep([run.replace(curve=jk.Curve(steps=[2, 4])) for run in RUNS])
    assert np.flatnonzero(table.status == jk.Status.RAISED).tolist() == [3]
    assert "no such moment" in table.error.values.ravel()[3]
    assert np.isfinite(table.curve_log_loss).all("step").sum() == len(RUNS) - 1


def test_a_curve_is_not_overwritten_by_the_host(accelerator):
    class Late(jk.Measurement):
        on_host = True

        def measure(self, params):
            return {"curve_log_loss": 7.0}

    runs = [run.replace(curve=jk.Curve(steps=[2, 4]), measure=(Late(),)) for run in RUNS]
    with pytest.raises(ValueError, match="'curve_log_loss', which is there already"):
        sweep(runs)


def test_rows_of_a_mixed_batch_are_their_own():
    """Measurements at a padded size, at runs' own sizes, and on the host, of runs of several
    specs."""

    class OnHost(jk.Measurement):
        on_host = True

        def measure(self, start):
            return {"on_host": float(start.w[0, 0])}

    def first(start):
        return start.w[0, 0]

    def neurons(params):
        return float(params.v.size)

    some = {"initialization": "torch", "init_scale": [1.0, 2.0], "d": 8, "samples": 6}
    some |= {"optimizer": SOON}
    runs = jk.grid(**some, width=[20, 21], seed=range(4), measure=[first, jk.Flips(), neurons])
    runs += jk.grid(**some, width=20, seed=range(4, 7), measure=[OnHost(), neurons, first])
    (bucket,) = jk.plan_sweep(runs).buckets
    bucket = replace(bucket, side_by_side=True).with_lanes(24)
    rows = chain(*run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), Tally()))
    found = {row.run: row.values for row in rows}
    assert found.keys() == set(runs)
    for run, values in found.items():
        weight = float(jk.draw(run)[0].w[0, 0])
        assert values["first"] == pytest.approx(weight, rel=1e-6)
        assert values["neurons"] == run.width
        if run.seed < 4:
            assert values["off_margin_count"] == round(6 * (1 - values["on_margin_share"]))
        else:
            assert values["on_host"] == pytest.approx(weight, rel=1e-6)
