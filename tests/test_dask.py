"""Sweeps in a real Dask cluster on loopback: workers killed, stopped, gone; from Python and a
command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from cases import rows_in, sweep

import jaxkkt as jk

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent

RUNS = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(6))

SWEEP = """
import json, os, signal, sys
from contextlib import suppress
from time import sleep
import dask
import jaxkkt as jk
from dask.distributed import Client, LocalCluster
from jaxkkt.engine.running import executors
from jaxkkt.engine.tables import stored

class Kills(jk.Measurement):
    on_host = True

    def measure(self, data):
        if float(data.x[0, 0]) in bad:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"one": 1.0}

Kills.__module__ = "jaxkkt.own"  # told by the package's source: a store takes it

if __name__ == "__main__":
    out, kind = sys.argv[1:]
    executors.SHARE_PER_TASK = 1 / 16
    dask.config.set({
        "distributed.scheduler.worker-ttl": "4 s",
        "distributed.scheduler.allowed-failures": 2,
    })
    runs = jk.grid(d=[8, 12], alpha=[0.8, 1.5], width=[20], seed=range(6))
    if kind == "killer":
        runs = jk.grid(d=8, samples=6, width=20, seed=range(4), measure=Kills)
    bad = [float(jk.draw(runs[2])[1].x[0, 0])]
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        harmed, add = [], stored.Stored.add

        def then_harm(self, row):
            add(self, row)
            if not harmed and kind in ("kill", "stop"):
                harmed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)

        stored.Stored.add = then_harm
        if kind == "address":
            print(cluster.scheduler_address, flush=True)
            sys.stdin.readline()
            sys.exit()
        if kind == "gone":
            cluster.scale(0)
            while client.scheduler_info()["workers"]:
                sleep(0.1)
        executor = client.get_executor(pure=False)
        options = {"store": out, "executor": executor, "progress": False}
        try:
            table = jk.sweep(runs, **options, patience=5 if kind == "gone" else 200)
        except TimeoutError as error:
            print(json.dumps(str(error)))
        else:
            if kind == "stop":
                with suppress(ProcessLookupError):  # where Dask has killed it meanwhile
                    os.kill(pids[0], signal.SIGCONT)
            errors = table.error.values.ravel().tolist() if "error" in table else []
            print(json.dumps([table.status.values.ravel().tolist(), errors, len(harmed)]))
"""


def started(tmp_path, kind, **options):
    script = tmp_path / "script.py"
    script.write_text(SWEEP)
    command = [sys.executable, script, tmp_path / "out", kind]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}  # one package for all, as a worker has to have
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, **options
    )


def told(tmp_path, kind):
    out, err = started(tmp_path, kind).communicate(timeout=400)
    assert out, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("kind", ["kill", pytest.param("stop", marks=pytest.mark.rare)])
def test_a_worker_that_is_lost_loses_nothing(tmp_path, kind):
    """Its tasks go to others; where it was stopped and goes on it has no say any more."""
    statuses, _, harmed = told(tmp_path, kind)
    assert harmed == 1
    assert set(statuses) == {1}
    records = jk.read_store(tmp_path / "out")
    xr.testing.assert_equal(records, sweep(RUNS))
    assert len(rows_in(tmp_path / "out")) == len(RUNS)


@pytest.mark.rare
def test_a_run_that_kills_its_workers_ends_with_that(tmp_path):
    statuses, errors, _ = told(tmp_path, "killer")
    assert statuses == [1, 1, jk.Status.RAISED, 1]
    assert "KilledWorker" in errors[2]


@pytest.mark.rare
def test_no_worker_is_there(tmp_path):
    assert "no task has ended for 5 seconds" in told(tmp_path, "gone")


@pytest.mark.rare
def test_from_the_command_line(tmp_path):
    cluster = started(tmp_path, "address", stdin=subprocess.PIPE)
    try:
        address = cluster.stdout.readline().strip()
        small = ["--d", "20", "--alpha", "0.5", "--width", "50", "--seeds", "2", "--quiet"]
        for where in (["--executor", f"dask={address}"], []):
            folder = tmp_path / ("cluster" if where else "here")
            command = [sys.executable, "-m", "sweeps.vardi_figures", *small, *where]
            done = subprocess.run(
                [*command, "--out", folder], capture_output=True, text=True, check=False, cwd=ROOT
            )
            assert done.returncode == 0, done.stderr
    finally:
        cluster.communicate("\n", timeout=60)
    one, other = (xr.load_dataset(tmp_path / name / "results.nc") for name in ("cluster", "here"))
    xr.testing.assert_equal(one, other)
