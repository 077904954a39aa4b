"""`jaxkkt store`: lists, verifies, repairs, merges, exports, and says what failed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from cases import rows_in, sweep
from test_raised import runs_of

import jaxkkt as jk
from jaxkkt.engine.running.checkpoints import Checkpoints, Saved, UnderWay
from jaxkkt.store import Store, Writer, care
from jaxkkt.store.segments import _checksum
from jaxkkt.studies.command import main

SIZES = {"d": 8, "samples": 6, "width": 20}
RUNS = jk.grid(**SIZES, seed=range(4))


def store(*arguments):
    return main(["store", *map(str, arguments)])


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    sweep(RUNS[:2], store=folder / "one", keep="params")
    sweep(RUNS[2:], store=folder / "two")
    return folder


@pytest.fixture
def swept(two_stores, tmp_path):
    """A folder with a store of two rows in each of two folders, as of a study's parts."""
    return Path(shutil.copytree(two_stores, tmp_path / "out"))


def test_what_is_there(swept, capsys):
    with Store(swept / "empty").writing({}):
        assert store("list", swept) == 0  # before the first row of a sweep
    told = capsys.readouterr().out
    assert told.count("2 runs: 2 converged") == 2
    assert f"{swept / 'one'}\n" in told
    assert "1 segments, 2 networks" in told
    assert "  0 runs\n" in told
    assert f"computed by jaxkkt {jk.__version__}" in told
    assert store("list", swept / "nowhere") == 2
    assert "there is no store in" in capsys.readouterr().err


def test_what_failed_and_why(tmp_path, capsys):
    sweep([*runs_of(bad=[1]), *jk.grid(**SIZES, seed=7, max_steps=3)], store=tmp_path)
    assert store("failed", tmp_path) == 1
    told = capsys.readouterr().out
    assert "d = 8, width = 20, seed = 1: RAISED: OSError: no measurement of this\n" in told
    assert "seed = 7: NOT_SEPARABLE: " in told
    assert "2 runs failed" in told
    assert "Traceback" not in told
    assert store("failed", tmp_path, "--traceback") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().out


def test_no_failure(swept, capsys):
    assert store("failed", swept) == 0
    assert capsys.readouterr().out == "0 runs failed\n"


class TestDamage:
    @staticmethod
    def line(folder):
        (path,) = Store(folder).paths()
        path.write_bytes(path.read_bytes().replace(b'"status": 1', b'"status": 2', 1))
        return "1 damaged lines"

    @staticmethod
    def definition(folder):
        """What a row refers to: it was whole, and in no table."""
        (path,) = Store(folder).paths()
        lines = path.read_bytes().splitlines(keepends=True)
        (n,) = (i for i, line in enumerate(lines) if b'"define"' in line and b'"columns"' in line)
        lines[n] = lines[n].replace(b'"columns"', b'"calumns"')
        path.write_bytes(b"".join(lines))
        return "3 damaged lines"

    @staticmethod
    def beginning(folder):
        (path,) = Store(folder).paths()
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[2:]))
        return "begins with neither of the two lines"

    @staticmethod
    def network(folder):
        path = next((folder / "networks").glob("*.npz"))
        path.write_bytes(path.read_bytes()[:-40])
        return "is damaged"

    @staticmethod
    def other_network(folder):
        one, other = sorted((folder / "networks").glob("*.npz"))
        one.write_bytes(other.read_bytes())
        return "it was renamed"

    @pytest.mark.filterwarnings("ignore:.*(damaged|begins with neither)")
    @pytest.mark.parametrize(
        "kind", ["line", "definition", "beginning", "network", "other_network"]
    )
    def test_is_told_taken_out_and_computed_again(self, swept, capsys, kind):
        folder = swept / "one"
        whole, files = rows_in(folder), {path.name for path in Path(folder).rglob("*.npz")}
        table = xr.load_dataset(folder / "results.nc")
        assert store("verify", swept) == 0
        told = getattr(self, kind)(folder)
        assert store("verify", swept) == 1
        assert told in capsys.readouterr().out
        assert store("repair", swept) == 0
        assert len(list((folder / "damaged").iterdir())) == 1
        assert store("verify", swept) == 0
        assert "all is whole" in capsys.readouterr().out
        xr.testing.assert_equal(sweep(RUNS[:2], store=folder, keep="params"), table)
        assert rows_in(folder).keys() == whole.keys()
        assert {path.name for path in (folder / "networks").iterdir()} == files
        jk.load_network(folder, RUNS[0])

    def test_below_the_home_folder_it_is_found(self, swept, monkeypatch):
        """`~` was a folder of that name, in which nothing was damaged."""
        monkeypatch.setenv("HOME", str(swept))
        assert care.verify("~/one") == []
        self.network(swept / "one")
        assert len(care.verify("~/one")) == 1
        assert care.stores("~/one") == [swept / "one"]
        assert len(care.merge(swept / "new", ["~/two"])) == 1

    def test_two_answers_are_told(self, swept, capsys):
        (segment,) = Store(swept / "one").segments()
        writer = Writer(swept / "one" / "segments", dict(segment.about))
        name, row = segment.rows[0]
        writer.add(name, {**row, "ending": {**row["ending"], "steps": 3}}, segment.definitions)
        writer.close()
        assert store("verify", swept) == 1
        assert f"differ in {name}: ending.steps: " in capsys.readouterr().out

    def test_rows_of_who_knows_what_are_no_trouble(self, swept):
        (segment,) = Store(swept / "one").segments()
        name, row = segment.rows[0]
        with Store(swept / "one").writing({}) as writer:
            for strange in ([], {**row, "computed_as": ["a", "list"]}, {**row, "measured": 3}):
                writer.add(name, strange, segment.definitions)
        assert store("verify", swept) == 0

    def test_a_store_in_use_is_left_alone(self, swept, capsys):
        with Store(swept / "one").writing({}):
            assert store("repair", swept) == 2
            assert "is being written by process" in capsys.readouterr().err


class TestMerge:
    def test_brings_shards_to_the_bytes_of_the_whole(self, tmp_path, capsys):
        whole = sweep(RUNS, store=tmp_path / "whole" / "part", keep="params")
        for i in (1, 2, 3):
            sweep(RUNS, store=tmp_path / f"{i}" / "part", shard=(i, 3), keep="params")
        sources = [tmp_path / f"{i}" for i in (1, 2, 3)]
        assert store("merge", tmp_path / "merged", *sources) == 0
        assert f"2 rows and 2 networks of {tmp_path / '1' / 'part'}" in capsys.readouterr().out
        xr.testing.assert_identical(sweep(RUNS, store=tmp_path / "merged" / "part"), whole)
        for name in ("results.nc", f"networks/{RUNS[0].name}-*.npz"):
            one, other = (
                next((tmp_path / kind / "part").glob(name)) for kind in ("merged", "whole")
            )
            assert one.read_bytes() == other.read_bytes()
        assert store("merge", tmp_path / "merged", *sources) == 0
        assert "0 rows of" in capsys.readouterr().out
        assert len(Store(tmp_path / "merged" / "part").records()) == 4

    def test_brings_what_was_damaged_back(self, swept, tmp_path):
        """Rows came back, networks did not."""
        assert store("merge", tmp_path / "whole", swept / "one") == 0
        path = next((swept / "one" / "networks").glob("*.npz"))
        content = path.read_bytes()
        path.write_bytes(content[:-40])
        (done,) = care.merge(swept / "one", [tmp_path / "whole"])
        assert "and 1 networks of" in done
        assert path.read_bytes() == content
        assert store("verify", swept / "one") == 0
        assert [one.read_bytes() for one in (swept / "one" / "damaged").iterdir()] == [
            content[:-40]
        ]

    def test_of_other_machines(self, tmp_path):
        sweep(RUNS[:2], store=tmp_path / "here")
        other = tmp_path / "there"
        (segment,) = Store(tmp_path / "here").segments()
        settings = {**segment.about["settings"], "device": "another"}
        with Store(other).writing(settings) as writer:
            for name, row in segment.rows[:1]:
                writer.add(name, row, segment.definitions)
        assert store("merge", tmp_path / "both", tmp_path / "here", other) == 0
        read = jk.read_store(tmp_path / "both")
        assert "environment" in read
        with pytest.raises(ValueError, match="other settings"):
            sweep(RUNS, store=tmp_path / "both")
        xr.testing.assert_equal(sweep(RUNS[:2], store=tmp_path / "both", mix=True), sweep(RUNS[:2]))

    def test_what_contradicts_is_refused(self, swept, tmp_path, capsys):
        (segment,) = Store(swept / "one").segments()
        name, row = segment.rows[0]
        with Store(tmp_path / "other").writing(segment.about["settings"]) as writer:
            row["ending"]["steps"] += 1
            writer.add(name, row, segment.definitions)
        assert store("merge", swept / "one", tmp_path / "other") == 2
        assert f"differ in {name}: ending.steps: " in capsys.readouterr().err
        assert len(Store(swept / "one").records()) == 2

    def test_another_network_contradicts(self, swept, tmp_path, capsys):
        self.write(swept / "one", tmp_path / "other", lambda row: row.update(network="another"))
        assert store("merge", swept / "one", tmp_path / "other") == 2
        assert ": network: " in capsys.readouterr().err

    def test_what_was_computed_otherwise_or_raised_does_not(self, swept, tmp_path):
        def otherwise(row):
            row["computed_as"] += " otherwise"
            row["ending"]["steps"] += 1

        self.write(swept / "one", tmp_path / "other", otherwise)
        raised = {"status": int(jk.Status.RAISED), "error": "OSError: no disk"}
        self.write(swept / "one", tmp_path / "raised", lambda row: row["ending"].update(raised))
        for source in ("other", "raised"):
            assert store("merge", swept / "one", tmp_path / source) == 0
        assert len(Store(swept / "one").records()) == 4

    @staticmethod
    def write(folder, other, change):
        """The first row of a store, changed, in another one."""
        (segment,) = Store(folder).segments()
        name, row = segment.rows[0]
        change(row)
        with Store(other).writing(segment.about["settings"]) as writer:
            writer.add(name, row, segment.definitions)

    @pytest.mark.filterwarnings("ignore:.*damaged")
    def test_what_is_damaged_is_refused(self, swept, tmp_path, capsys):
        TestDamage.line(swept / "two")
        assert store("merge", tmp_path / "other", swept / "two") == 2
        assert "is damaged: repair" in capsys.readouterr().err
        assert store("merge", swept / "two", swept / "two") == 2
        assert "into itself" in capsys.readouterr().err
        assert store("merge", swept / "one", swept / "two" / ".." / "one") == 2
        assert "into itself" in capsys.readouterr().err
        assert store("merge", swept / "two") == 2
        assert "name the stores to copy from" in capsys.readouterr().err

    def test_of_one_that_is_being_written(self, swept, tmp_path):
        """What is cut short is left out, and comes with the next."""
        (path,) = Store(swept / "one").paths()
        content = path.read_bytes()
        path.write_bytes(content[:-9])
        assert "1 rows" in care.merge(tmp_path / "to", [swept / "one"])[0]
        path.write_bytes(content)
        assert "1 rows" in care.merge(tmp_path / "to", [swept / "one"])[0]
        assert rows_in(tmp_path / "to") == rows_in(swept / "one")

    @pytest.mark.filterwarnings("ignore:.*begins with neither")
    def test_what_has_lost_its_beginning_is_refused(self, swept, tmp_path, capsys):
        TestDamage.beginning(swept / "two")
        assert store("merge", tmp_path / "other", swept / "two") == 2
        assert "begins with neither" in capsys.readouterr().err
        TestDamage.network(swept / "one")
        assert store("merge", tmp_path / "other", swept / "one") == 2
        assert "is damaged: repair" in capsys.readouterr().err

    @pytest.mark.filterwarnings("ignore:.*damaged")
    def test_a_damaged_target_is_healed(self, swept, tmp_path):
        assert store("merge", tmp_path / "to", swept / "one") == 0
        TestDamage.line(tmp_path / "to")
        assert len(rows_in(tmp_path / "to")) == 1
        assert store("merge", tmp_path / "to", swept / "one") == 0
        assert rows_in(tmp_path / "to") == rows_in(swept / "one")
        assert len(list((tmp_path / "to" / "damaged").iterdir())) == 1

    @pytest.mark.filterwarnings("ignore:.*(damaged|begins with neither)")
    @pytest.mark.parametrize("harm", [None, TestDamage.line, TestDamage.beginning])
    def test_no_row_of_the_target_is_lost(self, swept, tmp_path, harm):
        """A segment was replaced by the source's copy of it, though that had fewer rows."""
        whole, target = rows_in(swept / "one"), tmp_path / "to"
        (path,) = Store(swept / "one").paths()
        (target / "segments").mkdir(parents=True)
        copy = Path(shutil.copy(path, target / "segments"))
        *most, first, second = path.read_bytes().splitlines(keepends=True)
        # Repaired, or an older copy of a target that is damaged in the row that this has.
        path.write_bytes(b"".join([*most, second if harm is None else first]))
        if harm is not None:
            harm(target)
        harmed = copy.read_bytes()
        assert store("merge", target, swept / "one") == 0
        assert rows_in(target) == whole
        aside = [path.read_bytes() for path in target.glob("damaged/*")]
        assert aside == ([] if harm is None else [harmed])
        assert copy.read_bytes() == b"".join([*most, first, second])

    def test_other_segments_of_one_name_are_refused(self, swept, tmp_path, capsys):
        (segment,) = Store(swept / "one").segments()
        with Store(tmp_path / "to").writing({"device": "another"}) as writer:
            for name, row in segment.rows[:1]:
                writer.add(name, row, segment.definitions)
        writer.path.rename(writer.path.with_name(segment.path.name))
        assert store("merge", tmp_path / "to", swept / "one") == 2
        assert "have one name, and are not of one process" in capsys.readouterr().err
        assert len(rows_in(tmp_path / "to")) == 1


class TestExport:
    def test_says_the_same_in_each_format(self, swept, tmp_path, capsys):
        table = xr.load_dataset(swept / "one" / "results.nc")
        files = [tmp_path / f"rows.{kind}" for kind in ("nc", "csv", "parquet")]
        for file in files:
            assert store("export", swept / "one", file) == 0
        xr.testing.assert_equal(xr.load_dataset(files[0]), table)
        for rows in (pd.read_csv(files[1]), pd.read_parquet(files[2]), jk.read_rows(swept / "one")):
            rows = rows.sort_values("seed")
            np.testing.assert_array_equal(rows.flip_size, table.flip_size.values.ravel())
            assert rows.seed.tolist() == [0, 1]
            assert set(rows.initialization) == {"torch"}

    def test_arrays(self, tmp_path):
        curve = jk.Curve([-1, -5])
        sweep(jk.grid(**SIZES, seed=range(2), curve=curve), store=tmp_path / "s")
        for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
            assert store("export", tmp_path / "s", tmp_path / f"rows.{kind}") == 0
            steps = read(tmp_path / f"rows.{kind}").curve_steps
            assert [len(json.loads(s) if isinstance(s, str) else s) for s in steps] == [2, 2]

    def test_bad_input(self, swept, tmp_path, capsys):
        assert store("export", swept / "one", tmp_path / "rows.xls") == 2
        assert "a file is called *.nc, *.parquet, *.csv" in capsys.readouterr().err
        assert store("export", swept, tmp_path / "rows.csv") == 2
        assert "is no store" in capsys.readouterr().err

    @pytest.mark.parametrize("kind", ["nc", "csv", "parquet"])
    def test_a_folder_that_is_not_there_is_told_once(self, kind, swept, tmp_path, capsys):
        """Errors stood within each other, with "[Errno None]" before them."""
        file = tmp_path / "no" / f"rows.{kind}"
        assert store("export", swept / "one", file) == 2
        told = f"error: there is no folder {file.parent} to write {file.name} to: make it first"
        assert capsys.readouterr().err == f"{told}\n"
        file = tmp_path / f"rows.{kind}"
        file.mkdir()
        assert store("export", swept / "one", file) == 2
        assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_store_behind_a_link_is_there(swept, tmp_path):
    """Another disk's, for instance: it was left out of merge and verify without a word."""
    (tmp_path / "results").mkdir()
    for name in ("one", "again"):
        (tmp_path / "results" / name).symlink_to(swept / "one")
    (tmp_path / "results" / "round").symlink_to(tmp_path / "results")
    assert care.stores(tmp_path / "results") == [tmp_path / "results" / "again"]
    assert "2 rows" in care.merge(tmp_path / "to", [tmp_path / "results"])[0]


def test_a_checkpoint_that_goes_meanwhile_is_no_damage(swept, monkeypatch):
    def gone(path, name):
        raise FileNotFoundError(path)

    monkeypatch.setattr(care, "read_arrays", gone)
    assert care.verify(swept / "one") == []


@pytest.mark.filterwarnings("ignore:.*damaged", "ignore:.*does not say what wrote it")
def test_segments_of_anything_are_no_reason_to_fail(swept, capsys):
    """Whole by their checksums, and not what a sweep writes."""
    (segment,) = Store(swept / "one").segments()
    with Store(swept / "one").writing(segment.about["settings"]) as writer:
        for row in (3, None, [], {"spec": []}, {"spec": "x", "ending": 1}, {"computed_as": 1}):
            writer.add("a", row, {"x": 3})
    for about in ([], {"format": "x"}, {"format": 4, "settings": []}, {}):
        text = json.dumps(about)
        line = f"{_checksum('', text)} {text}\n"
        (swept / "one" / "segments" / f"{len(text)}.rows").write_text(2 * line)
    assert store("list", swept) == 0
    assert store("failed", swept) == 0
    assert store("verify", swept) == 1
    assert len(jk.read_rows(swept / "one")) == 2
    assert jk.read_store(swept / "one").sizes["seed"] == 2


def test_a_checkpoint_is_whole(swept, capsys):
    run = RUNS[0]
    bucket = jk.plan_sweep([run]).buckets[0]
    folder = swept / "one" / "checkpoints"
    Checkpoints(Saved(folder), bucket).save(run, UnderWay([np.ones(3)], [], [], 1.0))
    assert store("verify", swept) == 0
    assert store("repair", swept) == 0
    assert len(list(folder.iterdir())) == 1


def test_a_store_cannot_run_code(swept, tmp_path, monkeypatch):
    """Names in it are names: no class is imported, no pickle read, no path followed."""
    monkeypatch.setattr("importlib.import_module", None)
    folder = tmp_path / "evil"
    (segment,) = Store(swept / "one").segments()
    name, row = segment.rows[0]
    text = json.dumps([row, segment.definitions]).replace("measurements.Flips", "os:system")
    row, definitions = json.loads(text)
    with Store(folder).writing(segment.about["settings"]) as writer:
        writer.add("../../" + name, row, definitions)
    network = folder / "networks" / f"{RUNS[0].name}-{row['network']}.npz"
    network.parent.mkdir()
    np.savez(network, owner=np.asarray(network.stem), w=np.array([print], object), b=1, v=1)
    assert store("list", folder) == 0
    assert store("verify", folder) == 1
    assert len(jk.read_rows(folder)) == 1
    assert store("merge", tmp_path / "copy", folder) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil", "out"]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="is damaged"):
        jk.load_network(folder, RUNS[0])
