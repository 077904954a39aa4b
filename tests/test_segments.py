"""Segments: what was written comes back, what was harmed or cannot be written is told."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from jaxkkt.store import Busy, Store, Writer, care, differences, segments
from jaxkkt.store.arrays import digest_of
from jaxkkt.store.lock import only_writer
from jaxkkt.store.segments import read

SETTINGS = {"versions": {"jaxkkt": "1"}}


def filled(folder, rows, settings=SETTINGS):
    """The path of a segment with these rows."""
    (folder / "segments").mkdir(exist_ok=True)
    writer = Writer(folder / "segments", {"settings": settings})
    for name, row in rows.items():
        writer.add(name, row)
    writer.close()
    return writer.path


def landed(folder, names="ab"):
    return {n: r[-1].value for n, r in Store(folder).landed(names, SETTINGS).items()}


def test_numbers_survive_exactly(tmp_path):
    row = {"a": np.float32(0.1).item(), "b": float("inf"), "c": 5e-324, "steps": 3, "é\n": "\u2028"}
    filled(tmp_path, {"a": row})
    assert landed(tmp_path) == {"a": row}


def test_rows_come_in_the_order_in_which_they_landed(tmp_path):
    filled(tmp_path, {"a": 1, "b": 2})
    with Store(tmp_path).writing(SETTINGS) as writer:
        writer.add("a", 3)
    records = Store(tmp_path).landed("ab", SETTINGS)
    assert [r.value for r in records["a"]] == [1, 3]


def test_definitions_are_written_once(tmp_path):
    with Store(tmp_path).writing(SETTINGS) as writer:
        for i in range(3):
            writer.add(f"r{i}", {"like": "x"}, {"x": {"width": 10}})
    (segment,) = Store(tmp_path).segments()
    assert segment.definitions == {"x": {"width": 10}}
    assert segment.path.read_text().count('"define"') == 1


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_every_flipped_bit_is_seen(tmp_path, at):
    """Of the two first lines one is enough; of any other line no more than its row is lost."""
    path = filled(tmp_path, {"a": {"size": 1.25}, "b": {"size": 2.5}})
    lines = path.read_bytes().splitlines(keepends=True)
    left = {2: "b", 3: "a"}.get(at, "ab")
    for bit in range(0, 8 * (len(lines[at]) - 1), 1 if at > 1 else 61):
        harmed = bytearray(lines[at])
        harmed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(b"".join([*lines[:at], bytes(harmed), *lines[at + 1 :]]))
        with pytest.warns(UserWarning, match=f"{path} is damaged in [12] lines"):
            found = landed(tmp_path)
        assert found == {name: {"size": {"a": 1.25, "b": 2.5}[name]} for name in left}


def test_cut_short_anywhere_the_whole_lines_count(tmp_path):
    path = filled(tmp_path, {"a": 1, "b": 2})
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for length in [*range(0, len(content), 7), *ends]:
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert list(landed(tmp_path)) == ["a", "b"][: max(0, whole - 2)]


def test_a_segment_without_its_first_lines_is_named(tmp_path):
    path = filled(tmp_path, {"a": 1, "b": 2})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[2:]))
    with pytest.warns(UserWarning, match="begins with neither of the two lines"):
        assert landed(tmp_path) == {}


@pytest.mark.parametrize("left", [bytes(2000), b"garbage" * 50, b"\n", b"f" * 32 + b" {\0}"])
def test_what_no_writer_began_is_named(tmp_path, left):
    """It was taken for the segment of a process that was killed as it began: all was whole."""
    filled(tmp_path, {"a": 1}).write_bytes(left)
    with pytest.warns(UserWarning, match="begins with neither of the two lines"):
        assert landed(tmp_path) == {}


def test_what_is_written_last_counts_whatever_the_clock(tmp_path, monkeypatch):
    """By a clock that had gone back it was taken for older, and computed at every call."""

    class Back(segments.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2001, 1, 1, tzinfo=tz)

    filled(tmp_path, {"a": 1})
    monkeypatch.setattr(segments, "datetime", Back)
    filled(tmp_path, {"a": 2})
    filled(tmp_path, {"a": 3})
    assert [record.value for record in Store(tmp_path).records()] == [1, 2, 3]
    (tmp_path / "segments" / "zzz.rows").write_bytes(b"")
    filled(tmp_path, {"b": 4})


def test_a_segment_that_goes_while_others_are_read_had_no_row(tmp_path, monkeypatch):
    path = filled(tmp_path, {"a": 1})
    gone = path.with_name("0" + path.name)
    monkeypatch.setattr(Store, "paths", lambda self: [gone, path])
    assert landed(tmp_path) == {"a": 1}
    assert care.verify(tmp_path) == []


def test_rows_that_changed_places_do_not_count(tmp_path):
    """Neither under another name nor in a segment that something else wrote."""
    one = filled(tmp_path, {"a": 1})
    other = filled(tmp_path, {"b": 2}, {"versions": {"jaxkkt": "2"}})
    lines = [path.read_bytes().splitlines(keepends=True) for path in (one, other)]
    one.write_bytes(b"".join([*lines[0][:2], lines[1][2]]))
    other.write_bytes(b"".join([*lines[1][:2], lines[0][2]]))
    with pytest.warns(UserWarning, match="is damaged in 1 lines"):
        assert landed(tmp_path) == {}
    one.write_bytes(b"".join([*lines[0][:2], lines[0][2].replace(b'"a"', b'"b"')]))
    other.unlink()
    with pytest.warns(UserWarning, match="is damaged in 1 lines"):
        assert landed(tmp_path) == {}


def test_a_line_of_another_segment_does_not_count(tmp_path):
    """Two that were begun alike had the same checksums."""
    one, other = (filled(tmp_path, {name: 1}) for name in "ab")
    one.write_bytes(one.read_bytes() + other.read_bytes().splitlines(keepends=True)[-1])
    assert read(one).rows == [("a", 1)]
    assert read(one).damaged == [4]


def test_a_newer_format_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "FORMAT", 7)
    path = filled(tmp_path, {"a": 1})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"{path} is of format 7, written by a newer jaxkkt"):
        landed(tmp_path)


def test_a_store_of_before_is_told(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "settings.json").write_text("{}")
    for use in (lambda s: s.landed("a", {}), lambda s: s.writing({}).__enter__()):
        with pytest.raises(ValueError, match=r"is a store of jaxkkt 0.7.0 or before"):
            use(Store(tmp_path))
    with pytest.raises(ValueError, match=r"is a store of jaxkkt 0.7.0 or before"):
        Store.existing(tmp_path)
    with pytest.raises(ValueError, match="is no store"):
        Store.existing(tmp_path / "nothing")


@pytest.mark.parametrize("function", ["write", "fsync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_cannot_be_written_is_named_and_not_there(tmp_path, monkeypatch, function, code):
    (tmp_path / "segments").mkdir()
    writer = Writer(tmp_path / "segments", {"settings": SETTINGS})
    writer.add("a", 1)
    write = os.write

    def fails(file, *content):
        if function == "write":
            write(file, content[0][:9])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, fails)
    monkeypatch.setattr(segments, "SECONDS_BETWEEN_SYNCS", 0.0)
    with pytest.raises(OSError, match=rf"cannot be written.*{writer.path.name}") as caught:
        writer.add("b", 2)
    assert caught.value.errno == code
    monkeypatch.undo()
    with pytest.raises(OSError, match="could not be written before: nothing is added"):
        writer.add("c", 3)
    writer.close()
    # What an error was told of may be there, whole, but nothing else.
    assert landed(tmp_path, "abc") in ({"a": 1}, {"a": 1, "b": 2})
    assert writer.path.read_bytes().endswith(b"\n")


def test_rows_reach_the_system_at_once_and_the_disk_within_a_second(tmp_path, monkeypatch):
    (tmp_path / "segments").mkdir()
    writer = Writer(tmp_path / "segments", {"settings": SETTINGS})
    synced, now = [], [0.0]
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(segments, "monotonic", lambda: now[0])
    writer._synced = 0.0
    for seconds in (0.5, 0.9, 1.1, 1.2, 2.2):
        now[0] = seconds
        writer.add("a", seconds)
        assert landed(tmp_path) == {"a": seconds}
    assert len(synced) == 2
    writer.close()
    assert len(synced) == 3


def test_a_segment_that_was_removed_meanwhile_is_told(tmp_path):
    (tmp_path / "segments").mkdir()
    writer = Writer(tmp_path / "segments", {"settings": SETTINGS})
    writer.add("a", 1)
    writer.path.unlink()
    with pytest.raises(OSError, match="it was removed while rows were written") as told:
        writer.close()
    assert told.value.errno == errno.ENOENT


def test_a_segment_without_rows_does_not_stay(tmp_path):
    with Store(tmp_path).writing(SETTINGS):
        assert len(Store(tmp_path).paths()) == 1
    assert not Store(tmp_path).paths()


def test_other_settings_are_refused_unless_they_may_mix(tmp_path):
    filled(tmp_path, {"a": 1})
    other = {"versions": {"jaxkkt": "2"}}
    assert Store(tmp_path).landed("b", other) == {}
    with pytest.raises(ValueError, match=r"holds 1 of these rows.*\n.*jaxkkt: '1' in the folder"):
        Store(tmp_path).landed("a", other)
    filled(tmp_path, {"a": 2}, other)
    for settings, last in ((SETTINGS, 1), (other, 2)):
        found = Store(tmp_path).landed("a", settings, mix=True)
        assert found["a"][-1].value == last
        assert len(found["a"]) == 2


def test_where_no_row_is_there_no_name_is_asked_for(tmp_path):
    asked = []

    def names():
        for name in "ab":
            asked.append(name)
            yield name

    with Store(tmp_path).writing(SETTINGS) as writer:
        assert Store(tmp_path).landed(names(), SETTINGS) == {}
        assert not asked
        writer.add("b", 1)
    assert list(Store(tmp_path).landed(names(), SETTINGS)) == ["b"]
    assert asked == ["a", "b"]


class TestOneWriter:
    def test_a_second_is_told_who_holds_it(self, tmp_path):
        with Store(tmp_path).writing(SETTINGS):
            told = rf"{tmp_path} is being written by process {os.getpid()} of .* since 20"
            with pytest.raises(Busy, match=told), Store(tmp_path).writing(SETTINGS):
                pass
            assert landed(tmp_path) == {}  # whoever reads is not held up
        with Store(tmp_path).writing(SETTINGS):
            pass

    def test_one_that_is_stopped_holds_it(self, tmp_path):
        """And goes on to write, since nobody else could meanwhile."""
        script = """
import sys
from jaxkkt.store import Store

with Store(sys.argv[1]).writing({}) as writer:
    print("writing", flush=True)
    sys.stdin.readline()
    writer.add("a", 1)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", script, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGSTOP)
        told = f"process {process.pid} of"
        with pytest.raises(Busy, match=told), Store(tmp_path).writing({}):
            pass
        process.send_signal(signal.SIGCONT)
        process.communicate("\n")
        with Store(tmp_path).writing({}):
            assert [record.value for record in Store(tmp_path).records()] == [1]

    def test_one_that_is_killed_holds_it_no_longer(self, tmp_path):
        script = """
import os, signal, sys
from jaxkkt.store import Store

with Store(sys.argv[1]).writing({}) as writer:
    writer.add("a", 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
        assert subprocess.run([sys.executable, "-c", script, tmp_path]).returncode < 0
        with Store(tmp_path).writing({}):
            assert [record.value for record in Store(tmp_path).records()] == [1]

    @pytest.mark.slow
    def test_shards_write_side_by_side(self, tmp_path):
        with only_writer(tmp_path, "1-of-2"), only_writer(tmp_path, "2-of-2"):
            with pytest.raises(Busy, match="which has the shard 1-of-2"), only_writer(tmp_path):
                pass
            for part in ("2-of-2", "1-of-3"):  # another number of shards has runs in common
                with pytest.raises(Busy), only_writer(tmp_path, part):
                    pass
        with only_writer(tmp_path), pytest.raises(Busy), only_writer(tmp_path, "1-of-2"):
            pass

    def test_its_own_leftovers_alone_are_cleaned(self, tmp_path):
        Store(tmp_path).writing(SETTINGS)
        others = [tmp_path / "iso.part", tmp_path / "Downloads" / "iso.part"]
        own = [tmp_path / "networks" / "a.npz.0a.part", tmp_path / "results.nc.0b.part"]
        for path in others + own:
            path.parent.mkdir(exist_ok=True)
            path.write_text("half")
        assert landed(tmp_path) == {}
        assert all(path.exists() for path in own)  # of a sweep that may be running
        with Store(tmp_path).writing(SETTINGS, "1-of-2"):
            pass
        assert all(path.exists() for path in own)  # of a shard that may be running
        with Store(tmp_path).writing(SETTINGS):
            pass
        assert sorted(tmp_path.rglob("*.part")) == sorted(others)


def test_the_header_says_what_wrote_it(tmp_path):
    path = filled(tmp_path, {"a": 1})
    first, second = path.read_text().splitlines()[:2]
    assert first == second
    about = {"format": 4, "segment": path.stem, "settings": SETTINGS}
    assert json.loads(first.split(" ", 1)[1]) == about


def test_what_differs_is_told_and_another_order_is_not():
    assert differences({"a": [1, 2], "b": 3}, {"b": 3, "a": [2, 1]}) == []
    (told,) = differences({"a": [1, 2]}, {"a": [2, 3]})
    assert told == "a: 2 in the folder, 2 now; only in the folder: [1], only now: [3]"


def test_arrays_of_the_same_bytes_are_not_the_same():
    one = np.arange(4, dtype=np.float32)
    others = one.reshape(2, 2), one.view(np.int32), one.view(np.float64)
    assert len({digest_of({"a": array}) for array in (one, *others)}) == 4
    assert digest_of({"b": one}) != digest_of({"a": one}) == digest_of({"a": one.copy()})
