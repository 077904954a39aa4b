"""A sweep's store: killed, resumed, extended, shared, refused, harmed."""

import errno
import os
import random
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import note_trained, rows_in, sweep

import jaxkkt as jk
from jaxkkt.engine import remeasuring, slots, stored, streams
from jaxkkt.engine.hashes import as_text, hash_words
from jaxkkt.specs.base import described
from jaxkkt.store import Busy, Store, Writer

SIZES = {"d": 8, "samples": 6, "width": 20}
RUNS = jk.grid(**SIZES, seed=range(3))

SWEEP = """
import sys
import jaxkkt as jk
jk.sweep(jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(%d)), store=sys.argv[1])
"""


def values(folder):
    """What was computed, of the last record of each run."""
    return {n: (r["ending"], r["measured"]) for n, r in rows_in(folder).items()}


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


class Killed(BaseException):
    """Stands for SIGKILL: from there on nothing reaches the disk."""


@contextmanager
def killed_at(monkeypatch, point, half=False):
    """Kills at the so many-th time that something is written, brought to the disk, renamed or
    removed; or, by `half`, in the middle of the so many-th write."""
    count, dead, write = [0], [], os.write

    def counted(function):
        def call(*args, **kwargs):
            count[0] += function is write or not half
            if dead or count[0] == point:
                if half and not dead:
                    function(args[0], bytes(args[1])[: len(args[1]) // 2])
                dead.append(True)
                raise Killed
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((os, "write"), (os, "fsync"), (os, "ftruncate")):
            patched.setattr(owner, name, counted(getattr(owner, name)))
        for name in ("replace", "unlink"):
            patched.setattr(Path, name, counted(getattr(Path, name)))
        yield dead


class TestKilled:
    @pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_at_every_write_point(self, tmp_path, monkeypatch, half):
        """The sweep goes on from each with the same bits, and computes no row that had landed."""
        monkeypatch.setattr("jaxkkt.store.segments.SECONDS_BETWEEN_SYNCS", 0.0)
        all_in = streams.all_in

        def one_by_one(queue, seconds):
            """Rows land one by one, however many have ended."""
            for rows in all_in(queue, 0 if waiting else seconds):
                waiting.extend([None] if rows is None else [[row] for row in rows])
            return [waiting.pop(0)] if waiting else []

        waiting = []
        monkeypatch.setattr(streams, "all_in", one_by_one)
        runs = RUNS[:2]
        whole = sweep(runs, store=tmp_path / "whole", keep="params")
        expected = values(tmp_path / "whole")
        trained, points = note_trained(monkeypatch), 0
        while True:
            points += 1
            waiting.clear()
            folder = tmp_path / f"{points}"
            with killed_at(monkeypatch, points, half) as dead:
                try:
                    sweep(runs, store=folder, keep="params")
                except Killed:
                    assert dead
            if not dead:
                break
            there = values(folder)
            assert there.items() <= expected.items()
            trained.clear()
            waiting.clear()
            xr.testing.assert_identical(sweep(runs, store=folder, keep="params"), whole)
            assert len(trained) == 2 - len(there)
            assert values(folder) == expected
            assert (folder / "results.nc").read_bytes() == (
                tmp_path / "whole" / "results.nc"
            ).read_bytes()
            assert not list(folder.rglob("*.part"))
        assert points > (3 if half else 20)

    @pytest.mark.slow
    def test_at_random_times(self, tmp_path):
        """Progress never goes back, and the rows are those of an uninterrupted sweep.

        JAXKKT_KILLS says how many times; `python -m tests.faults` kills 50 times.
        """
        kills = int(os.environ.get("JAXKKT_KILLS", "4"))
        script = tmp_path / "script.py"
        script.write_text(SWEEP % 10)
        cached = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
        cached["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

        def start(folder):
            command = [sys.executable, script, folder]
            return subprocess.Popen(command, env=os.environ | cached, stderr=subprocess.DEVNULL)

        assert start(tmp_path / "whole").wait() == 0
        expected, moments = values(tmp_path / "whole"), random.Random(0)
        finished = 0
        folder = tmp_path / "killed"
        for _ in range(kills):
            before = values(folder)
            process = start(folder)
            sleep(moments.uniform(1.5, 8))
            process.kill()
            if process.wait() == 0:
                finished += 1
            after = values(folder)
            assert before.items() <= after.items()
            assert after.items() <= expected.items()
            names = [record.name for record in Store(folder).records()]
            assert len(names) == len(set(names))  # nothing was computed twice
            if len(after) == len(expected):
                folder = tmp_path / f"killed{finished}-{len(names)}-{_}"
        assert start(folder).wait() == 0
        assert values(folder) == expected


class TestStore:
    def test_finished_sweep_trains_nothing(self, tmp_path, monkeypatch):
        first = sweep(RUNS, store=tmp_path)
        compiled = []
        monkeypatch.setattr(streams, "compile_bucket", lambda *args: compiled.append(args))
        xr.testing.assert_identical(sweep(RUNS, store=tmp_path), first)
        assert not compiled

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
        assert "Name another folder (--out, store=), or delete this one" in str(caught.value)
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


class Told(jk.Measurement):
    number: jk.Number = 0.0
    on_host = True
    __module__ = "jaxkkt.own"

    def measure(self, params):
        return {"told": float(self.number)}


class TestExtended:
    def test_by_seeds_and_values(self, tmp_path, monkeypatch):
        sweep(RUNS, store=tmp_path)
        before = values(tmp_path)
        more = jk.grid(d=8, samples=[6, 7], width=20, seed=range(4))
        table = sweep(more, store=tmp_path)
        assert len(rows_in(tmp_path)) == 8
        assert before.items() <= values(tmp_path).items()
        assert len(Store(tmp_path).records()) == 8  # no run was computed twice
        assert np.isfinite(table.flip_size).all()
        assert table.sizes == {"d": 1, "samples": 2, "width": 1, "seed": 4}

    def test_in_another_order(self, tmp_path, monkeypatch):
        table = sweep(RUNS, store=tmp_path)
        monkeypatch.setattr(streams, "compile_bucket", None)
        xr.testing.assert_equal(sweep(RUNS[::-1], store=tmp_path), table)

    @pytest.mark.parametrize("keep", [pytest.param(None, marks=pytest.mark.slow), "params"])
    def test_by_measurements(self, tmp_path, monkeypatch, keep):
        """Of kept networks they are made without training; others train again, to one network."""
        sweep(RUNS, store=tmp_path, keep=keep)
        trained = note_trained(monkeypatch)
        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), jk.StepFlips()])
        table = sweep(more, store=tmp_path)
        assert len(trained) == (0 if keep else 3)
        xr.testing.assert_equal(table, sweep(more))
        assert np.isfinite(table.step_size).all()
        trained.clear()
        xr.testing.assert_identical(sweep(more, store=tmp_path), table)
        xr.testing.assert_equal(sweep(RUNS, store=tmp_path), sweep(RUNS))
        fewer = jk.grid(**SIZES, seed=range(3), measure=jk.StepFlips())
        assert "flip_size" not in sweep(fewer, store=tmp_path)
        assert len(trained) == 3  # of the sweep without a store

    @pytest.mark.usefixtures("unchecked")
    def test_networks_are_kept_of_whatever_gives_the_runs(self, tmp_path):
        sweep(RUNS, store=tmp_path, keep=(run for run in RUNS if run.seed == 1))
        kept = [run for run in RUNS if run.seed == 1]
        assert [jk.load_network(tmp_path, run).w.shape for run in kept] == [(20, 8)] * len(kept)
        for wrong in (True, RUNS[0], 3, "all"):
            with pytest.raises(ValueError, match="keep must be 'params', or a list of the runs to"):
                sweep(RUNS, store=tmp_path, keep=wrong)

    def test_by_a_measurement_that_raises(self, tmp_path, monkeypatch):
        sweep(RUNS, store=tmp_path, keep="params")

        def raises(*_):
            raise ArithmeticError("no such number")

        more = jk.grid(**SIZES, seed=range(3), measure=[jk.Flips(), jk.StepFlips()])
        with monkeypatch.context() as patched:
            patched.setattr(remeasuring, "measure_batch", raises)
            with pytest.raises(ArithmeticError, match="no such number"):
                sweep(more, store=tmp_path)
        xr.testing.assert_equal(sweep(RUNS, store=tmp_path), sweep(RUNS))
        xr.testing.assert_equal(sweep(more, store=tmp_path), sweep(more))

    def test_by_a_name_that_is_there(self, tmp_path):
        """Of measurements by the host, whose names nobody knows before they have run."""
        one, other = Told(number=1.0), Told(number=2.0)
        for measure in (one, other):
            sweep(jk.grid(**SIZES, seed=range(2), measure=measure), store=tmp_path, keep="params")
        with pytest.raises(ValueError, match="returns 'told', which is there already"):
            sweep(jk.grid(**SIZES, seed=range(2), measure=[one, other]), store=tmp_path)

    def test_a_kept_network_of_another_training_is_not_measured(self, tmp_path):
        """Its row counts no more: what is measured belongs to the row that does."""
        sweep(RUNS[:1], store=tmp_path, keep="params")
        (segment,) = Store(tmp_path).segments()
        name, row = segment.rows[0]
        other = {**row, "network": "0" * 20, "ending": {**row["ending"], "steps": 7}}
        with Store(tmp_path).writing(segment.about["settings"]) as writer:
            writer.add(name, other, segment.definitions)
        more = jk.grid(**SIZES, seed=0, measure=[jk.Flips(), jk.StepFlips()])
        xr.testing.assert_equal(sweep(more, store=tmp_path), sweep(more))
        kept = jk.load_network(tmp_path, RUNS[0])
        width, dim = kept.w.shape
        words = jax.jit(hash_words)(kept, jnp.int32(width), jnp.int32(dim))
        assert as_text(np.asarray(words)[None]) == [row["network"]]

    def test_other_settings_mix_by_a_word_alone(self, tmp_path):
        ours = sweep(RUNS[:2], store=tmp_path)
        (path,) = Store(tmp_path).paths()
        (segment,) = Store(tmp_path).segments()
        settings = {**segment.about["settings"], "device": "another"}
        writer = Writer(tmp_path / "segments", {"settings": settings})
        for name, row in segment.rows:
            writer.add(name, row, segment.definitions)
        writer.close()
        path.unlink()
        with pytest.raises(ValueError, match=r"--mix.*\n  device: 'another' in the folder"):
            sweep(RUNS, store=tmp_path)
        with pytest.raises(ValueError, match="device: 'another' in the folder"):
            jk.landed(RUNS, store=tmp_path)
        mixed = sweep(RUNS, store=tmp_path, mix=True)
        assert len(set(mixed.environment.values.ravel()[:2])) == 1
        assert len(set(mixed.environment.values.ravel())) == 2
        assert '"device": "another"' in mixed.attrs["environments"]
        same = mixed.drop_vars("environment").isel(seed=slice(2))
        xr.testing.assert_equal(same, ours)
        for read in (jk.landed(RUNS, store=tmp_path, mix=True), jk.read_store(tmp_path)):
            xr.testing.assert_equal(read, mixed)


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


class TestReading:
    def test_without_the_runs(self, tmp_path):
        """As the sweep's own table, and without the code of own measurements."""
        curve = jk.Curve([-1, -5], measure=jk.StepFlips())
        runs = jk.grid(d=8, samples=[6, 7], width=20, seed=range(2), curve=curve)
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
        assert rows.min_margin.nunique() == rows.log_loss.nunique() == 1

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
        with pytest.raises(ValueError, match="keeps 2 networks of this run, but no row that says"):
            jk.load_network(tmp_path, run)

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


def test_own_functions_may_go_to_another_folder(tmp_path, monkeypatch):
    """A store that is named from the folder of before was looked for in the new one."""

    class Elsewhere(jk.Measurement):
        on_host = True

        def measure(self, params):
            os.chdir(tmp_path)
            return {"own": 1.0}

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    runs = jk.grid(d=6, samples=4, width=10, seed=0, max_steps=3, measure=Elsewhere)
    jk.sweep(runs, store="out", keep="params", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert len(jk.read_rows("here/out")) == 1
    jk.load_network("here/out", runs[0])
