"""Until a first sweep ends: `python -m benchmarks.start`.

A new process imports the package and sweeps a few runs of each shape of `benchmarks.throughput`, or
of each of eighteen small shapes, or one run of each of a random search's: with nothing kept of
other processes, then with what that one kept, traced and compiled, and then the same runs once more
in that process. With `--beside` another checkout does so in turns. Writes results/start.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import timing
from benchmarks.throughput import SHAPES, random_shapes

# All combinations of these: few buckets, which share programs or have their own.
SEVERAL = ((10, 20, 40), (10, 20, 40), (50, 100))
CODE = """
import json, sys, time
times = [time.perf_counter()]
import jaxkkt as jk
times.append(time.perf_counter())
jk.keep_programs(sys.argv[1])
runs = [run for axes in json.loads(sys.argv[2]) for run in jk.grid(**axes)]
for _ in range(2):
    jk.sweep(runs, progress=False)
    times.append(time.perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def turn(checkout: Path, grids: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of a checkout's import and sweeps of the runs of some grids."""
    with TemporaryDirectory() as programs:
        _, compiling, _ = _seconds(checkout, programs, grids)
        imported, kept, again = _seconds(checkout, programs, grids)
    return {"import": imported, "nothing kept": compiling, "kept": kept, "same process": again}


def _seconds(checkout: Path, programs: str, grids: Sequence[Mapping[str, Any]]) -> list[float]:
    command = [sys.executable, "-c", CODE, programs, json.dumps(grids)]
    env = {**os.environ, "PYTHONPATH": str(checkout), "JAX_COMPILATION_CACHE_DIR": ""}
    told = subprocess.run(command, cwd=checkout, env=env, stdout=subprocess.PIPE, check=True)
    return json.loads(told.stdout)


def _axes(sizes: Sequence[Any], runs: int) -> dict[str, Any]:
    """A grid of these sizes, each one or several of them, and so many seeds."""
    return {**dict(zip(("d", "samples", "width"), sizes, strict=True)), "seed": list(range(runs))}


def _told(size: Any) -> str:
    return str(size) if isinstance(size, int) else "/".join(map(str, size))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20, help="of each shape (20)")
    parser.add_argument("--search", type=int, default=1000, help="shapes of the search (1000)")
    parser.add_argument("--beside", type=Path, help="another checkout, timed in turns")
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of start.json")
    options = parser.parse_args(arguments)
    checkouts = {"": Path(__file__).resolve().parents[1]}
    if options.beside is not None:
        checkouts["beside: "] = options.beside.resolve()
    rows, raw = list[dict[str, Any]](), list[Any]()
    shapes: list[tuple[Any, ...]] = [shape[:3] for shape in SHAPES]
    swept = {
        ", ".join(map(_told, sizes)): [_axes(sizes, options.runs)] for sizes in (*shapes, SEVERAL)
    }
    swept[f"{options.search} at random"] = [_axes(s, 1) for s in random_shapes(options.search)]
    for what, grids in swept.items():
        turns = [
            {name: turn(where, grids) for name, where in checkouts.items()}
            for _ in range(options.repeats)
        ]
        raw.append(turns)
        row: dict[str, Any] = {"d, m, k": what, "runs of each": len(grids[0]["seed"])}
        for name in checkouts:
            for time in turns[0][name]:
                row[f"{name}{time}"] = median(one[name][time] for one in turns)
        rows.append(row)
    print(timing.markdown(rows))
    print("\nwrote", timing.write("start", {"shapes": rows, "turns": raw}, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
