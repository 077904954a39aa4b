"""What a store holds, read without its runs."""

import json
from datetime import datetime
from pathlib import Path

import jax
import numpy as np
import optax
import pandas as pd
import pytest
import xarray as xr
from cases import SOON, squared_norm, sweep
from store_cases import SIZES

import jaxkkt as jk
from jaxkkt.engine.tables import records
from jaxkkt.specs.fields import described
from jaxkkt.store import Store
from jaxkkt.studies.command import main


class TestReading:
    def test_without_the_runs(self, tmp_path):
        """As the sweep's own table, and without the code of own measurements."""
        curve = jk.Curve([-1, -5], measure=jk.StepFlips())
        axes = {"d": 8, "samples": [6, 7], "width": 20, "seed": range(2)}
        runs = jk.grid(**axes, optimizer=SOON, curve=curve)
        table = sweep(runs, store=tmp_path)
        read = jk.read_store(tmp_path)
        xr.testing.assert_equal(read, table)
        for name in table.variables:
            assert read[name].attrs == table[name].attrs

    def test_measurements_of_one_name_have_a_row_each(self, tmp_path):
        """What was shown was the last that had been computed, whatever was asked for last."""

        def made(factor):
            def size(params):
                return factor * jax.numpy.abs(params.v).max()

            return size

        for factor in (1.0, 2.0, 1.0):
            runs = jk.grid(**SIZES, seed=0, measure=[made(factor), jk.Flips])
            table = sweep(runs, store=tmp_path, keep="params")
        with pytest.warns(UserWarning, match="1 of 2 rows in .* have the columns and the seed"):
            rows = jk.read_rows(tmp_path)
        small, large = sorted(rows["size"])
        assert (small, large) == (table["size"].item(), 2 * table["size"].item())
        assert rows.date.str.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00").all()
        assert rows.min_margin.nunique() == rows.log_loss.nunique() == 1

    @pytest.mark.slow
    def test_the_later_of_two_measurements_has_the_later_date(self, tmp_path, monkeypatch):
        def made(factor):
            def size(params):
                return factor * jax.numpy.abs(params.v).max()

            return size

        for day, (factor, more) in enumerate(((1.0, []), (2.0, []), (2.0, [squared_norm])), 1):
            dates = type("Dates", (), {"now": lambda _, day=day: datetime(2026, 1, day)})
            monkeypatch.setattr(records, "datetime", dates)
            runs = jk.grid(**SIZES, seed=0, measure=[made(factor), *more])
            sweep(runs, store=tmp_path, keep="params")
        with pytest.warns(UserWarning, match="1 of 2 rows in"):
            rows = jk.read_rows(tmp_path)
        assert rows.date.tolist() == ["2026-01-01T00:00:00", "2026-01-02T00:00:00"]
        assert rows["size"].is_monotonic_increasing

    def test_measurements_in_another_order_are_the_same(self, tmp_path):
        """They were a dimension, and so were fields that two of them share, or that moved."""

        class Double(jk.Measurement):
            size: jk.Number = described("of Double", default=2.0)

            def measure(self, params):
                return {"double": self.size * abs(params.v).max()}

        class Triple(jk.Measurement):
            size: jk.Number = described("of Triple", default=3.0)

            def measure(self, params):
                return {"triple": self.size * abs(params.v).max()}

        mine, others = [jk.Flips, Double, Triple], [jk.Flips, Triple, Double]
        axes = {**SIZES, "max_steps": 2}
        sweep(jk.grid(**axes, seed=range(2), measure=mine), store=tmp_path)
        more = jk.grid(**axes, seed=range(3), measure=others)
        extended = sweep(more, store=tmp_path)
        read = jk.read_store(tmp_path)
        assert (
            dict(extended.sizes)
            == dict(read.sizes)
            == {"d": 1, "samples": 1, "width": 1, "seed": 3}
        )
        assert (extended.measure, read.measure) == (
            "flips, triple, double",
            "flips, double, triple",
        )
        for table in (read, sweep(jk.grid(**axes, seed=0, measure=mine) + more[2:])):
            assert dict(table.sizes).keys() == {"d", "samples", "width", "seed"}
            sizes = table.measure1_size, table.measure2_size
            assert (table.slack, *sizes) == (1.1, 2, 3)
            assert [size.attrs["long_name"] for size in sizes] == ["of Double", "of Triple"]
        assert jk.read_rows(tmp_path).measure.nunique() == 1
        np.testing.assert_array_equal(read.triple, extended.triple)
        with pytest.raises(ValueError, match="and none of these") as refused:
            sweep(jk.grid(**axes, seed=9, measure=others), store=tmp_path)
        assert "measure:" not in str(refused.value)

    @pytest.mark.slow
    def test_runs_that_columns_do_not_tell_apart_are_all_there(self, tmp_path):
        """A run with a curve and one without, own arrays of one label."""
        curve = jk.Curve([-1, -5])
        runs = [*jk.grid(**SIZES, seed=range(2)), *jk.grid(**SIZES, seed=range(2), curve=curve)]
        swept = sweep(runs, store=tmp_path / "curves")
        with pytest.warns(UserWarning, match="2 of 4 rows in .* have the columns and the seed"):
            read = jk.read_store(tmp_path / "curves")
        for table in (swept, read):
            assert dict(table.status.sizes) == {"run": 4}
        x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
        y = np.array([1, -1, 1, -1, 1, -1], np.float32)
        data = [jk.data.Arrays(points, y) for points in x]
        table = sweep(jk.grid(data=data, width=20, seed=range(2)), store=tmp_path / "arrays")
        with pytest.warns(UserWarning, match="own functions or arrays of one name"):
            read = jk.read_store(tmp_path / "arrays")
        with pytest.warns(UserWarning, match="own functions or arrays of one name"):
            assert len(jk.read_rows(tmp_path / "arrays")) == 4
        assert read.status.size == table.status.size == 4
        found, expected = (sorted(t.log_loss.values.ravel().tolist()) for t in (read, table))
        assert found == expected

    def test_what_was_measured_does_not_tell_runs_apart(self, tmp_path, recwarn):
        """A table had the other arrays on the axis of what was measured, and no warning."""

        def largest(params):
            return abs(params.v).max()

        x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
        y = np.array([1, -1, 1, -1, 1, -1], np.float32)
        axes = {"width": 20, "seed": range(2), "max_steps": 3}
        sweep(jk.grid(data=(x[0], y), **axes, measure=[squared_norm, largest]), store=tmp_path)
        assert jk.read_store(tmp_path).status.size == 2
        assert not recwarn.list
        both = [(points, y) for points in x]
        sweep(jk.grid(data=both, **axes, measure=squared_norm), store=tmp_path)
        with pytest.warns(UserWarning, match="2 of 4 rows in .* have the columns and the seed"):
            jk.read_store(tmp_path)

    def test_a_curve_that_is_not_in_the_folder_is_told(self, tmp_path):
        """More seeds were blamed, or own functions."""
        axes = {**SIZES, "max_steps": 3, "measure": squared_norm}
        sweep(jk.grid(**axes, seed=0), store=tmp_path)
        more = jk.grid(**axes, seed=[0, 1], curve=jk.Curve([-1], measure=squared_norm))
        with pytest.raises(
            ValueError, match=r"What differs:\n  curve: .*: \['none'\].*log_losses"
        ) as e:
            sweep(more, store=tmp_path)
        assert "seed:" not in str(e.value)

    def test_arrays_of_their_own_names_are_told_apart(self, tmp_path, recwarn):
        x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
        y = np.array([1, -1, 1, -1, 1, -1], np.float32)
        data = [jk.data.Arrays(x[i], y, name=name) for i, name in enumerate("ab")]
        table = sweep(jk.grid(data=data, width=20, seed=range(2)), store=tmp_path)
        xr.testing.assert_equal(jk.read_store(tmp_path), table)
        assert not recwarn.list

    def test_networks_whose_rows_are_gone_are_told(self, tmp_path):
        """Which of several is meant ended in an IndexError."""
        (run,) = jk.grid(**SIZES, seed=0, max_steps=0)
        sweep([run], store=tmp_path, keep="params")
        params = jk.load_network(tmp_path, run)
        Store(tmp_path).save_network(run.name, "another", params)
        jk.load_network(tmp_path, run)  # that of its row
        for path in Store(tmp_path).paths():
            path.unlink()
        with pytest.raises(ValueError, match=r"keeps a network of d8.* but no row that counts"):
            jk.load_network(tmp_path, run)

    def test_many_networks_are_found_by_one_listing(self, tmp_path, monkeypatch, unchecked):
        """Each listing took as long as there were networks: minutes for all of some thousands."""
        runs = jk.grid(**SIZES, seed=range(3), max_steps=0)
        sweep(runs, store=tmp_path, keep="params")
        listed, glob = [], Path.glob
        monkeypatch.setattr(Path, "glob", lambda *args: listed.append(args) or glob(*args))
        found = list(jk.load_networks(tmp_path, (run for run in [*runs, runs[0]])))
        assert [folder.name for folder, _ in listed].count("networks") == 1
        for run, params in zip([*runs, runs[0]], found, strict=True):
            np.testing.assert_array_equal(params.w, jk.draw(run)[0].w)
        other = jk.grid(**SIZES, seed=[7], max_steps=0)
        with pytest.raises(ValueError, match=r"no network of d8-m6-k20-s7-.* of 3 other runs"):
            jk.load_networks(tmp_path, runs + other)
        with pytest.raises(ValueError, match=r"takes a list of jk.Run .*, got 'd8'"):
            jk.load_networks(tmp_path, ["d8"])
        with pytest.raises(ValueError, match=r"takes a list of jk.Run .*, got Run\("):
            jk.load_networks(tmp_path, runs[0])

    def test_exports_are_as_strict_as_their_formats(self, tmp_path):
        """NaN within an array; a column of words and numbers."""

        def halved(step):
            return 1e-3 * 0.5 ** (step / 100)

        rates = [jk.optimizer(optax.sgd, learning_rate=rate) for rate in (1e-3, halved)]
        curve = jk.Curve([2, -90])
        runs = jk.grid(**SIZES, seed=0, optimizer=rates, curve=curve, max_steps=200)
        sweep(runs, store=tmp_path / "s")
        for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
            assert (
                main(["store", "export", str(tmp_path / "s"), str(tmp_path / f"rows.{kind}")]) == 0
            )
            rows = read(tmp_path / f"rows.{kind}").sort_values("learning_rate")
            assert rows.learning_rate.tolist() == ["0.001", "halved"]
            for losses in rows.curve_log_loss:
                losses = json.loads(losses) if isinstance(losses, str) else losses
                assert pd.isna(losses).tolist() == [False, True]

    def test_nothing(self, tmp_path):
        with pytest.raises(ValueError, match="is no store"):
            jk.read_store(tmp_path)
        with Store(tmp_path).writing({}), pytest.raises(ValueError, match="no row has landed"):
            jk.read_store(tmp_path)

    def test_random_draws_are_a_table_of_one_row_a_run(self, tmp_path):
        numbers = np.random.default_rng(0)
        runs = [
            run
            for i in range(20)
            for run in jk.grid(
                **SIZES, seed=i, delta=float(numbers.uniform(0.01, 0.02)), max_steps=2
            )
        ]
        table = sweep(runs, store=tmp_path)
        assert table.sizes["run"] == 20
        assert table.delta.dims == table.flip_size.dims == ("run",)
        assert table.seed.values.tolist() == list(range(20))
        assert (tmp_path / "results.nc").stat().st_size < 300_000
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "results.nc"), table)
        with pytest.raises(ValueError, match="the table has no dimension 'seed', but run"):
            jk.summarize(table, "flip_size")


class Times(jk.Measurement):
    size: jk.Number = 1.0

    def measure(self, params):
        return {"times": self.size * jk.networks.squared_norm(params)}


class Plus(jk.Measurement):
    size: jk.Number = 1.0

    def measure(self, params):
        return {"plus": self.size + jk.networks.squared_norm(params)}


def test_a_run_has_a_row_for_each_value_of_a_measurements_field(tmp_path, capsys):
    runs = jk.grid(**SIZES, seed=range(2), slack=[1.0, 1.5, 3.0])
    swept = sweep(runs, store=tmp_path)
    read = jk.read_store(tmp_path)
    for name in swept.data_vars:
        np.testing.assert_array_equal(read[name].transpose(*swept[name].dims), swept[name])
    assert main(["store", "list", str(tmp_path)]) == 0
    assert "2 runs in 6 rows: 2 converged" in capsys.readouterr().out
    # What does not depend on the field belongs to all of its values.
    sweep(jk.grid(**SIZES, seed=range(2), measure=Plus), store=tmp_path)
    rows = jk.read_rows(tmp_path)
    assert len(rows) == 6
    assert rows["plus"].notna().all()
    assert set(rows.measure) == {"flips, plus"}


def test_an_edited_measurement_makes_no_more_runs(tmp_path, capsys):
    """They were counted as runs, and a reader of the folder got the warning as Python's."""

    def weight(params):
        return params.v.sum()

    def edited(params):
        return 2 * params.v.sum()

    edited.__name__ = "weight"
    runs = jk.grid(**SIZES, seed=range(2), measure=weight)
    table = sweep(runs, store=tmp_path)
    read = jk.read_store(tmp_path)
    assert read.attrs.items() <= table.attrs.items()
    assert {"device", "versions", "code"} <= set(read.attrs)
    sweep(jk.grid(**SIZES, seed=range(2), measure=edited), store=tmp_path)
    assert main(["store", "list", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "2 runs in 4 rows: 2 converged" in said.out
    assert said.err.startswith("warning: 2 of 4 rows in ")
    assert jk.landed(runs, store=tmp_path).weight.equals(table.weight)


def test_no_value_stands_beside_the_field_of_another_measurement(tmp_path):
    for kind, size in ((Times, 0.5), (Plus, 3.0), (Times, 3.0), (Times, 0.5)):
        sweep(jk.grid(**SIZES, seed=0, measure=kind, size=size), store=tmp_path)
    rows = jk.read_rows(tmp_path).set_index("size").sort_index()
    norm = rows.times[0.5] / 0.5
    assert rows.times.tolist() == [pytest.approx(0.5 * norm), pytest.approx(3 * norm)]
    assert np.isnan(rows.plus[0.5])
    assert rows.plus[3.0] == pytest.approx(3 + norm)


def test_fields_of_one_name_stand_beside_their_own_measurement_alone(tmp_path):
    """Measured together after each alone, both were shown twice: at either one's field."""
    axes = {**SIZES, "seed": 0}
    times, plus = Times(size=0.5), Plus(size=3.0)
    for one in (times, plus):
        sweep(jk.grid(**axes, measure=one), store=tmp_path, keep="params")
    other = jk.grid(**axes, measure=[Times(size=7.0), Plus(size=9.0)])
    sweep(other, store=tmp_path, keep="params")
    rows = jk.read_rows(tmp_path).set_index("size")  # NaN of the row of both
    assert len(rows) == 3
    norm = rows.times[0.5] / 0.5
    assert np.isnan(rows.plus[0.5])
    assert np.isnan(rows.times[3.0])
    assert rows.plus[3.0] == pytest.approx(3 + norm)
    # A row that has what others have, and more, stands for them.
    table = sweep(jk.grid(**axes, measure=[jk.Flips(), times, plus]), store=tmp_path)
    rows = jk.read_rows(tmp_path)
    assert rows.measure.tolist() == ["times, plus", "flips, times, plus"]
    assert "size" not in rows
    both = rows.iloc[1]
    assert (both.measure1_size, both.measure2_size) == (0.5, 3.0)
    assert (both.times, both.plus) == (table.times.item(), table.plus.item())
    assert (rows.iloc[0].measure_size, rows.iloc[0].times) == (7, pytest.approx(7 * norm))
