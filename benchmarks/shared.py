"""Processes that share a device: `python -m benchmarks.shared --processes 4 8`.

So many small runs go into one store, a shard from each process. What is timed is all of it, from
the start of Python: once without a cache of programs, and again with the one that this left.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jaxkkt as jk
from benchmarks import timing
from jaxkkt.process.caching import VARIABLE, keep_programs


def shared(count: int, processes: int) -> dict[str, Any]:
    """Seconds in which so many processes train so many runs."""
    row: dict[str, Any] = {"runs": count, "processes": processes}
    with tempfile.TemporaryDirectory() as programs:
        for name in ("seconds", "cached, s"):
            with tempfile.TemporaryDirectory() as store:
                row[name] = _seconds(count, processes, store, programs)
    return {**row, "cached, ms a run": 1e3 * row["cached, s"] / count}


def _seconds(count: int, processes: int, store: str, programs: str) -> float:
    command = [sys.executable, "-m", "benchmarks.shared", "--runs", str(count), "--store", store]
    env = {
        **os.environ,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / processes:.3f}",  # of a GPU's memory, for each
        "JAX_COMPILATION_CACHE_DIR": "",
        VARIABLE: programs,
    }
    started = time.perf_counter()
    shards = [
        subprocess.Popen([*command, "--shard", f"{i}/{processes}"], env=env, stdout=subprocess.PIPE)
        for i in range(1, processes + 1)
    ]
    told = [shard.communicate()[0] for shard in shards]
    seconds = time.perf_counter() - started
    if any(shard.returncode for shard in shards) or sum(map(int, told)) != count:
        raise RuntimeError(f"of {count} runs {processes} processes tell {told}")
    return seconds


def train(count: int, shard: str, store: Path) -> int:
    """Trains a shard of so many runs, and returns how many it had."""
    keep_programs()
    which, processes = map(int, shard.split("/"))
    runs = jk.grid(d=10, samples=10, width=50, seed=range(count))
    return jk.sweep(runs, store=store, shard=(which, processes), progress=False).sizes["seed"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs (1000000)")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[4], help="how many, one after the other (4)"
    )
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of the JSON")
    parser.add_argument("--shard", metavar="I/N", help="that one of the processes trains")
    parser.add_argument("--store", type=Path, help="that they share")
    options = parser.parse_args(arguments)
    if options.shard:
        print(train(options.runs, options.shard, options.store))
        return 0
    rows = [shared(options.runs, processes) for processes in options.processes]
    print(timing.markdown(rows))
    print("\nwrote", timing.write("shared", {"shared": rows}, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
