"""The engine: lanes, streams and results."""

import io
import json
import re
from collections import deque
from contextlib import closing, suppress
from itertools import chain
from threading import Barrier

import chex
import jax
import numpy as np
import optax
import pytest
import xarray as xr
from cases import SOON, planned_for, squared_norm, sweep

import jaxkkt as jk
from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.planning.trajectories import trajectories
from jaxkkt.engine.programs.draws import draw
from jaxkkt.engine.programs.training import Programs, compile_bucket
from jaxkkt.engine.running import lanes, slots, streams
from jaxkkt.engine.running.lanes import run_bucket
from jaxkkt.engine.running.progress import Meter
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.running.tally import Tally, together
from jaxkkt.engine.tables import results
from jaxkkt.engine.tables.summaries import told_by
from jaxkkt.training import Status

SMALL = {"d": 8, "samples": 6, "width": 20, "optimizer": SOON, "measure": squared_norm}


class TestRuns:
    def test_draws_come_from_the_run_alone(self):
        (run,) = jk.grid(d=9, samples=7, width=5, seed=3, init_scale=0.5)
        params, data = draw(run)
        alone = jax.jit(lambda key: jk.datasets.sphere(key, 7, 9))(run.data_key())
        start = jax.jit(lambda key: jk.networks.torch_linear(key, 5, 9, 0.5))(run.init_key())
        # Equal up to the rounding of a division by a constant and by a number.
        chex.assert_trees_all_close(data, jax.device_get(alone), rtol=1e-6)
        chex.assert_trees_all_close(params, jax.device_get(start), rtol=1e-6)

    def test_rows_equal_runs_trained_alone(self, one_lane):
        runs = [
            *jk.grid(d=[8, 12], alpha=[1.0], width=[20], seed=[3]),
            *jk.grid(d=[12], alpha=[1.0], width=[20], seed=[3], loss=["logistic"]),
        ]
        table = sweep(runs)

        @jax.jit
        def flips_of(params, x, y):
            chosen = jk.perturbations.on_margin(jk.networks.margins(params, x, y))
            direction = jk.perturbations.universal_direction(x, y, chosen)
            return chosen, jk.perturbations.flip_sizes_exact(params, x, y, direction, chosen)

        steps = []
        # A large one, and one of another loss; each shape compiles.
        for run in runs[1:]:
            params, data = jax.device_put(draw(run))
            alone = jk.train(params, *data, run.protocol)
            fields = {k: v for k, v in run.fields().items() if k in table.dims}
            row = table.sel(fields)
            assert row.status == alone.status == Status.CONVERGED
            # Padding changes rounding, rounding the step at which kinks are crossed, and that the
            # estimated stiffness. At alpha = 1.5 c itself changes by up to 1%, whoever trains.
            assert abs(int(row.steps) - int(alone.steps)) <= 0.05 * int(alone.steps)
            chosen, flip = flips_of(alone.params, *data)
            assert float(row.flip_size_exact) == pytest.approx(float(flip.size), rel=5e-3)
            assert float(row.flip_size) == pytest.approx(float(row.flip_size_exact), rel=1e-5)
            assert float(row.on_margin_share) == pytest.approx(float(chosen.mean()))
            assert int(row.off_margin_count) == int((~chosen).sum())
            steps.append(int(row.steps))
        assert len(set(steps)) == 2

    def test_bits_depend_neither_on_lane_nor_on_batch_mates(self):
        """A single run, a partial batch and another order give the bits of the whole bucket."""
        runs = jk.grid(d=8, samples=6, width=20, seed=range(8))
        bucket = planned_for(runs)[0].with_lanes(4)
        programs = compile_bucket(bucket)

        def rows(some):
            found = run_bucket(bucket, deque(trajectories(some)), programs, Tally())
            return {row.run: row.values for row in chain(*found)}

        whole = rows(bucket.runs)
        assert rows(bucket.runs[::-1]) == whole
        assert rows(bucket.runs[3:6]) == {run: whole[run] for run in bucket.runs[3:6]}
        assert rows(bucket.runs[4:5]) == {bucket.runs[4]: whole[bucket.runs[4]]}

    def test_bits_do_not_depend_on_the_chunk_length(self, monkeypatch):
        runs = jk.grid(**SMALL, seed=range(3))
        first = sweep(runs)
        monkeypatch.setattr(lanes, "FIRST_CHUNK", 7)
        monkeypatch.setattr(lanes, "CHUNK_SECONDS", 1e-6)
        xr.testing.assert_identical(sweep(runs), first)

    def test_bits_do_not_depend_on_the_number_of_streams(self, monkeypatch):
        axes = {"d": [8, 12], "alpha": 1.5, "width": [20, 30], "seed": range(10)}
        runs = jk.grid(**axes, optimizer=SOON, measure=squared_norm)
        tables = []
        for cores in (1, 3):
            monkeypatch.setattr(lane_counts, "cores", lambda cores=cores: cores)
            assert jk.plan_sweep(runs).streams == cores
            tables.append(sweep(runs))
        xr.testing.assert_identical(*tables)

    def test_two_streams_begin_with_the_shortest_and_the_longest_runs(self, monkeypatch):
        each = [jk.grid(d=d, alpha=1.0, width=10, seed=range(4)) for d in (10, 20, 30)]
        some = [bucket for runs in each for bucket in planned_for(runs)]
        compiled, begun, both = [], [], Barrier(2, timeout=60)

        def compile_bucket(bucket):
            compiled.append(bucket.d)
            return Programs(*[None] * len(Programs._fields))

        def run_bucket(bucket, queue, *_):
            if len(begun) < 2:
                begun.append(bucket.d)
                both.wait()
            while queue:
                with suppress(IndexError):  # the other stream took it
                    yield [Row(queue.popleft()[0], {})]

        monkeypatch.setattr(streams, "run_bucket", run_bucket)
        monkeypatch.setattr(streams, "compile_bucket", compile_bucket)
        used, tallies = jax.devices()[:1], [Tally(), Tally()]
        ended = list(chain(*streams.run_streams(some, (), tallies, used, lambda: None)))
        assert {row.run for row in ended} == {run for bucket in some for run in bucket.runs}
        assert len(ended) == 12
        assert sorted(begun) == [10, 30]
        assert compiled == [10, 30, 20]

    @pytest.mark.slow
    def test_streams_work_in_the_precision_of_the_caller(self):
        with jax.enable_x64(True):
            table = sweep(jk.grid(d=8, samples=6, width=20, seed=[0]))
        size = table.flip_size_exact.item()
        assert np.isfinite(size)
        assert size != float(np.float32(size))

    def test_an_error_in_a_stream_is_raised(self):
        def fail(params, data):
            raise ArithmeticError("no such number")

        runs = jk.grid(**{**SMALL, "measure": fail}, seed=0)
        with pytest.raises(ArithmeticError, match="no such number"):
            sweep(runs)

    def test_an_error_while_running_is_raised(self, monkeypatch):
        def fail(*args):
            raise MemoryError("not enough")

        monkeypatch.setattr(slots, "draw_batch", fail)
        with pytest.raises(MemoryError, match="not enough"):
            sweep(jk.grid(**SMALL, seed=range(3)))

    def test_the_report_and_the_bar(self, capsys, one_lane):
        sweep(jk.grid(**SMALL, seed=range(3)), progress=True)
        shown = capsys.readouterr().err
        assert re.search(r"3/3 runs *\n3 runs in \d+\.\d s \(streams: \d+, each", shown)
        # All but the last step of a run, which finds that it has converged.
        assert re.search(r"98\.\d% of lane-steps useful, 0\.0% of the work padding", shown)
        assert "nan" not in shown

    @pytest.mark.parametrize("notebook", [True, False])
    def test_a_notebook_shows_the_bar_and_a_file_does_not(self, notebook, monkeypatch):
        """The stream of Jupyter's kernel says that it is no terminal: notebooks showed nothing."""
        kind = type("OutStream", (io.StringIO,), {})
        kind.__module__ = "ipykernel.iostream" if notebook else "io"
        monkeypatch.setattr("sys.stderr", stream := kind())
        sweep(jk.grid(**SMALL, seed=range(3)), progress=None)
        assert ("100%" in stream.getvalue()) is notebook
        assert ("3/3 runs" in stream.getvalue()) is notebook

    def test_a_bar_is_full_once_all_runs_have_ended(self):
        """Sums of work are rounded, and a notebook's bar that stops short is red."""
        with closing(Meter(runs=3, work=1.0, enabled=True)) as meter:
            shares = []
            for ended in (2, 3):
                meter.show(Tally(), ended, 0.999)
                shares.append(meter._bar.n)
        assert shares == [0.999, 1]

    @pytest.mark.parametrize("progress", [None, True])
    def test_where_there_is_no_standard_error(self, progress, monkeypatch):
        """As in a service: it failed before anything was trained."""
        monkeypatch.setattr("sys.stderr", None)
        table = jk.sweep(jk.grid(**SMALL, seed=0, max_steps=3), progress=progress)
        assert table.steps.item() == 3

    def test_lane_steps_are_counted(self):
        runs = jk.grid(d=8, samples=6, width=20, seed=range(8))
        bucket = planned_for(runs)[0].with_lanes(4)
        programs = compile_bucket(bucket)
        tally = Tally()
        queue = deque(bucket.trajectories)
        rows = list(chain(*run_bucket(bucket, queue, programs, tally)))
        assert tally.useful_steps == sum(row.values["steps"] for row in rows)
        assert tally.useful_steps <= tally.lane_steps
        assert tally.useful_share() > 0.7

    def test_no_more_lane_steps_are_useful_than_there_are(self):
        protocol = jk.adversarial.AdversarialProtocol(batch_size=4, epochs=2)
        runs = jk.grid(d=8, samples=6, width=20, seed=range(4), protocol=protocol, measure=())
        bucket = planned_for(runs)[0].with_lanes(2)
        tally = Tally()
        list(run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), tally))
        assert tally.useful_steps == 4 * 2
        assert tally.useful_steps <= tally.lane_steps

    def test_tallies_add_up_and_come_to_rest(self):
        one = Tally(10, 6, 1.5, 2.0, 3, 4, 100.0, (-1.0,))
        other = Tally(5, 4, 0.5, 1.0, 1, 2, 50.0, (-2.0, -3.0))
        total = together([one, other])
        assert total == Tally(15, 10, 2.0, 3.0, 4, 6, 150.0, (-1.0, -2.0, -3.0))
        assert total.useful_share() == 2 / 3
        assert together([]).useful_share() == 1
        one.rest()
        assert one == Tally(10, 6, 1.5)

    def test_failed_runs_have_a_status_and_are_named(self, caplog):
        too_fast = jk.Descent(learning_rate=1e6)
        runs = jk.grid(d=8, samples=6, width=20, seed=range(3), optimizer=too_fast)
        with caplog.at_level("WARNING"):
            table = sweep(runs)
        assert "3 of 3 runs failed, and no mean counts them. 3 DIVERGED: the loss" in caplog.text
        assert (table.status == Status.DIVERGED).all()
        assert np.isnan(table.flip_size).all()
        assert np.isnan(table.flip_size_exact).all()
        summary = jk.summarize(table, "flip_size")
        assert np.isnan(summary.mean).all()
        assert (summary.used == 0).all()
        assert (summary.excluded == 3).all()

    def test_runs_given_twice_run_once(self):
        runs = jk.grid(**SMALL, seed=[0])
        with pytest.warns(UserWarning, match="1 runs were given twice and run once"):
            table = sweep(runs + runs)
        assert table.status.size == 1

    def test_no_runs_is_an_error(self):
        with pytest.raises(ValueError, match="the grid is empty"):
            sweep([])


class TestResults:
    def table(self):
        rows = [
            Row(run, {"c": float(run.d + run.seed), "status": 1 if run.seed else 4, "steps": 5})
            for run in jk.grid(d=[4, 6], samples=[3], width=[2], seed=range(3))
        ]
        rows[4].values["c"] = float("inf")
        return results.to_dataset(rows, {"platform": "p"})

    def test_missing_combinations_are_nan_with_a_status(self):
        runs = jk.grid(d=4, samples=3, width=2, seed=0) + jk.grid(d=5, samples=3, width=7, seed=0)
        rows = [Row(run, {"c": c, "status": 1}) for run, c in zip(runs, (1.0, 2.0), strict=True)]
        table = results.to_dataset(rows, {})
        assert table.status.sel(d=4, width=7, seed=0, samples=3) == results.NOT_RUN
        assert np.isnan(table.c.sel(d=4, width=7, seed=0, samples=3))
        assert table.c.sel(d=5, width=7, seed=0, samples=3) == 2

    def test_what_all_runs_have_in_common_is_a_coordinate(self):
        runs = jk.grid(d=4, samples=3, width=2, seed=[0], loss="logistic", data="gaussian")
        table = results.to_dataset([Row(run, {"status": 1}) for run in runs], {})
        assert table.loss.item() == "logistic"
        assert table.data.item() == "gaussian"
        assert table.slack.item() == 1.1
        assert table.slack.attrs["long_name"] == "on the margin: q <= slack min q"
        assert not {"loss", "data", "slack"} & set(table.dims)

    def test_axes_of_one_kind_are_nan_for_the_others(self):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1, momentum=0.9)
        axes = {"optimizer": [sgd, "flow"], "momentum": [0.5, 0.9], "delta": 0.02}
        runs = jk.grid(d=4, samples=3, width=2, seed=0, **axes)
        assert len(runs) == 3
        rows = [Row(run, {"c": float(i), "status": 1}) for i, run in enumerate(runs)]
        table = results.to_dataset(rows, {})
        assert table.sizes["optimizer"] == 2
        assert table.c.sel(optimizer="sgd", momentum=0.9).item() == 1
        assert table.c.sel(optimizer="flow").dropna("momentum").item() == 2
        # The flow's own setting is decided by the optimizer: no axis.
        assert table.delta.dims == ("optimizer",)
        assert table.delta.sel(optimizer="flow") == 0.02

    def test_means_leave_out_and_count_what_failed(self):
        summary = jk.summarize(self.table(), "c")
        assert summary.mean.values.ravel().tolist() == [5.5, 8.0]
        assert summary.std.values.ravel().tolist() == [0.5, 0.0]
        assert summary.used.values.ravel().tolist() == [2, 1]
        assert summary.excluded.values.ravel().tolist() == [1, 2]

    def test_means_over_several_dimensions_count_all_their_runs(self):
        table = self.table()
        dims = [dim for dim in table.c.dims if dim != "width"]
        summary = jk.summarize(table, "c", over=dims)
        assert summary.mean.dims == ("width",)
        good = table.c.where((table.status == Status.CONVERGED) & np.isfinite(table.c))
        assert summary.mean.item() == pytest.approx(good.mean().item())
        assert summary.std.item() == pytest.approx(good.std().item())
        assert summary.used.item() == good.count().item() == 3
        assert jk.summarize(table, "c", over=[*dims, "seed"]).mean.identical(summary.mean)
        with pytest.raises(ValueError, match="the table has no dimension 'gap', but "):
            jk.summarize(table, "c", over=["seed", "gap"])
        with pytest.raises(ValueError, match=r"the table has no 'status'.*: keep it beside"):
            jk.summarize(table[["c"]], "c")

    def test_runs_that_there_are_not_are_not_excluded(self):
        """Where xarray makes room for them their status is NaN."""
        status = np.array([Status.CONVERGED, Status.DIVERGED])
        table = xr.Dataset({"c": ("seed", [1.0, 2.0]), "status": ("seed", status)})
        table = table.assign_coords(seed=[0, 1])
        for some in (table, table.reindex(seed=range(4))):
            found = jk.summarize(some, "c")
            assert (found.used, found.excluded, found.mean) == (1, 1, 1)
        assert jk.summarize(table.where(table.status == Status.CONVERGED), "c").excluded == 0

    def test_means_are_of_numbers_that_differ_from_run_to_run(self):
        table = xr.Dataset({"status": ("seed", [1, 1]), "error": ("seed", ["a", "b"]), "one": 1.0})
        with pytest.raises(ValueError, match="'error' has no mean: it holds <U1, not numbers"):
            jk.summarize(table, "error")
        with pytest.raises(ValueError, match="'one' does not differ along 'seed'"):
            jk.summarize(table, "one")

    @pytest.mark.usefixtures("unchecked")
    def test_unknown_variable_lists_what_exists(self):
        with pytest.raises(ValueError, match=r"no variable 'k': choose from \['c', 'status'"):
            jk.summarize(self.table(), "k")
        with pytest.raises(ValueError, match=r"name of one variable, as 'flip_size', got \['c'\]"):
            jk.summarize(self.table(), ["c"])

    def test_rows_are_json_whatever_numpy_gave(self):
        table = sweep(jk.grid(**SMALL, seed=0, max_steps=10))
        assert json.dumps(table.to_dict()["attrs"])


def test_columns_of_rows_that_have_other_names_in_turn():
    rows = [{"a": 1, "b": 2}, {"b": 3}, {"a": 4, "b": 5}, {"b": 6, "c": 7}]
    columns = results._columns(rows)
    found = {name: (at.tolist(), list(some)) for name, (at, some) in columns.items()}
    assert found == {
        "a": ([0, 2], [1, 4]),
        "b": ([0, 1, 2, 3], [2, 3, 5, 6]),
        "c": ([3], [7]),
    }


class TestCombinations:
    """Of rules with a learning rate and one without: to select a rate drops the flow."""

    def table(self, **more):
        sgd = jk.optimizer(optax.sgd, learning_rate=0.1)
        sizes = {"d": 8, "samples": 6, "width": 20, "seed": [0, 1]}
        runs = jk.grid(**sizes, optimizer=["flow", sgd], **more)
        return sweep([*runs, runs[0].with_seed(2)])

    def test_other_numbers_are_told_otherwise(self):
        told = [told_by(value) for value in (0.1, np.float32(0.1), 0.1 + 1e-10, 5, "flow")]
        assert told == ["0.1", "0.1", "0.1000000001", "5", "flow"]

    def test_what_has_no_learning_rate_stays(self):
        table = self.table(learning_rate=[0.1, 1e-3], max_steps=3)
        assert np.isnan(table.steps.sel(learning_rate=0.1, optimizer="flow")).all()
        rules = jk.combinations(table, ["optimizer", "learning_rate"], "rule")
        assert rules.rule.values.tolist() == ["flow", "sgd 0.001", "sgd 0.1"]
        assert rules.steps.dims == ("d", "samples", "width", "seed", "rule")
        both = rules.steps.sel(rule=["flow", "sgd 0.1"], seed=[0, 1])
        assert (both == 3).all()
        np.testing.assert_array_equal(rules.optimizer, ["flow", "sgd", "sgd"])
        np.testing.assert_array_equal(rules.learning_rate, [np.nan, 1e-3, 0.1])
        for rule, place in (("flow", {"learning_rate": -1}), ("sgd 0.1", {"learning_rate": 1})):
            mine = table.log_loss.sel(optimizer=rule.split()[0]).isel(place)
            np.testing.assert_array_equal(rules.log_loss.sel(rule=rule), mine)

    def test_names_are_of_one_combination_each(self):
        """rmsprop of two settings was 0.9 twice, and a mean over that name one of both."""
        table = xr.Dataset(
            {"status": (("decay", "momentum"), [[0, 1], [1, 1]])},
            {"decay": [0.9, np.nan], "momentum": [0.9, np.nan]},
        )
        table["status"] = table.status.where(table.status == 1, results.NOT_RUN)
        rules = jk.combinations(table, ["decay", "momentum"], "rule")
        assert rules.rule.values.tolist() == ["decay=0.9", "momentum=0.9", "-"]
        several = table.sel(decay=[0.9, np.nan]).assign_coords(decay=[0.9, 0.9 + 1e-15])
        rules = jk.combinations(several.isel(momentum=1), "decay", "rule")
        assert rules.rule.values.tolist() == ["decay=0.9", "decay=0.900000000000001"]
        # What `where` leaves out was not run.
        rules = jk.combinations(table.where(table.decay == 0.9), "decay", "rule")
        assert rules.rule.values.tolist() == ["0.9"]

    def test_refuses(self):
        table = self.table(max_steps=1)
        with pytest.raises(ValueError, match="give the dimensions that are to be one, got none"):
            jk.combinations(table, [], "rule")
        with pytest.raises(ValueError, match="the table has no dimension 'learning_rate', but d, "):
            jk.combinations(table, ["optimizer", "learning_rate"], "rule")
        with pytest.raises(ValueError, match="the table has 'status' already"):
            jk.combinations(table, ["optimizer"], "status")


class TestAncillary:
    @pytest.mark.parametrize("told", [1, 2, -1, np.nan])
    def test_means_count_values_beside_a_zero_alone(self, told):
        """A value whose certificate has any other status, or none, may be wrong."""
        table = xr.Dataset(
            {
                "r": ("seed", [1.0, 3.0, 100.0], {"ancillary_variables": "worth elsewhere"}),
                "worth": ("seed", [0.0, 0.0, told]),
                "status": ("seed", [int(Status.CONVERGED)] * 3),
            }
        )
        found = jk.summarize(table, "r")
        assert (found.mean, found.std, found.used, found.excluded) == (2, 1, 2, 1)
