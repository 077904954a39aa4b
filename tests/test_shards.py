"""Shares of a sweep in processes of their own: asked for, or under jax.distributed."""

import socket
import subprocess
import sys

import pytest
import xarray as xr
from cases import rows_in, sweep

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.engine.planning.shards import share
from jaxkkt.studies.command import main

PROCESS = """
import sys
import jax

port, count, which, out = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", int(count), int(which))

import jaxkkt as jk

runs = jk.grid(d=[8, 12], samples=6, width=20, seed=range(3))
table = jk.sweep(runs, store=out, progress=False)
print(int((table.status != -1).sum()))
"""


@pytest.mark.slow
def test_under_jax_distributed_every_process_takes_its_share(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), "2", str(i), tmp_path / "out"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    assert [int(process.communicate(timeout=300)[0]) for process in processes] == [3, 3]
    runs = jk.grid(d=[8, 12], samples=6, width=20, seed=range(3))
    assert len(rows_in(tmp_path / "out")) == 6
    xr.testing.assert_equal(sweep(runs, store=tmp_path / "out"), sweep(runs))


@pytest.mark.rare
@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    small = ["--d", "20", "--alpha", "0.5", "--width", "50", "--seeds", "3", "--quiet"]
    out = ["--out", str(tmp_path / "out")]
    for i in (1, 2):
        assert main(["sweep", "vardi-figures", *small, *out, "--shard", f"{i}/2"]) == 0
        assert f"shard {i}/2: " in capsys.readouterr().out
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"segments", "locks"}
    assert len(rows_in(tmp_path / "out")) == 3
    assert main(["sweep", "vardi-figures", *small, *out]) == 0
    assert (tmp_path / "out" / "claims.md").exists()
    assert main(["sweep", "vardi-figures", *small, "--out", str(tmp_path / "whole")]) == 0
    files = [tmp_path / name / "results.nc" for name in ("out", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_part_with_fewer_runs_than_shards_goes_to_the_first(tmp_path, capsys):
    """The others trained the parts before it, and ended with an error."""
    measured = {"width": 20, "samples": 4, "measure": ()}
    some = [
        studies.Part(jk.grid(d=[5, 6, 7], seed=0, **measured), "large"),
        studies.Part(jk.grid(d=5, seed=0, **measured), "small"),
    ]
    study = studies.Study("made-up", "", studies.Options, lambda _: some)
    out = ["--quiet", "--out", str(tmp_path)]
    for i in (3, 1, 2, 4):
        assert study.main([*out, "--shard", f"{i}/4"]) == 0
        told = capsys.readouterr().out
        assert f"small shard {i}/4: {'1 runs are' if i == 1 else 'nothing to train'}" in told
    assert "large shard 4/4: nothing to train, there are 3 runs" in told
    assert [len(rows_in(tmp_path / name)) for name in ("large", "small")] == [3, 1]
    segments = sorted(tmp_path.glob("*/segments/*"))
    assert study.main(out) == 0
    assert sorted(tmp_path.glob("*/segments/*")) == segments
    assert (tmp_path / "small" / "results.nc").exists()


def test_where_functions_lie_in_memory_moves_no_run_to_another_shard():
    """Own functions of one name were in the order of their addresses, and other processes left
    runs out."""

    def weights(scale):
        def start(key, width, dim):
            return jk.networks.torch_linear(key, width, dim, scale)

        return start

    functions = [weights(scale) for scale in range(1, 9)]
    found = []
    for some in (functions, sorted(functions, key=id), sorted(functions, key=id, reverse=True)):
        runs = jk.grid(d=8, samples=6, width=20, seed=0, initialization=some)
        _, mine, _ = share(jk.plan_sweep(runs).buckets, runs, (1, 2))
        assert [run for run in runs if run in mine] == runs[::2]
        found.append(len(mine))
    assert found == [4, 4, 4]


@pytest.mark.parametrize("shard", ["3", "0/2", "3/2", "a/b", "1/2/3", "-1/2"])
def test_bad_input(shard, tmp_path, capsys):
    out = ["--out", str(tmp_path), "--dry-run"]
    code = main(["sweep", "vardi-figures", *out, f"--shard={shard}"])
    assert code == 2
    assert "--shard is one of 1/n to n/n" in capsys.readouterr().err
