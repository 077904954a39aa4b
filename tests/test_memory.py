"""Too little memory: fewer lanes by rule; and how many there are at first."""

import gc
import weakref
from threading import get_ident
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from cases import SOON, rows_in, squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine import driver
from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.planning.costs import lane_bytes
from jaxkkt.engine.planning.plan import plan
from jaxkkt.engine.running import lanes, slots, streams

RUNS = jk.grid(d=8, samples=6, width=20, seed=range(12), optimizer=SOON, measure=squared_norm)


@pytest.fixture
def eight_lanes(monkeypatch):
    """Buckets of eight lanes, and a function that lets those of more than so many not fit."""
    plan = driver.plan
    monkeypatch.setattr(lane_counts, "lanes_of_a_core", lambda m, k: 8)
    monkeypatch.setattr(driver, "plan", lambda runs, devices: plan(runs, devices))
    monkeypatch.setattr(driver, "streams", lambda *_: 1)
    compiled, tried = streams.compile_bucket, []

    def at_most(most):
        def compile_bucket(bucket):
            programs = compiled(bucket)

            def advance(*args):
                tried.append(bucket.lanes)
                if bucket.lanes > most:
                    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
                return programs.advance(*args)

            return programs._replace(advance=advance)

        monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
        return tried

    return at_most


def test_fewer_lanes_are_taken_and_recorded(eight_lanes, tmp_path, caplog):
    whole = sweep(RUNS)
    tried = eight_lanes(2)
    table = sweep(RUNS, store=tmp_path)
    assert list(dict.fromkeys(tried)) == [8, 4, 2]
    assert (table.status == jk.Status.CONVERGED).all()
    assert "out of memory with 8 networks" in caplog.text
    assert "going on with 2" in caplog.text
    assert all(" 2 lanes," in row["computed_as"] for row in rows_in(tmp_path).values())
    assert (abs(table.steps - whole.steps) <= 1).all()  # rounding decides on the last one
    xr.testing.assert_allclose(table.drop_vars("steps"), whole.drop_vars("steps"), rtol=1e-3)


@pytest.mark.slow
def test_where_two_do_not_fit_the_runs_end_with_that(eight_lanes):
    tried = eight_lanes(1)
    with pytest.raises(Exception, match=r"no memory for 2 runs .*, of about 0\.0 MiB") as caught:
        sweep(RUNS)
    assert set(tried) == {8, 4, 2}
    assert "RESOURCE_EXHAUSTED" in str(caught.value.__cause__)


def test_how_much_a_run_takes_is_told():
    told = str(lanes.OutOfMemory([(run,) for run in RUNS[:2]], 3 * 2**20))
    assert told.startswith("no memory for 2 runs at a time, of about 3.0 MiB each")


@pytest.mark.slow
def test_where_not_even_idle_lanes_fit_it_is_told(eight_lanes, monkeypatch):
    """And does not wait for ever."""
    eight_lanes(8)
    compiled = streams.compile_bucket

    def full():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(streams, "compile_bucket", lambda b: compiled(b)._replace(idle=full))
    with pytest.raises(lanes.OutOfMemory, match="no memory for any run, of about"):
        sweep(RUNS)


@pytest.mark.parametrize("count", [1, 2])
def test_runs_for_which_not_even_idle_lanes_fit_hinder_no_others(
    eight_lanes, monkeypatch, tmp_path, count
):
    """The sweep ended with that, and so did the next one, whatever else was left to do."""
    large = [r.replace(protocol=r.protocol.replace(loss="logistic")) for r in RUNS[:2]]
    eight_lanes(8)
    monkeypatch.setattr(driver, "streams", lambda *_: count)
    compiled = streams.compile_bucket

    def full():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    def compile_bucket(bucket):
        programs = compiled(bucket)
        return programs._replace(idle=full) if bucket.runs[0] in large else programs

    monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
    table = sweep(RUNS + large, store=tmp_path)
    assert (table.status.sel(loss="exponential") == jk.Status.CONVERGED).all()
    none_fits = table.sel(loss="logistic", seed=[0, 1])
    assert (none_fits.status == jk.Status.RAISED).all()
    assert "no memory for any run" in none_fits.error.values.ravel()[0]


def test_where_one_stream_has_no_memory_the_others_go_on(eight_lanes, monkeypatch):
    eight_lanes(8)
    monkeypatch.setattr(driver, "streams", lambda *_: 2)
    compiled, asked = streams.compile_bucket, []

    def compile_bucket(bucket):
        programs = compiled(bucket)

        def idle():
            asked.append(get_ident())
            if get_ident() != asked[0]:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return programs.idle()

        return programs._replace(idle=idle)

    monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
    assert (sweep(RUNS).status == jk.Status.CONVERGED).all()


@pytest.mark.slow
def test_where_idle_lanes_do_not_fit_there_are_fewer(eight_lanes, monkeypatch):
    eight_lanes(8)
    compiled, tried = streams.compile_bucket, []

    def compile_bucket(bucket):
        programs = compiled(bucket)

        def idle():
            tried.append(bucket.lanes)
            if bucket.lanes > 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return programs.idle()

        return programs._replace(idle=idle)

    monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
    assert (sweep(RUNS).status == jk.Status.CONVERGED).all()
    assert tried == [8, 4, 2]


@pytest.mark.slow
def test_too_little_for_a_measurement_takes_fewer_lanes(eight_lanes, monkeypatch):
    eight_lanes(8)
    measure, failed = slots.measure_batch, []

    def full_at_first(*args):
        if len(failed) < 2:
            failed.append(1)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return measure(*args)

    monkeypatch.setattr(slots, "measure_batch", full_at_first)
    assert (sweep(RUNS).status == jk.Status.CONVERGED).all()
    assert len(failed) == 2


def test_other_errors_of_the_device_are_raised(eight_lanes, monkeypatch):
    eight_lanes(8)

    def fails(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: no such thing")

    monkeypatch.setattr(
        streams,
        "compile_bucket",
        lambda bucket, compiled=streams.compile_bucket: compiled(bucket)._replace(advance=fails),
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such thing"):
        sweep(RUNS)


def test_lanes_pay_for_turns(monkeypatch):
    """As many as runs where those are small; of large ones turns cost little."""
    small, large = (1000, 10**6, 2.5e6, 400), (300, 10**6, 4e9, 400)
    assert lane_counts.lanes_of_an_accelerator(*small) == 1000
    few = lane_counts.lanes_of_an_accelerator(*large)
    assert few < 30
    monkeypatch.setattr(lane_counts, "OPERATIONS_PER_TURN", 0)
    assert lane_counts.lanes_of_an_accelerator(*small) == 500
    assert lane_counts.lanes_of_an_accelerator(*large) <= few


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"bytes_limit": 100 * 2**30}, 40), ({"bytes_limit": 2**29}, 1), (None, 6)],
)
def test_what_lanes_may_fill(told, expected):
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: told)
    assert lane_bytes(gpu) == expected * 2**30


def test_the_lanes_come_from_the_memory(monkeypatch):
    runs = jk.grid(d=1000, samples=2000, width=1000, seed=range(500))
    monkeypatch.setattr(lane_counts, "lanes_of_an_accelerator", lambda runs, most, *_: most)
    found = []
    for gigabytes in (16, 80):
        gpu = SimpleNamespace(
            platform="gpu", memory_stats=lambda b=gigabytes: {"bytes_limit": b * 2**30}
        )
        (bucket,) = plan(runs, [gpu])
        assert 0.3 * gigabytes * 2**30 < bucket.bytes <= 0.4 * gigabytes * 2**30
        found.append(bucket.lanes)
    assert found[1] > 4 * found[0]


def test_under_64_bits_a_slot_takes_twice_as_much():
    runs = jk.grid(d=100, samples=50, width=200)
    single = plan(runs, jax.devices())[0].slot_bytes
    with jax.enable_x64(True):
        assert plan(runs, jax.devices())[0].slot_bytes == 2 * single


@pytest.mark.parametrize("d", [100, 20_000, 100_000, 10_000_000])
def test_networks_of_many_dimensions_are_few_at_a_time_however_small_their_steps(d):
    """A single run at d = 100,000 took 18 GB, at 40 MB a network: 32 lanes, most of them idle."""
    (bucket,) = plan(jk.grid(d=d, samples=10, width=100, seed=0), jax.devices())
    assert bucket.lanes == 1 or bucket.lanes * 4 * d * (100 + 10) < 2**26
    assert (bucket.lanes == 32) == (d == 100)


def test_points_that_the_host_drew_are_let_go():
    """One at a time they were taken for a user's own arrays, which stay where they are."""
    drawn = {}

    class Drawn(jk.data.Distribution):
        def draw_training(self, seed):
            x = np.random.default_rng(seed).normal(size=(self.samples, self.d)).astype(np.float32)
            drawn[seed] = weakref.ref(x)
            return jk.Dataset(x, np.where(np.arange(self.samples) % 2, 1, -1).astype(np.float32))

    class Host(jk.Measurement):  # a slot a stream, so that runs are drawn one by one
        on_host = True

        def measure(self, params):
            return {"host": 0.0}

    sweep(
        jk.grid(
            data=Drawn,
            d=8,
            samples=6,
            width=20,
            seed=range(4, 8),
            measure=Host,
            max_steps=1,
            optimizer=SOON,
        )
    )
    gc.collect()
    assert not any(drawn[seed]() is not None for seed in range(4, 8))
