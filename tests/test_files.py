"""Files that are whole or not there; the garbage collector while many are read."""

import errno
import gc
import os
from pathlib import Path
from weakref import ref

import pytest

from jaxkkt.process import files, garbage
from jaxkkt.process.files import write_whole
from jaxkkt.process.garbage import importing, seldom_collected, uncollected


def test_the_order_of_writing(tmp_path, monkeypatch):
    """Content on the disk, then its name, then that on the disk: so a crash leaves either all."""
    done = []
    fsync, replace = os.fsync, Path.replace

    def synced(file):
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{file}") else "file"
        done.append((kind, os.fstat(file).st_size if kind == "file" else 0))
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda a, b: done.append("name") or replace(a, b))
    write_whole(tmp_path / "a", b"12345")
    assert done == [("file", 5), "name", ("folder", 0)]
    assert (tmp_path / "a").read_bytes() == b"12345"


def test_two_writers_of_one_file(tmp_path, monkeypatch):
    """One that ends while another is about to leaves the other's file as it was."""
    path, fsync = tmp_path / "a", os.fsync

    def meanwhile(file):
        monkeypatch.setattr(os, "fsync", fsync)
        write_whole(path, b"second")
        fsync(file)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_what_cannot_be_written_is_named(tmp_path, monkeypatch, function, code):
    path = tmp_path / "a"
    write_whole(path, b"old")

    def fails(*_):
        raise OSError(code, os.strerror(code))

    owner = {"open": files, "fsync": os, "replace": Path}[function]
    monkeypatch.setattr(owner, function, fails, raising=False)
    with pytest.raises(OSError, match=rf"cannot be written \({os.strerror(code)}\).*a'") as caught:
        write_whole(path, b"new")
    assert caught.value.errno == code
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_it_was_afterwards(was_on):
    """Whatever happens while it is off."""

    @uncollected()
    def read():
        assert not gc.isenabled()
        raise ValueError("within")

    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ValueError, match="within"):
            read()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.me = self


def test_a_long_task_is_collected_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(garbage, "monotonic", lambda: now[0])
    with seldom_collected() as collect:
        assert not gc.isenabled()
        ring = ref(Ring())
        collect()
        assert ring() is not None
        now[0] += 1.1 * garbage.SECONDS_BETWEEN_COLLECTIONS
        collect()
        assert ring() is None
        another = ref(Ring())
        collect()
        assert another() is not None
    assert gc.isenabled()


def test_what_is_frozen_stays_frozen_while_modules_are_imported():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with importing():
            assert not gc.isenabled()
        assert gc.get_freeze_count() > count / 2 > 0  # some may be gone meanwhile
    finally:
        gc.unfreeze()
    with importing():
        made = [[] for _ in range(100)]
    young = {id(one) for one in gc.get_objects(generation=0)}
    assert gc.isenabled()
    assert not young & {id(one) for one in made}
