"""Runs that differ in nothing but where they stop: trained once, to the bits of each alone."""

import sys
import types
from dataclasses import replace
from functools import partial
from itertools import chain

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from cases import SquaredNorm, refuse_to_draw, squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine import driver
from jaxkkt.engine.machine.devices import threads
from jaxkkt.engine.planning.shards import share
from jaxkkt.engine.planning.trajectories import trajectories
from jaxkkt.engine.running import executors, streams
from jaxkkt.engine.running.tally import Tally

SIZES = {"d": 8, "samples": 6, "width": 20, "seed": range(2), "measure": squared_norm}
LAZY = {"initialization": "lazy", "data": "sphere"}
KINDS = {
    "target": {"target_log_loss": [-1.0, -5.0, -30.0]},
    "ball": {**LAZY, "protocol": jk.protocols.lazy_flow(), "ball": [1.0, 3.0, 9.0]},
    "batches": {
        **LAZY,
        "protocol": jk.protocols.lazy_sgd(batch_size=4),
        "ball": [0.3, 1.0, 3.0],
        "max_steps": [0, 5, 400],
    },
    "momentum": {
        "protocol": jk.Protocol(jk.optimizers.linear(optax.sgd(1e-3, 0.9)), batch_size=4),
        "target_log_loss": [1.0, -1.0],
        "max_steps": 1000,
    },
    "curve": {"target_log_loss": [-2.0, -8.0], "curve": jk.Curve([-1, -5], measure=squared_norm)},
}


def rows_of(buckets):
    """The rows of buckets by their runs, and how many steps they took."""
    tally = Tally()
    found = streams.run_streams(buckets, (), [tally], jax.devices()[:1], lambda: None)
    return {row.run: row for row in chain(*found)}, tally.useful_steps


@pytest.mark.parametrize(
    "kind",
    [k if k == "momentum" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_each_has_the_bits_of_itself_alone(kind, unchecked):
    """And the steps of the longest are taken, not those of all."""
    buckets = jk.plan_sweep(jk.grid(**SIZES, **KINDS[kind])).buckets
    bucket = max(buckets, key=lambda one: len(one.runs))
    assert len(bucket.trajectories) < len(bucket.runs)
    # By the program of a sweep without any such runs.
    resumes = bucket.runs[0].curve is not None
    apart = [replace(bucket, trajectories=((run,),), resumes=resumes) for run in bucket.runs]
    rows, steps = rows_of([bucket])
    alone, _ = rows_of(apart)
    assert rows.keys() == alone.keys()
    for run, row in rows.items():
        assert row.network == alone[run].network
        assert row.values.keys() == alone[run].values.keys()
        for name, value in row.values.items():
            np.testing.assert_array_equal(value, alone[run].values[name])
    made = [max(int(rows[run].values["steps"]) for run in one) for one in bucket.trajectories]
    assert steps < sum(int(row.values["steps"]) for row in rows.values())
    # A flow's last steps, up to its target, are made as a run is measured.
    last = sum(made) - steps
    assert 0 < last < 20 * len(made) if kind in ("target", "curve") else last == 0


class Target(jk.Measurement):
    def measure(self, params, protocol):
        return {"target": protocol.target_log_loss}


class Own(jk.Protocol):
    """It may read its limits as it trains."""


class TestWhatIsShared:
    def test_each_stops_no_earlier_than_the_one_before(self):
        runs = jk.grid(**SIZES, target_log_loss=[-1.0, -9.0, -5.0], max_steps=[30, 10, 20])
        found = trajectories(runs)
        assert max(map(len, found)) > 3
        assert sorted(map(runs.index, chain(*found))) == list(range(len(runs)))
        for one in found:
            assert len({run.seed for run in one}) == 1
            limits = np.array([run.protocol.limits for run in one])
            assert (np.diff(limits, axis=0) >= 0).all()

    def test_what_is_measured_may_differ(self):
        runs = [
            jk.grid(**{**SIZES, "seed": 0, "measure": one})[0] for one in (squared_norm, jk.Flips())
        ]
        (one,) = trajectories(runs)
        assert set(one) == set(runs)

    @pytest.mark.parametrize(
        "other",
        [
            {"seed": 1},
            {"width": 21},
            {"data": "gaussian"},
            {"delta": 0.02},
            {"loss": "logistic"},
            {"init_scale": 2.0},
            {"curve": jk.Curve([-0.5])},
            {"batch_size": 4, "optimizer": "descent"},
        ],
        ids=lambda other: ", ".join(other),
    )
    def test_nothing_else_may(self, other):
        """Runs that train in other ways do not go on from each other."""
        (one,) = jk.grid(**{**SIZES, "seed": 0}, target_log_loss=-1.0)
        axes = {**SIZES, "seed": 0, "target_log_loss": -5.0, **other}
        assert trajectories([one, *jk.grid(**axes)]) == [(one,), *zip(jk.grid(**axes))]

    @pytest.mark.parametrize(
        "axes",
        [
            {"protocol": jk.adversarial.AdversarialProtocol(batch_size=4), "epochs": [2, 4]},
            {"optimizer": optax.adam(0.01), "target_log_loss": [-1.0, -5.0]},
            {"target_log_loss": [-1.0, -5.0], "curve": jk.Curve([-0.5], measure=Target())},
            {"protocol": Own(), "target_log_loss": [-1.0, -5.0]},
        ],
        ids=["adversarial", "adam", "a curve that reads it", "own"],
    )
    def test_nor_other_kinds_of_training(self, axes):
        """Nor optimizers whose bits depend on whether their runs can go on, nor those that are told
        on their way where they are to stop."""
        runs = jk.grid(**{**SIZES, "seed": 0}, **axes)
        assert trajectories(runs) == [(run,) for run in runs]

    def test_the_plan_counts_and_tells_it(self):
        plan = jk.plan_sweep(jk.grid(**SIZES, **KINDS["target"]))
        longest = jk.plan_sweep(jk.grid(**SIZES, target_log_loss=-30.0))
        assert plan.flops == longest.flops
        assert "6 runs on 2 trajectories in 1 buckets" in plan.describe()
        assert "trajector" not in longest.describe()


class RaisesAt(SquaredNorm):
    """Raises for networks that have come so far alone."""

    on_host = True
    most: jk.Number = 0.0

    def measure(self, params):
        norm = float(jk.networks.squared_norm(params))
        if norm < self.most:
            raise OSError("no measurement of this")
        return {"norm": norm}


def test_one_that_cannot_be_measured_does_not_end_the_others():
    axes = {**SIZES, "target_log_loss": [-1.0, -30.0]}
    norms = sweep(jk.grid(**axes)).squared_norm
    first, last = norms.sel(target_log_loss=-1), norms.sel(target_log_loss=-30)
    between = float(norms.mean())
    assert float(first.max()) < between < float(last.min())
    table = sweep(jk.grid(**{**axes, "measure": RaisesAt(most=between)}))
    raised = table.status == jk.Status.RAISED
    assert raised.sel(target_log_loss=-1).all()
    assert not raised.sel(target_log_loss=-30).any()
    np.testing.assert_allclose(table.norm.sel(target_log_loss=-30), last, rtol=1e-5)


def test_all_of_one_that_cannot_be_drawn_are_told(monkeypatch):
    refuse_to_draw(monkeypatch, seed=0)
    table = sweep(jk.grid(**SIZES, **KINDS["target"]))
    raised = table.status == jk.Status.RAISED
    assert raised.sel(seed=0).all()
    assert not raised.sel(seed=1).any()


def test_all_of_one_that_raises_on_its_way_are_told():
    axes = {**SIZES, "target_log_loss": [-2.0, -8.0]}
    runs = [
        *jk.grid(**{**axes, "seed": 0}, curve=jk.Curve([-1], measure=RaisesAt(most=1e9))),
        *jk.grid(**{**axes, "seed": 1}, curve=jk.Curve([-1], measure=RaisesAt())),
    ]
    assert [len(one) for one in trajectories(runs)] == [2, 2]
    raised = sweep(runs).status == jk.Status.RAISED
    assert raised.sel(seed=0).all()
    assert not raised.sel(seed=1).any()


def test_one_with_a_row_is_left_out(tmp_path, monkeypatch):
    """Of a store that is extended: those around it share a trajectory all the same."""
    runs = jk.grid(**SIZES, **KINDS["target"])
    whole = sweep(runs)
    sweep([run for run in runs if run.protocol.target_log_loss == -5], store=tmp_path)
    tallies = []
    monkeypatch.setattr(driver, "Tally", lambda: tallies.append(Tally()) or tallies[-1])
    xr.testing.assert_equal(sweep(runs, store=tmp_path), whole)
    last = whole.steps.sel(target_log_loss=-30).sum() - sum(one.useful_steps for one in tallies)
    assert 0 < last < 20 * whole.seed.size  # up to the target, made as a run is measured


def test_tasks_and_shards_have_whole_ones(monkeypatch, one_lane):
    runs = jk.grid(**{**SIZES, "seed": range(6)}, **KINDS["target"])
    planned = jk.plan_sweep(runs)
    monkeypatch.setattr(executors, "OPERATIONS_PER_TASK", 1)
    parts = [list(chain(*some)) for _, some in executors._parts(planned.buckets, ())]
    shares = [share(planned.buckets, runs, (i, 3))[1] for i in (1, 2, 3)]
    assert len(parts) > 1
    for some in (parts, shares):
        assert sorted(map(runs.index, chain(*some))) == list(range(len(runs)))
        seeds = [{run.seed for run in one} for one in some]
        assert sum(map(len, seeds)) == len(set().union(*seeds))


def test_workers_train_whole_ones(tmp_path):
    """Of an optimizer, too, that they know by value alone."""
    optimizer = jk.optimizers.linear(optax.sgd(1e-3, 0.9))
    axes = {**SIZES, "seed": 0, "optimizer": optimizer, "max_steps": [3, 7, 20]}
    (task,) = executors._tasks(jk.plan_sweep(jk.grid(**axes)).buckets, (), ())
    (tmp_path / "wanted").touch()
    wanted = str(tmp_path / "wanted")
    rows, tally = executors.train_part(task.common, task.references, threads(), wanted, None)
    assert sorted(row.values["steps"] for row in rows) == [3, 7, 20]
    assert tally.useful_steps == 20
    assert [one.references[0].first for one in task.alone()] == [True] * 3


class Rank(jk.Measurement):
    """What it computes cannot be told."""

    on_host = True

    def measure(self, params):
        return {"rank": np.linalg.matrix_rank(np.asarray(params.w))}


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("measure", [squared_norm, Rank])
def test_workers_whose_functions_compute_something_else_are_refused(tmp_path, monkeypatch, measure):
    """A worker imports a module anew, and knows no global that was set in it after its import. It
    was not asked beside a measurement of which nobody can tell what it computes."""
    module = types.ModuleType("own_points")
    text = """
import jax, jax.numpy as jnp
SCALE = 3.0

def points(key, samples, dim):
    y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
    return SCALE * jax.random.normal(key, (samples, dim)), y
"""
    exec(text, module.__dict__)
    monkeypatch.setitem(sys.modules, "own_points", module)
    axes = {"seed": 0, "data": module.points, "max_steps": 3, "measure": measure}
    runs = jk.grid(**{**SIZES, **axes})
    (task,) = executors._tasks(jk.plan_sweep(runs).buckets, (), ())
    (tmp_path / "wanted").touch()
    train = partial(executors.train_part, task.common, task.references, threads())
    assert len(train(str(tmp_path / "wanted"), None)[0]) == 1
    module.SCALE = 1.0
    jk.engine.forget()
    executors._loaded.cache_clear()
    executors._require_same_functions.cache_clear()
    with pytest.raises(ValueError, match="own_points:points: a worker computes something else"):
        train(str(tmp_path / "wanted"), None)


def test_more_shards_than_trajectories_share_the_runs():
    runs = jk.grid(**{**SIZES, "seed": 0}, **KINDS["target"])
    buckets = jk.plan_sweep(runs).buckets
    assert [len(share(buckets, runs, (i, 2))[1]) for i in (1, 2)] == [2, 1]
