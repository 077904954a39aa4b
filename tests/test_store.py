"""A sweep's store: arguments, what is kept and refused, shards."""

import errno
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from cases import rows_in, squared_norm, sweep
from store_cases import RUNS, SIZES, values

import jaxkkt as jk
from jaxkkt.engine.running import slots, streams
from jaxkkt.engine.tables import stored
from jaxkkt.engine.tables.stored import Stored
from jaxkkt.store import Busy, Store, Writer


class TestArguments:
    @pytest.mark.parametrize(
        ("runs", "got"),
        [
            (RUNS[0], "Run"),
            ("a", "str"),
            ([1, 2], "a list with int"),
            (5, "int"),
            (iter(RUNS), "list_iterator"),
        ],
    )
    def test_runs_are_a_list_of_runs(self, unchecked, runs, got):
        for function in (jk.sweep, jk.plan_sweep):
            with pytest.raises(ValueError, match=rf"list of jk\.Run, as jk\.grid makes, got {got}"):
                function(runs)

    @pytest.mark.parametrize("patience", [0, -1, float("nan"), "a"])
    def test_patience_is_positive(self, unchecked, patience):
        with pytest.raises(ValueError, match="patience must be a positive number of seconds, got"):
            jk.sweep(RUNS, patience=patience)

    @pytest.mark.parametrize("executor", [4, "dask", jk.Workers])
    def test_an_executor_has_a_submit(self, unchecked, executor):
        with pytest.raises(ValueError, match=r"with jk\.Workers\(4\) as workers`, got"):
            jk.sweep(RUNS, executor=executor)

    def test_a_network_is_that_of_one_run(self, unchecked, tmp_path):
        with pytest.raises(ValueError, match=r"takes one jk\.Run of those of the sweep, got \["):
            jk.load_network(tmp_path, RUNS)

    def test_a_store_is_a_folder_with_a_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        table = sweep(RUNS[:1], store="~/out", keep="params")
        assert [path.name for path in tmp_path.iterdir()] == ["home"]
        xr.testing.assert_equal(jk.read_store("~/out"), table)
        jk.load_network("~/out", RUNS[0])
        with pytest.raises(ValueError, match="a store needs a folder, got ''"):
            jk.sweep(RUNS, store="")
        (tmp_path / "notes.txt").touch()
        with pytest.raises(ValueError, match=r"notes.txt is a file: name another place"):
            jk.sweep(RUNS, store="notes.txt")


class TestStore:
    def test_finished_sweep_trains_nothing(self, tmp_path, monkeypatch):
        first = sweep(RUNS, store=tmp_path)
        compiled = []
        monkeypatch.setattr(streams, "compile_bucket", lambda *args: compiled.append(args))
        xr.testing.assert_identical(sweep(RUNS, store=tmp_path), first)
        assert not compiled

    def test_a_plan_is_of_what_is_left(self, tmp_path):
        sweep(RUNS[:2], store=tmp_path)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        planned = jk.plan_sweep(RUNS, store=tmp_path)
        assert planned.there == {*RUNS[:2]}
        assert "2 of the 3 runs are in the store already" in str(planned)
        assert planned.flops == jk.plan_sweep(RUNS).flops
        np.testing.assert_allclose(planned.flops_left, planned.flops / 3, rtol=1e-12)
        measured = [run.replace(measure=(*run.measure, jk.Certificates())) for run in RUNS]
        lacks = jk.plan_sweep(measured, store=tmp_path)
        assert not lacks.there
        assert lacks.flops_left == lacks.flops
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    def test_a_plan_refuses_what_a_sweep_would(self, tmp_path):
        sweep(RUNS[:1], store=tmp_path)
        with pytest.raises(ValueError, match=r"holds 1 runs, and none of these"):
            jk.plan_sweep(jk.grid(d=5, samples=6, width=20, seed=0), store=tmp_path)

    @pytest.mark.slow
    def test_streams_stop_when_a_row_cannot_be_saved(self, tmp_path, monkeypatch):
        drawn = []
        draw = slots.draw_batch

        def draw_batch(drawing, words, runs, *rest):
            drawn.extend(runs)
            return draw(drawing, words, runs, *rest)

        monkeypatch.setattr(slots, "draw_batch", draw_batch)

        def full(self, *row):
            raise OSError("no space left")

        monkeypatch.setattr(Writer, "add_all", full)
        runs = jk.grid(d=[60], alpha=[1.0], width=[200], seed=range(60))
        with pytest.raises(OSError, match="no space left"):
            sweep(runs, store=tmp_path)
        assert len(drawn) < 40

    def test_results_file_opens_as_the_dataset(self, tmp_path):
        table = sweep(RUNS, store=tmp_path)
        with xr.open_dataset(tmp_path / "results.nc") as opened:
            xr.testing.assert_equal(opened, table)
            assert opened.flip_size.attrs["units"]
            assert "jaxlib" in opened.attrs["versions"]

    def test_the_results_file_and_what_is_returned_are_made_once(self, tmp_path, monkeypatch):
        made, make = [], stored.results.dataset
        monkeypatch.setattr(stored.results, "dataset", lambda *a: made.append(a) or make(*a))
        sweep(RUNS, store=tmp_path)
        assert len(made) == 1

    def test_saving_asks_nobody_for_a_lock(self, tmp_path, monkeypatch):
        """A Dask client that is open would be asked, and a sweep never end."""

        def asked(*_):
            raise AssertionError("asked for a lock")

        monkeypatch.setattr("xarray.backends.h5netcdf_.get_write_lock", asked)
        table = sweep(RUNS[:1], store=tmp_path)
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "results.nc"), table)

    def test_what_is_asked_for_is_in_the_results_file(self, tmp_path):
        """A part of a finished sweep, and the whole again: nothing is trained."""
        whole = sweep(RUNS, store=tmp_path)
        for runs in (RUNS[:2], RUNS, RUNS[::-1]):
            table = sweep(runs, store=tmp_path)
            xr.testing.assert_identical(xr.load_dataset(tmp_path / "results.nc"), table)
            xr.testing.assert_equal(table, whole.isel(seed=slice(len(runs))))

    @pytest.mark.rare
    @pytest.mark.slow
    def test_the_results_file_is_written_as_rows_land(self, tmp_path, monkeypatch, one_lane):
        monkeypatch.setattr(stored, "SECONDS_BETWEEN_RESULTS", 0.0)
        monkeypatch.setattr(stored, "SHARE_FOR_RESULTS", 1e9)
        add, seen = stored.Stored.add, []

        def look(self, rows):
            add(self, rows)
            seen.append(int(xr.load_dataset(tmp_path / "results.nc").status.size))

        monkeypatch.setattr(stored.Stored, "add", look)
        sweep(RUNS, store=tmp_path)
        assert seen == sorted(set(seen))
        assert seen[-1] == 3

    def test_other_runs_alone_are_refused_with_what_differs(self, tmp_path):
        sweep(RUNS, store=tmp_path)
        with pytest.raises(ValueError, match=r"holds 3 runs, and none of these") as caught:
            sweep(jk.grid(**SIZES, seed=range(3), delta=0.02), store=tmp_path)
        assert "only in the folder: [0.01], only now: [0.02]" in str(caught.value)
        assert "Name another folder (--out, store=). A sweep can be ext" in str(caught.value)
        with pytest.raises(ValueError, match=r"seed: 3 in the folder, 1 now; .* only now: \[7\]"):
            sweep(jk.grid(**SIZES, seed=7), store=tmp_path)

    def test_a_folder_that_cannot_be_written_is_told_before_training(self, tmp_path, monkeypatch):
        first = sweep(RUNS[:1], store=tmp_path)
        drawn = []
        monkeypatch.setattr(slots, "draw_batch", lambda *args: drawn.append(args))

        def fails(path, *_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", fails)
            # A finished store needs no writing.
            xr.testing.assert_identical(sweep(RUNS[:1], store=tmp_path), first)
            with pytest.raises(PermissionError, match=r"cannot be written.*locks"):
                sweep(RUNS, store=tmp_path)
        monkeypatch.setattr(Writer, "__init__", lambda self, path, _: fails(path))
        with pytest.raises(PermissionError, match="segments"):
            sweep(RUNS, store=tmp_path)
        assert not drawn

    def test_a_store_in_use_is_told_before_training(self, tmp_path, monkeypatch):
        drawn = []
        monkeypatch.setattr(slots, "draw_batch", lambda *args: drawn.append(args))
        with Store(tmp_path).writing({}), pytest.raises(Busy, match="is being written by process"):
            sweep(RUNS, store=tmp_path)
        assert not drawn

    def test_what_another_process_wrote_meanwhile_is_not_computed_again(
        self, tmp_path, monkeypatch
    ):
        """Between reading the store and holding it."""
        writing = Store.writing

        def later(self, *args, **kwargs):
            monkeypatch.undo()
            sweep(RUNS[:2], store=tmp_path)
            return writing(self, *args, **kwargs)

        monkeypatch.setattr(Store, "writing", later)
        table = sweep(RUNS, store=tmp_path)
        assert len(Store(tmp_path).records()) == 3
        xr.testing.assert_identical(table, sweep(RUNS, store=tmp_path))

    def test_networks_that_do_not_fit_the_disk(self, tmp_path, monkeypatch):
        drawn = []
        monkeypatch.setattr(slots, "draw_batch", lambda *args: drawn.append(args))
        monkeypatch.setattr(stored, "disk_usage", lambda _: SimpleNamespace(free=2000))
        with pytest.raises(OSError, match=r"3 networks take 0.0 MiB, and .* has 0.0 MiB free"):
            sweep(RUNS, store=tmp_path, keep="params")
        assert not drawn

    def test_room_is_asked_for_networks_that_are_to_be_kept_here(self, tmp_path, monkeypatch):
        """It was for those of other shards, and for those that were there."""

        def largest(params):
            return abs(params.v).max()

        asked = []
        monkeypatch.setattr(Stored, "_require_room", lambda _, runs: asked.append(len(runs)))
        runs = jk.grid(**SIZES, seed=range(3), max_steps=3, measure=squared_norm)
        for shard in ((1, 2), (2, 2)):
            sweep(runs, store=tmp_path, keep="params", shard=shard)
        more = jk.grid(**SIZES, seed=range(4), max_steps=3, measure=[squared_norm, largest])
        sweep(more, store=tmp_path, keep="params")
        assert asked == [2, 1, 1]

    def test_all_but_the_segments_can_be_deleted(self, tmp_path, monkeypatch):
        table = sweep(RUNS, store=tmp_path)
        content = (tmp_path / "results.nc").read_bytes()
        for path in tmp_path.iterdir():
            if path.name != "segments":
                path.unlink() if path.is_file() else shutil.rmtree(path)
        monkeypatch.setattr(streams, "compile_bucket", None)
        xr.testing.assert_identical(sweep(RUNS, store=tmp_path), table)
        assert (tmp_path / "results.nc").read_bytes() == content

    @pytest.mark.slow
    def test_rows_of_a_harmed_segment_are_computed_again(self, tmp_path):
        whole = sweep(RUNS, store=tmp_path)
        (path,) = Store(tmp_path).paths()
        content = path.read_bytes()
        for harmed, left in ((content[:-50], 2), (content[:100], 0), (b"", 0)):
            path.write_bytes(harmed)
            assert len(rows_in(tmp_path)) == left
            xr.testing.assert_identical(sweep(RUNS, store=tmp_path), whole)
            for other in Store(tmp_path).paths():
                if other != path:
                    other.unlink()


class TestShards:
    runs = jk.grid(d=8, samples=[6, 7], width=20, seed=range(3))

    def test_share_a_store_and_have_the_bits_of_the_whole(self, tmp_path, monkeypatch):
        whole = sweep(self.runs, store=tmp_path / "whole")
        sizes = []
        for i in (1, 2, 3, 4):
            table = sweep(self.runs, store=tmp_path / "shared", shard=(i, 4))
            sizes.append(int((table.status != -1).sum()))
            assert not (tmp_path / "shared" / "results.nc").exists()
        assert sizes == [2, 2, 1, 1]
        assert values(tmp_path / "shared") == values(tmp_path / "whole")
        monkeypatch.setattr(streams, "compile_bucket", None)
        xr.testing.assert_identical(sweep(self.runs, store=tmp_path / "shared"), whole)
        files = [tmp_path / name / "results.nc" for name in ("shared", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()

    @pytest.mark.parametrize("shard", [(0, 2), (3, 2), (7, 7), "1/2", (1.0, 2), 3])
    def test_those_there_are(self, unchecked, shard):
        with pytest.raises(ValueError, match=r"a shard is one of|not enough for 7 shards"):
            sweep(self.runs, shard=shard)


def test_own_functions_may_go_to_another_folder(tmp_path, monkeypatch):
    """A store that is named from the folder of before was looked for in the new one."""

    class Elsewhere(jk.Measurement):
        on_host = True

        def measure(self, params):
            os.chdir(tmp_path)
            return {"own": 1.0}

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    runs = jk.grid(d=8, samples=6, width=20, seed=0, max_steps=3, measure=Elsewhere)
    jk.sweep(runs, store="out", keep="params", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert len(jk.read_rows("here/out")) == 1
    jk.load_network("here/out", runs[0])
