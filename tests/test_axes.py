"""Every number is an axis: numbers ride along with a lane and compile nothing."""

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from cases import SOON, squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine import forget
from jaxkkt.engine.programs import telling
from jaxkkt.engine.running import ended

pytestmark = pytest.mark.usefixtures("unchecked")

SIZES = {"d": 8, "samples": 6, "width": 20, "seed": 0}
BALLS, RATES, MOMENTA = [0.5, 1.0, 2.0, 4.0], [0.01, 0.05, 0.1], [0.0, 0.5, 0.9]


@pytest.fixture
def compiled():
    """Names of what XLA has compiled since, or read from its cache."""
    names = []

    def heard(event, *_, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield names
    jax.monitoring.unregister_event_duration_listener(heard)


def in_balls(balls, rates, momenta):
    return jk.grid(
        **SIZES,
        initialization="lazy",
        protocol=jk.protocols.lazy_flow().replace(max_steps=60),
        optimizer=jk.optimizer(optax.sgd, linear=True, learning_rate=0.1, momentum=0.5),
        ball=balls,
        learning_rate=rates,
        momentum=momenta,
    )


@pytest.mark.slow
def test_36_settings_compile_no_more_than_one(compiled):
    """4 balls, 3 learning rates and 3 momenta are one bucket."""
    forget()
    sweep(in_balls(BALLS[:1], RATES[:1], MOMENTA[1:2]))
    alone, count = programs_of(compiled), len(compiled)
    assert set(alone.values()) == {1}
    forget()
    compiled.clear()
    runs = in_balls(BALLS, RATES, MOMENTA)
    table = sweep(runs)
    assert programs_of(compiled) == alone
    assert len(compiled) <= count + 3
    assert len(jk.plan_sweep(runs).buckets) == 1
    assert table.flip_size.sizes["ball"] * table.flip_size.sizes["learning_rate"] == 12
    assert len(set(table.log_loss.values.ravel().tolist())) > 20


@pytest.mark.slow
def test_sizes_that_share_a_bucket_are_measured_by_one_program(compiled):
    runs = jk.grid(d=8, samples=9, width=[250, 260], seed=[0])
    assert len(jk.plan_sweep(runs).buckets) == 1
    forget()
    sweep(runs)
    assert set(programs_of(compiled).values()) == {1}


def programs_of(names):
    """How often each program of the engine is among them. Two threads may both compile the same
    single operation, so these are counted with some room."""
    ours = ["jit(_place)", "jit(_advance)", "jit(_decode)", "jit(measure_all)"]
    return {name: names.count(name) for name in ours}


@pytest.mark.slow
def test_lanes_of_other_numbers_equal_runs_alone():
    table = sweep(in_balls(BALLS[1:3], RATES[:2], MOMENTA[1:]))
    for run in in_balls(BALLS[1:3], RATES[:2], MOMENTA[1:])[::3]:
        start, data = jax.device_put(jk.draw(run))
        alone = jk.train(start, *data, run.protocol)
        row = table.sel({k: v for k, v in run.fields().items() if k in table.dims})
        assert row.status.item() == alone.status
        assert row.steps.item() == alone.steps
        assert row.log_loss.item() == pytest.approx(float(alone.log_loss), rel=1e-5)


@pytest.mark.slow
def test_numbers_of_a_measurement_are_an_axis(compiled):
    slacks = [1.0, 1.1, 1.5]
    runs = jk.grid(d=8, samples=40, width=20, seed=[0], slack=slacks)
    table = sweep(runs)
    assert table.sizes["slack"] == 3
    alone = [sweep([run]).on_margin_share.item() for run in runs]
    assert table.on_margin_share.values.ravel().tolist() == alone
    assert (np.diff(alone) >= 0).all()
    assert alone[-1] > alone[0]


@pytest.mark.slow
def test_another_number_is_another_row_and_another_curve_too(tmp_path):
    """Numbers of a lane are told from each other: nothing is computed with a neighbour's."""
    runs = jk.grid(**SIZES, target_log_loss=[-1.0, -5.0], curve=jk.Curve([-0.5]))
    table = sweep(runs, store=tmp_path)
    assert (table.log_loss.diff("target_log_loss") > 0).all()
    np.testing.assert_array_equal(
        table.curve_log_loss.isel(target_log_loss=0), table.curve_log_loss.isel(target_log_loss=1)
    )


class Named(jk.Measurement):
    padded = True

    def measure(self, params):
        return {"named": params.v[:2]}

    def axes(self):
        return {"named": {"rank": (1, 2)}}


class Host(jk.Measurement):
    on_host = True
    __module__ = "jaxkkt.own"

    def measure(self, params):
        return {"host": 1.0}


class TestCurves:
    LEVELS = (-1.0, -3.0, -10.0, -30.0, -60.0, -1000.0)

    def test_a_curve_that_is_not_there_is_told_before_anything_runs(self):
        """It was an AttributeError of the measurement's own, once all was trained."""

        class Moments(jk.Measurement):
            on_host = True

            def measure(self, curve):
                return {"moments": len(curve.v)}

        class PerhapsMoments(jk.Measurement):
            on_host = True

            def measure(self, curve=None):
                return {"moments": 0}

        axes = {"d": 8, "samples": 6, "width": 20, "seed": 0}
        assert jk.plan_sweep(jk.grid(**axes, measure=Moments, curve=jk.Curve([-1])))
        assert jk.plan_sweep(jk.grid(**axes, measure=PerhapsMoments))
        with pytest.raises(ValueError, match="the networks on a run's way, and the run has no cur"):
            jk.plan_sweep(jk.grid(**axes, measure=Moments))

    @pytest.mark.slow
    def test_moments_are_those_of_training_through_levels(self):
        curve = jk.Curve(self.LEVELS, measure=jk.Flips())
        (run,) = jk.grid(d=8, samples=6, width=20, seed=0, curve=curve)
        table = sweep([run]).squeeze()
        start, data = jax.device_put(jk.draw(run))
        through = jk.train_through(start, *data, levels=self.LEVELS[:-1])
        reached = table.isel(level=slice(None, -1))
        assert table.level.values.tolist() == list(self.LEVELS)
        np.testing.assert_allclose(reached.curve_log_loss, through.log_loss, rtol=1e-4)
        np.testing.assert_array_equal(reached.curve_steps, through.steps)
        margins = jax.vmap(lambda p: jk.networks.margins(p, *data).min())(through.params)
        np.testing.assert_allclose(reached.curve_min_margin, margins, rtol=1e-4)
        norm = jax.vmap(jk.networks.squared_norm)(through.params)
        np.testing.assert_allclose(reached.curve_squared_norm, norm, rtol=1e-5)
        assert np.isfinite(reached.curve_flip_size).all()
        assert np.isnan(table.curve_log_loss[-1])  # the run ends before

    def test_moments_that_no_run_reaches_are_there(self, tmp_path):
        """Variables and their dimensions, as where runs reach them; nobody knows what the host
        would have returned."""

        def heights(params):
            return {"heights": params.b}

        reached, never = ((5.0, 4.0), (-500.0, -1000.0))
        curves = [jk.Curve(some, measure=[heights, Named, Host]) for some in (reached, never)]
        axes = {"d": 8, "samples": 6, "width": [5, 20], "seed": range(2), "max_steps": 10}
        axes |= {"optimizer": SOON}
        there, runs = (jk.grid(**axes, measure=squared_norm, curve=curve) for curve in curves)
        expected = sweep(there)
        tables = [sweep(runs), sweep(runs, store=tmp_path), sweep(runs, store=tmp_path)]
        for table in (*tables, jk.landed(runs, store=tmp_path), jk.read_store(tmp_path)):
            assert set(expected.data_vars) - set(table.data_vars) == {"curve_host"}
            for name, found in table.data_vars.items():
                if name != "error":
                    assert found.sizes == expected[name].sizes, name
                    assert np.isnan(found).all() == name.startswith("curve_"), name

    def test_own_arrays_of_one_size_may_reach_no_moment(self):
        """Comparing the second with the first raised an error, and its runs were lost."""
        x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
        y = np.array([1, -1, 1, -1, 1, -1], np.float32)
        data = [jk.data.Arrays(x[i], y, name=name) for i, name in enumerate("ab")]
        curve = jk.Curve([-500.0], measure=squared_norm)
        axes = {"width": 20, "seed": range(2), "max_steps": 3, "measure": squared_norm}
        axes |= {"optimizer": SOON}
        table = sweep(jk.grid(data=data, **axes, curve=curve))
        assert (table.steps == 3).all()
        assert np.isnan(table.curve_squared_norm).all()

    def test_names_of_moments_that_none_reaches_are_found_once_a_kind(self, monkeypatch):
        found, shapes_of = [], ended.shapes_of

        def noted(run, *rest):
            found.append(run)
            return shapes_of(run, *rest)

        monkeypatch.setattr(ended, "shapes_of", noted)
        curve, rates = jk.Curve([-500.0], measure=squared_norm), np.linspace(0.01, 0.02, 6)
        axes = {"d": 8, "samples": 6, "width": [5, 20], "seed": 0, "max_steps": 10}
        table = sweep(jk.grid(**axes, delta=rates, measure=squared_norm, curve=curve))
        assert np.isnan(table.curve_squared_norm).all()
        assert {run.width for run in found} == {5, 20}
        assert len(found) <= 2 * jk.plan_sweep(jk.grid(**axes, measure=())).streams

    @pytest.mark.slow
    def test_a_run_goes_on_as_if_there_were_none(self):
        plain = sweep(jk.grid(d=8, samples=6, width=20, seed=range(3)))
        watched = sweep(jk.grid(d=8, samples=6, width=20, seed=range(3), curve=jk.Curve([-1, -9])))
        for name in ("steps", "status"):
            np.testing.assert_array_equal(plain[name], watched[name])
        np.testing.assert_allclose(plain.log_loss, watched.log_loss, rtol=1e-5)

    @pytest.mark.slow
    def test_by_steps_in_mini_batches(self):
        axes = {"d": 8, "samples": 6, "width": 20, "seed": 0, "optimizer": "descent"}
        axes |= {"batch_size": 3, "max_steps": 40}
        plain = sweep(jk.grid(**axes))
        watched = sweep(jk.grid(**axes, curve=jk.Curve(steps=[0, 4, 17])))
        assert watched.step.values.tolist() == [0, 4, 17]
        assert watched.curve_steps.values.ravel().tolist() == [0, 4, 17]
        assert (watched.curve_log_loss.diff("step") < 0).all()
        np.testing.assert_allclose(plain.log_loss, watched.log_loss, rtol=1e-5)

    @pytest.mark.parametrize(
        ("moments", "message"),
        [
            ({}, "exactly one of `log_losses` and `steps`"),
            ({"log_losses": [-1], "steps": [3]}, "exactly one of"),
            ({"log_losses": [-3, -1]}, "each below the one before"),
            ({"log_losses": [-1, float("nan")]}, "must be finite"),
            ({"steps": [3, 3]}, "rising"),
            ({"steps": [-1]}, "must be at least 0"),
        ],
    )
    def test_refuses(self, moments, message):
        with pytest.raises(ValueError, match=message):
            jk.Curve(**moments)


class TestKept:
    @pytest.mark.slow
    def test_networks_come_back_as_they_were_measured(self, tmp_path):
        def fingerprint(params, data):
            return {"w": params.w, "b": params.b, "v": params.v}

        runs = jk.grid(d=8, samples=6, width=[5, 20], seed=range(2), measure=fingerprint)
        table = sweep(runs, store=tmp_path, keep="params")
        for run in runs:
            params = jk.load_network(tmp_path, run)
            assert params.w.shape == (run.width, 8)
            row = table.sel(width=run.width, seed=run.seed).squeeze()
            for name in ("w", "b", "v"):
                own = row[name].values[: run.width]
                np.testing.assert_array_equal(own, getattr(params, name))
                assert np.isnan(row[name].values[run.width :]).all()

    @pytest.mark.slow
    def test_chosen_runs_and_networks_that_are_missing(self, tmp_path):
        runs = jk.grid(d=8, samples=6, width=5, seed=range(3))
        first = sweep(runs, store=tmp_path, keep=runs[:1])
        assert np.isfinite(jk.load_network(tmp_path, runs[0]).w).all()
        with pytest.raises(ValueError, match=r"keeps no network of d8.*, but those of 1 other"):
            jk.load_network(tmp_path, runs[1])
        xr.testing.assert_identical(sweep(runs, store=tmp_path, keep="params"), first)
        assert np.isfinite(jk.load_network(tmp_path, runs[1]).w).all()

    def test_refuses(self, tmp_path):
        runs = jk.grid(d=8, samples=6, width=5, seed=range(2))
        with pytest.raises(ValueError, match="kept in a store: give its folder"):
            sweep(runs, keep="params")
        with pytest.raises(ValueError, match="keep must be 'params', or a list of the runs"):
            sweep(runs, store=tmp_path, keep="all")
        with pytest.raises(ValueError, match="keep names 1 runs that are not among"):
            sweep(runs[:1], store=tmp_path, keep=runs[1:])
        with pytest.raises(ValueError, match="is no store"):
            jk.load_network(tmp_path / "nowhere", runs[0])


def test_pauses_past_the_last_moment_are_none():
    (run,) = jk.grid(**SIZES, curve=jk.Curve([-1, -2]))
    levels = [
        float(telling._how(run.protocol, run.curve, i, True).pause.log_loss) for i in range(3)
    ]
    assert levels == [-1, -2, -np.inf]
