"""Runs in batches: numbers as words, draws on the device, slots and lanes that change no bits."""

import gc
from collections import deque
from dataclasses import replace
from itertools import chain
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import planned_for, sweep

import jaxkkt as jk
from jaxkkt.engine.machine.batches import over
from jaxkkt.engine.machine.packing import Layout, numbers
from jaxkkt.engine.planning import plan as planning
from jaxkkt.engine.programs import draws, measuring
from jaxkkt.engine.programs.draws import SIZES, Sizes, draw_batch, drawing_of
from jaxkkt.engine.programs.telling import Telling, Told
from jaxkkt.engine.programs.training import compile_bucket
from jaxkkt.engine.running import slots
from jaxkkt.engine.running.lanes import run_bucket
from jaxkkt.engine.running.tally import Tally
from jaxkkt.specs.same import by_identity

SHAPES = ((7, 9, 21), (16, 16, 32), (256, 256, 256))
KINDS = (jk.data.Sphere, jk.data.UnitSphere, jk.data.Gaussian)
OWN = jk.data.Arrays(np.eye(6, 8, dtype=np.float32), np.float32([1, -1, 1, -1, 1, -1]))


class TestPacking:
    TREE: ClassVar = {
        "real": np.float32(-1.5e-30),
        "whole": np.int32(-7),
        "seed": np.uint32(2**32 - 1),
        "truth": np.array([True, False]),
        "nan": np.array([[np.nan, np.inf], [0.0, -0.0]], np.float32),
        "half": np.float16(0.1),
        "short": np.asarray([0.375, -1.5], jnp.bfloat16),
        "shorter": np.asarray(0.375, jnp.float8_e4m3fn),
    }

    def test_there_and_back_on_both_sides(self):
        layout = Layout.of(self.TREE)
        (words,) = layout.pack_on_host([self.TREE])
        for found in (layout.unpack_on_host(words), jax.jit(layout.unpack)(words)):
            for name, value in self.TREE.items():
                assert np.asarray(found[name]).dtype == value.dtype
                np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(jax.jit(layout.pack)(self.TREE), words)

    def test_doubles_and_stacks(self, float64):
        tree = (np.float64(1 / 3), np.arange(3, dtype=np.int32))
        layout = Layout.of(tree)
        assert layout.words == 5
        stacked = layout.pack_on_host([tree] * 4)
        third, some = layout.unpack_on_host(stacked)
        assert third.tolist() == [1 / 3] * 4
        assert some.shape == (4, 3)

    def test_nothing_takes_no_words(self):
        layout = Layout.of(numbers(jk.ReLU2(width=3).replace()))
        assert layout.pack_on_host([jk.ReLU2(width=3)] * 2).shape == (2, layout.words)


def test_runs_that_go_on_together_are_told_as_each_alone():
    """However each was drawn, whatever numbers it has, and wherever on its way it stands."""

    class Scaled(jk.data.Distribution):
        x_scale: jk.Number = 2.0

        def draw(self, key, samples, dim):
            x = self.x_scale * jax.random.normal(key, (samples, dim))
            return x, jnp.sign(x[:, 0])

    axes = {"d": 6, "samples": 5, "width": 10, "curve": jk.Curve([-1, -2])}
    axes |= {"init_scale": [0.5, 1.5], "delta": [0.01, 0.02], "seed": [0, 2**32 - 1]}
    runs = jk.grid(data=["sphere", Scaled], **axes)
    (bucket,) = planned_for(runs)
    telling = Telling.of(bucket)
    assert {one.words for one in telling.drawings.values()} == {1, 2}
    told = [Told(run, slot, 3 * slot, slot % 3) for slot, run in enumerate(runs)]
    rows = telling.rows_of(told, bucket)
    for row, one in zip(rows, told, strict=False):
        np.testing.assert_array_equal(row, telling.rows_of([one], bucket)[0])
        sizes, how = telling.unpack(jnp.asarray(row))
        assert (sizes.slot, sizes.number, sizes.width) == (one.slot, one.number, 10)
        assert np.uint32(sizes.seed) == one.run.seed
        assert how.protocol.optimizer.delta == np.float32(one.run.protocol.optimizer.delta)
        assert how.pause.log_loss == (-1, -2, -np.inf)[one.moment]


@pytest.mark.parametrize("at_once", [3, 2, 0])
def test_the_wanted_are_computed_and_on_a_core_no_others(at_once):
    computed = []

    def twice(x):
        jax.debug.callback(lambda x: computed.append(float(x)), x)
        return {"twice": 2 * x}

    arguments, wanted = (jnp.arange(3.0),), jnp.array([True, False, True])
    found = jax.jit(lambda some: over(twice, arguments, some, at_once)["twice"])(wanted)
    jax.effects_barrier()
    assert found[wanted].tolist() == [0, 4]
    assert sorted(computed) == ([0, 1, 2] if at_once else [0, 2])


class TestDraws:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "seed"),
        [
            *((KINDS[0], seed) for seed in (5, 2**32 - 1)),
            *(pytest.param(kind, 5, marks=pytest.mark.rare) for kind in KINDS[1:]),
        ],
    )
    def test_are_those_of_the_run_alone_at_any_shape_to_the_bit(self, kind, seed):
        run = jk.Run(
            data=kind(d=9, samples=7),
            initialization=jk.initializations.Torch(scale=0.3),
            network=jk.ReLU2(width=21),
            seed=seed,
        )
        start, data = jk.draw(run)
        for shape in SHAPES:
            drawing = drawing_of(run, shape)
            assert None not in drawing.specs
            sizes = Sizes(*np.int32([1, 0]), np.uint32(seed), *np.int32([7, 9, 21]))
            row = np.concatenate([*SIZES.pack_on_host([sizes]), *drawing.packed([run])])
            rows = np.stack([np.full_like(row, 99), row])
            for side_by_side in (True, False):
                found = draw_batch(drawing, jnp.asarray(rows), [run], 8, side_by_side)
                assert found.valid[1]
                np.testing.assert_array_equal(found.data.x[1, :7, :9], data.x)
                np.testing.assert_array_equal(found.data.y[1, :7], data.y)
                np.testing.assert_array_equal(found.start.w[1, :21, :9], start.w)
                np.testing.assert_array_equal(found.start.b[1, :21], start.b)
                np.testing.assert_array_equal(found.start.v[1, :21], start.v)

    def test_kinds_of_one_size_are_drawn_by_the_device_at_that_size_alone(self):
        (run,) = jk.grid(data=jk.data.Clusters(d=9, samples=12, clusters=2), width=5, seed=0)
        assert None not in drawing_of(run, (12, 9, 5)).specs
        assert drawing_of(run, (16, 16, 16)).specs[1] is None

    def test_are_one_program_for_most_ways_to_train(self):
        ways = [
            {"protocol": jk.flow_protocol()},
            {"protocol": jk.protocols.lazy_flow(2.0), "initialization": "torch"},
            {"optimizer": jk.optimizer(optax.adam, learning_rate=0.01)},
            {"curve": jk.Curve([-1.0])},
        ]
        programs, rows = set(), []
        for way in ways:
            (bucket,) = jk.plan_sweep(jk.grid(d=9, samples=7, width=21, seed=0, **way)).buckets
            rows.append(Telling.of(bucket))
            (drawing,) = rows[-1].drawings.values()
            programs.add((drawing, bucket.turn, rows[-1].words))
        assert len({one.how for one in rows}) == len(ways)
        assert len(programs) == 1

    def test_own_arrays_and_draws_that_cannot_be_traced_are_the_hosts(self):
        class Odd(jk.data.Distribution):
            def draw_training(self, seed):
                x = np.random.default_rng(seed).normal(size=(self.samples, self.d))
                return jk.Dataset(x.astype(np.float32), np.resize([1.0, -1.0], self.samples))

        for data in (OWN, Odd(d=8, samples=6)):
            (run,) = jk.grid(data=data, width=20, seed=0)
            start, points = drawing_of(run, (6, 8, 20)).specs
            assert start is not None
            assert points is None
            table = sweep([run])
            assert table.status.item() == jk.Status.CONVERGED

    @pytest.mark.slow
    @pytest.mark.parametrize("own", [False, True])
    def test_runs_beside_one_of_the_buckets_own_size_are_drawn_at_theirs(self, own, monkeypatch):
        """Draws of one size, in a sweep so large that its shapes are not rounded: the device draws
        the runs of that size, the host the others."""
        monkeypatch.setattr(planning, "SECONDS_OF_ROUNDING", 0.0)

        def blobs(key, samples, dim):
            y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
            return y[:, None] + jax.random.normal(key, (samples, dim)) / 4, y

        def points(data):
            return {"points": jnp.abs(data.x).sum(), "entries": jnp.sum(data.x != 0)}

        data = {"data": blobs} if own else {"data": "clusters", "clusters": 4}
        sizes = {"d": [20, 25, 30], "samples": 12, "width": 20}
        runs = jk.grid(**data, **sizes, seed=range(3), measure=points, max_steps=1)
        (bucket,) = jk.plan_sweep(runs).buckets
        assert bucket.drawn_at == (12, 30, 20)
        table = sweep(runs).squeeze()
        assert not np.any(table.status == jk.Status.RAISED)
        for run in runs:
            one = table.sel(d=run.d, seed=run.seed)
            assert int(one.entries) == 12 * run.d
            expected = np.abs(jk.draw(run)[1].x).sum()
            np.testing.assert_allclose(float(one.points), expected, rtol=1e-4)

    def test_what_cannot_be_trained_on_ends_with_the_reason(self):
        def one_class(key, samples, dim):
            y = jnp.where(jax.random.bits(key) % 2 == 0, 1.0, jnp.resize(jnp.array([1.0, -1.0]), 6))
            return jax.random.normal(key, (samples, dim)), y

        runs = jk.grid(data=one_class, d=8, samples=6, width=20, seed=range(8))
        table = sweep(runs).squeeze()
        refused = table.status.values == jk.Status.RAISED
        assert 0 < refused.sum() < 8
        assert all("both labels must occur" in str(e) for e in table.error.values[refused])


def total(params):
    return {"total": params.w.sum()}


@pytest.mark.slow
class TestBits:
    """A batch of other runs, slots or turns changes nothing."""

    RUNS = jk.grid(d=8, samples=6, width=20, seed=range(9), measure=[jk.Flips(), jk.StepFlips()])
    # Runs that end with a gradient: on the edge of a ball, by mini-batches.
    BALLS = jk.grid(
        d=64,
        samples=100,
        width=100,
        seed=range(9),
        initialization="lazy",
        protocol=jk.protocols.lazy_sgd(2.0, learning_rate=0.5, batch_size=8, biases=True),
        measure=total,
    )

    def rows(self, bucket):
        programs = compile_bucket(bucket)
        found = run_bucket(bucket, deque(bucket.trajectories), programs, Tally())
        return {row.run: (row.values, row.network) for row in chain(*found)}

    def test_slots_of_a_cpu(self, one_lane):
        (bucket,) = jk.plan_sweep(self.RUNS).buckets
        assert (bucket.lanes, bucket.side_by_side) == (1, False)
        one = self.rows(replace(bucket, slots=1))
        assert self.rows(replace(bucket, slots=4)) == one

    @pytest.mark.parametrize(("runs", "lanes"), [(RUNS, 2), (BALLS, 32)], ids=["free", "in balls"])
    def test_more_slots_than_lanes(self, runs, lanes):
        (bucket,) = jk.plan_sweep(runs).buckets
        one = self.rows(replace(bucket, lanes=lanes, slots=lanes))
        assert self.rows(replace(bucket, lanes=lanes, slots=3 * lanes)) == one

    def test_turns_of_an_accelerator(self):
        (bucket,) = jk.plan_sweep(self.RUNS).buckets
        bucket = replace(bucket, side_by_side=True).with_lanes(4)
        assert bucket.turn == 2
        whole = self.rows(bucket)
        assert len(whole) == 9
        part = replace(bucket, trajectories=bucket.trajectories[4:7])
        assert self.rows(part) == {run: whole[run] for run in part.runs}


@pytest.mark.rare
@pytest.mark.slow
def test_measurements_take_turns_where_memory_is_short(monkeypatch):
    (bucket,) = jk.plan_sweep(TestBits.RUNS).buckets
    bucket = replace(bucket, side_by_side=True).with_lanes(8)
    taken, lower = [], measuring.over

    def noted(function, arguments, wanted, at_once):
        taken.append(at_once)
        return lower(function, arguments, wanted, at_once)

    monkeypatch.setattr(measuring, "over", noted)
    monkeypatch.setattr(measuring, "lane_bytes", lambda device: 1)
    measuring.measure_program.cache_clear()
    whole = TestBits().rows(bucket)
    assert taken[:3] == [4, 2, 1]
    measuring.measure_program.cache_clear()
    monkeypatch.undo()
    for run, (values, network) in TestBits().rows(bucket).items():
        assert whole[run][1] == network
        assert whole[run][0] == pytest.approx(values, rel=1e-4, nan_ok=True)


@pytest.mark.rare
@pytest.mark.slow
def test_measurements_of_several_kinds_share_a_batch():
    """Own points of two kinds, each with held-out points of its own, in one bucket."""

    def held_out_mean(params, test):
        return {"mean": test.x.mean(), "count": test.y.size}

    rng = np.random.default_rng(0)
    x, y = np.eye(4, dtype=np.float32), np.float32([1, -1, 1, -1])
    tests = [rng.normal(size=(n, 4)).astype(np.float32) for n in (3, 5)]
    data = [
        jk.data.Arrays(x, y, test, np.resize(np.float32([1, -1]), len(test)), name=f"own {i}")
        for i, test in enumerate(tests)
    ]
    runs = jk.grid(data=data, width=20, seed=range(3), measure=[jk.Flips(), held_out_mean])
    assert len(jk.plan_sweep(runs).buckets) == 1
    table = sweep(runs)
    for one, test in zip(data, tests, strict=True):
        row = table.sel(data=one.label)
        np.testing.assert_allclose(row["mean"].values.ravel(), test.mean(), rtol=1e-5)
        assert set(row["count"].values.ravel()) == {len(test)}


def test_what_is_drawn_on_the_device_is_not_drawn_by_the_host(monkeypatch):
    def by_the_host(*_):
        raise AssertionError("the host draws")

    monkeypatch.setattr(draws, "stacked", by_the_host)
    monkeypatch.setattr(slots, "draw", by_the_host)
    runs = jk.grid(d=8, samples=6, width=20, seed=range(3), data=["sphere", "gaussian"])
    assert (sweep(runs).status == jk.Status.CONVERGED).all()


def test_own_data_are_sent_once(monkeypatch):
    monkeypatch.setattr(draws, "stacked", lambda *_: pytest.fail("sent again"))
    runs = jk.grid(data=OWN, width=20, seed=range(40))
    assert (sweep(runs).status == jk.Status.CONVERGED).all()


@pytest.mark.rare
@pytest.mark.slow
def test_own_data_are_on_the_device_once_however_often_they_are_swept():
    x = np.random.default_rng(0).normal(size=(37, 9)).astype(np.float32)
    y = np.where(np.arange(37) % 2, 1, -1).astype(np.float32)
    there = []
    for _ in range(3):
        sweep(jk.grid(data=jk.data.Arrays(x, y), width=20, seed=range(2), max_steps=2, measure=[]))
        gc.collect()
        there.append(sum(a.shape == (37, 9) for a in jax.live_arrays()))
    assert there == [1, 1, 1]


def test_runs_that_lack_the_same_are_measured_as_one_group(tmp_path, monkeypatch):
    class Total(jk.Measurement):
        def measure(self, params):
            return {"total": jnp.sum(params.w)}

    groups, jobs_of = [], measuring.jobs_of

    def counted(*args):
        alike, jobs = jobs_of(*args)
        groups.append(len(alike))
        return alike, jobs

    sizes = {"d": 8, "samples": 6, "width": 20, "seed": range(4), "max_steps": 3}
    sweep(jk.grid(**sizes, measure=()), store=tmp_path, keep="params")
    monkeypatch.setattr(measuring, "jobs_of", counted)
    sweep(jk.grid(**sizes, measure=Total()), store=tmp_path)
    assert groups == [1]


def test_programs_of_a_shape_are_compiled_once():
    runs = jk.grid(d=8, samples=6, width=20, seed=range(2))
    (bucket,) = jk.plan_sweep(runs).buckets
    (other,) = jk.plan_sweep([run.replace(seed=7) for run in runs][:1]).buckets
    assert compile_bucket(bucket).advance is compile_bucket(other).advance


def test_results_by_identity():
    calls = []

    @by_identity
    def length(value):
        calls.append(value)
        return len(value)

    first, second = [1, 2], [1, 2]
    assert (length(first), length(first), length(second)) == (2, 2, 2)
    assert len(calls) == 2
