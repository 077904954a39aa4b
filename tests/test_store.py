"""A sweep's folder: killed, resumed, refused, damaged."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from cases import sweep

import jaxkkt as jk
from jaxkkt.engine import lanes, streams
from jaxkkt.engine import results as results_module
from jaxkkt.engine import store as store_module
from jaxkkt.engine.store import Store

CRASH = """
import os, signal, sys
import jaxkkt as jk
from jaxkkt.engine.store import Store

save, landed = Store.save, []
def crash(self, *row):
    save(self, *row)
    landed.append(row)
    if len(landed) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
Store.save = crash
runs = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(3))
jk.sweep(runs, store=sys.argv[1])
"""


class TestStore:
    runs = jk.grid(d=[8], alpha=[1.0], width=[20], seed=range(3))

    def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(self, tmp_path):
        runs = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(3))
        whole = sweep(runs, store=tmp_path / "whole")
        for count in (2, 3):
            code = subprocess.run(
                [sys.executable, "-c", CRASH, tmp_path / "killed", str(count)],
                env=os.environ | {"TQDM_DISABLE": "1"},
                check=False,
                capture_output=True,
            ).returncode
            assert code == -signal.SIGKILL
        assert len(list((tmp_path / "killed" / "rows").glob("*.json"))) == 5
        resumed = sweep(runs, store=tmp_path / "killed")
        xr.testing.assert_identical(resumed, whole)
        killed, uninterrupted = (Store.of(tmp_path / name) for name in ("killed", "whole"))
        names = [run.name for run in runs]
        for name, row in uninterrupted.load(names).items():
            assert killed.load([name])[name]["values"] == row["values"]

    def test_finished_sweep_trains_nothing(self, tmp_path, monkeypatch):
        first = sweep(self.runs, store=tmp_path)
        compiled = []
        monkeypatch.setattr(streams, "compile_bucket", lambda *args: compiled.append(args))
        xr.testing.assert_identical(sweep(self.runs, store=tmp_path), first)
        assert not compiled

    def test_streams_stop_when_a_row_cannot_be_saved(self, tmp_path, monkeypatch):
        drawn = []
        draw = lanes.draw
        monkeypatch.setattr(lanes, "draw", lambda run: drawn.append(run) or draw(run))

        def full(self, *row):
            raise OSError("no space left")

        monkeypatch.setattr(Store, "save", full)
        runs = jk.grid(d=[60], alpha=[1.0], width=[200], seed=range(60))
        with pytest.raises(OSError, match="no space left"):
            sweep(runs, store=tmp_path)
        assert len(drawn) < 40

    def test_results_file_opens_as_the_dataset(self, tmp_path):
        table = sweep(self.runs, store=tmp_path)
        with xr.open_dataset(tmp_path / "results.nc") as opened:
            xr.testing.assert_equal(opened, table)
            assert opened.flip_size.attrs["units"]
            assert "jaxlib" in opened.attrs["versions"]

    def test_saving_asks_nobody_for_a_lock(self, tmp_path, monkeypatch):
        """A Dask client that is open would be asked, and a sweep never end."""

        def asked(*_):
            raise AssertionError("asked for a lock")

        monkeypatch.setattr("xarray.backends.h5netcdf_.get_write_lock", asked)
        table = sweep(self.runs[:1], store=tmp_path)
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "results.nc"), table)

    def test_changed_settings_are_refused_with_what_differs(self, tmp_path):
        sweep(self.runs, store=tmp_path)
        axes = {"d": 8, "alpha": 1.0, "width": 20, "seed": range(3)}
        with pytest.raises(ValueError, match=r"only in the folder: \[0.01\], only now: \[0.02\]"):
            sweep(jk.grid(**axes, delta=0.02), store=tmp_path)
        with pytest.raises(ValueError, match=r"fields.slack: .*\[1.1\], only now: \[1.2\]"):
            sweep(jk.grid(**axes, measure=jk.Flips(slack=1.2)), store=tmp_path)
        with pytest.raises(ValueError, match="runs: 3 in the folder, 2 now"):
            sweep(self.runs[:2], store=tmp_path)

    def test_folder_of_something_else_is_refused(self, tmp_path):
        (tmp_path / "rows").mkdir()
        (tmp_path / "rows" / "x.json").write_text("")
        with pytest.raises(ValueError, match=r"holds rows but no settings.json"):
            Store(tmp_path, {})

    def test_killed_before_its_settings_were_written(self, tmp_path):
        (tmp_path / "rows").mkdir()
        Store(tmp_path, {})
        assert (tmp_path / "settings.json").exists()

    @pytest.mark.parametrize("damage", [lambda b: b[:20], lambda b: b"", lambda b: b[:-3] + b"9}}"])
    def test_damaged_rows_are_set_aside(self, tmp_path, damage):
        row = {"flip_size": 1.25, "status": 1}
        store = Store(tmp_path, {})
        store.save("a", row)
        assert store.load(["a", "b"]) == {"a": row}
        path = tmp_path / "rows" / "a.json"
        path.write_bytes(damage(path.read_bytes()))
        with pytest.warns(UserWarning, match="is damaged .* set aside, to be computed again"):
            assert store.load(["a", "b"]) == {}
        assert not path.exists()

    def test_rows_that_changed_places_are_set_aside(self, tmp_path):
        store = Store(tmp_path, {})
        for name, size in (("a", 1.0), ("b", 2.0)):
            store.save(name, {"size": size})
        a, b = (tmp_path / "rows" / f"{name}.json" for name in "ab")
        content = a.read_bytes(), b.read_bytes()
        a.write_bytes(content[1])
        b.write_bytes(content[0])
        with pytest.warns(UserWarning, match="is damaged"):
            assert store.load("ab") == {}

    def test_settings_that_were_cut_short_are_named(self, tmp_path):
        Store(tmp_path, {"one": 1})
        path = tmp_path / "settings.json"
        path.write_text(path.read_text()[:9])
        with pytest.raises(ValueError, match=r"settings.json was cut short or altered"):
            Store(tmp_path, {"one": 1})

    @pytest.mark.parametrize(
        ("function", "code"),
        [("fsync", errno.EIO), ("fsync", errno.ENOSPC), ("replace", errno.EIO)],
    )
    def test_what_cannot_be_written_is_named_and_not_there(
        self, tmp_path, monkeypatch, function, code
    ):
        store = Store(tmp_path, {})
        store.save("old", {"size": 1.0})

        def fails(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr({"fsync": os, "replace": Path}[function], function, fails)
        for name in ("new", "old"):
            with pytest.raises(OSError, match=r"cannot be written.*rows/(new|old).json") as caught:
                store.save(name, {"size": 2.0})
            assert caught.value.errno == code
        monkeypatch.undo()
        assert store.load(["new", "old"]) == {"old": {"size": 1.0}}

    def test_a_folder_that_cannot_be_written_is_told_before_training(self, tmp_path, monkeypatch):
        first = sweep(self.runs[:1], store=tmp_path)
        drawn = []
        monkeypatch.setattr(lanes, "draw", drawn.append)

        def fails(path, content):
            raise PermissionError(errno.EACCES, "cannot be written", str(path))

        for module in (store_module, results_module):
            monkeypatch.setattr(module, "write_whole", fails)
        # A finished store needs no writing.
        xr.testing.assert_identical(sweep(self.runs[:1], store=tmp_path), first)
        (row,) = (tmp_path / "rows").iterdir()
        row.unlink()
        with pytest.raises(PermissionError, match="rows"):
            sweep(self.runs[:1], store=tmp_path)
        assert not drawn

    def test_numbers_survive_exactly(self, tmp_path):
        values = {"a": np.float32(0.1).item(), "b": float("inf"), "c": 5e-324, "steps": 3}
        store = Store(tmp_path, {})
        store.save("a", values)
        assert store.load(["a"])["a"] == values

    def test_leftovers_are_cleaned(self, tmp_path):
        Store(tmp_path, {})
        (tmp_path / "rows" / "x.json.part").write_text("half")
        other = tmp_path / "Downloads" / "iso.part"
        other.parent.mkdir()
        other.write_text("somebody else's")
        beside = tmp_path / "iso.part"
        beside.write_text("somebody else's")
        store = Store(tmp_path, {})
        assert (tmp_path / "rows" / "x.json.part").exists()  # of a sweep that may be running
        store.prepare()
        assert sorted(tmp_path.rglob("*.part")) == [other, beside]
