"""A sweep that is killed goes on, at every point at which something is written."""

import os
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest
import xarray as xr
from cases import note_trained, sweep
from store_cases import RUNS, values

from jaxkkt.engine.running import streams
from jaxkkt.store import Store

SWEEP = """
import sys
import jaxkkt as jk
jk.sweep(jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(%d)), store=sys.argv[1])
"""


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


RARE = [pytest.mark.slow, pytest.mark.rare]


class TestKilled:
    @pytest.mark.parametrize("half", [pytest.param(False, marks=RARE), True])
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
