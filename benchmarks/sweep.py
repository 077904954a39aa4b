"""The mixed quick grid, flow protocol, beside a PyTorch loop at the paper's schedule.

`python -m benchmarks.sweep` runs the whole quick preset of `sweeps.vardi_figures` in processes of
its own: with all compilation, again with the compiled programs in JAX's cache, and a last time with
nothing left to train, which is the start of Python and the figures. In turns with these it times a
PyTorch loop for a moment on every size. The loop's whole time is what its steps take, times the
steps that the paper's schedule needs, without its start and any measurement; "times" is the median
over the turns of the loop's time over the command's. "Products alone" is what the matrix
products of the same steps would take at the rate of large ones on all cores. With `--beside` the
same command of another checkout, of an earlier version for instance, is timed in turns, too.
The last table says what the streams and compilers of one sweep take for each of its parts.
Writes results/sweep.json.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile, TemporaryDirectory, TemporaryFile
from typing import NamedTuple

import jax
import numpy as np
import xarray as xr

import jaxkkt as jk
from benchmarks import peers, timing
from benchmarks.stages import compiling, stages
from jaxkkt.datasets import Dataset
from jaxkkt.engine.driver import product_rate
from jaxkkt.networks import Params
from jaxkkt.representations import step_flops
from sweeps.vardi_figures import preset

# The fewest steps to a loss of 1e-30 that any run of `benchmarks.protocols` took by the schedule.
PAPER_STEPS = 71_000
SECONDS_A_SIZE = 0.4
# Of a command that failed.
TOLD_LINES = 30
# A small process between: a child's peak counts that of the process that it was forked from.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as peak:
    peak.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def loop_seconds_per_step(params: Params, data: Dataset, seconds: float = SECONDS_A_SIZE) -> float:
    """Median time of a step of the PyTorch loop on one network, over about `seconds`."""
    advance = peers.torch_loop(*jax.tree.map(lambda a: a[None], (params, data)))
    advance(3)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        advance(5)
        times.append((time.perf_counter() - start) / 5)
    return float(np.median(times))


class Ran(NamedTuple):
    """What a command took."""

    seconds: float
    peak_gb: float


def timed(command: Sequence[str], folder: Path, settings: Mapping[str, str]) -> Ran:
    """Runs a command in a folder. Raises RuntimeError, with the last that it said, if it fails."""
    with TemporaryFile("w+") as told, NamedTemporaryFile("r") as peak:
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, peak.name, *command],
            env=os.environ | settings,
            cwd=folder,
            stdout=told,
            stderr=told,
        )
        seconds = time.perf_counter() - started
        if ended.returncode != 0:
            told.seek(0)
            raise RuntimeError(
                f"{' '.join(command)} in {folder} ended with {ended.returncode}:\n"
                + "".join(told.readlines()[-TOLD_LINES:])
            )
        return Ran(seconds, int(peak.read()) / 2**20)  # kilobytes on Linux


def preset_run(checkout: Path, out: Path, cache: Path, *options: str) -> Ran:
    """The quick preset's command, all of it; compiled programs are kept in `cache`."""
    command = [sys.executable, "-m", "sweeps.vardi_figures", "--preset", "quick"]
    settings = {
        "PYTHONPATH": str(checkout),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    return timed([*command, "--out", str(out), *options], checkout, settings)


class Turn(NamedTuple):
    """The quick preset's command in its ways, in seconds, and its peak memory."""

    wall: Mapping[str, float]
    peak_gb: float


def preset_turn(checkout: Path, folder: Path) -> Turn:
    """The quick preset's command with nothing compiled, all compiled, and all trained."""
    folder.mkdir()
    cache = folder / "cache"
    compiling = preset_run(checkout, folder / "first", cache)
    compiled = preset_run(checkout, folder / "second", cache)
    start = preset_run(checkout, folder / "second", cache, "--landed")
    wall = {
        "compiling": compiling.seconds,
        "compiled": compiled.seconds,
        "start and figures": start.seconds,
        "sweep alone, compiled": compiled.seconds - start.seconds,
    }
    return Turn(wall, compiling.peak_gb)


def products_alone(runs: Sequence[jk.Run], results: xr.Dataset) -> float:
    """Seconds of the products of all steps that were made, at the rate of large ones."""
    flops = 0.0
    for run in runs:
        at = {name: value for name, value in run.fields().items() if name in results.dims}
        sizes = {"samples": run.samples, "dim": run.d, "width": run.width}
        representation = run.protocol.representation_for(run.samples, run.d)
        flops += results.steps.sel(at).item() * step_flops(representation, **sizes)
    return flops / product_rate()


class Loop(NamedTuple):
    """What the PyTorch loop would take: in all, and milliseconds a step at each (d, m, k)."""

    seconds: float
    ms_a_step: Mapping[tuple[int, int, int], float]


def loop_turn(runs: Sequence[jk.Run]) -> Loop:
    """The loop timed on one network of every size, in seconds for all networks."""
    of_size = {(run.d, run.samples, run.width): run for run in runs}
    a_step = {size: loop_seconds_per_step(*jk.draw(run)) for size, run in of_size.items()}
    whole = PAPER_STEPS * sum(a_step[run.d, run.samples, run.width] for run in runs)
    return Loop(whole, {size: 1e3 * seconds for size, seconds in a_step.items()})


def parts(runs: Sequence[jk.Run]) -> dict[str, float]:
    """Seconds of a thread that a sweep takes for each part: what it compiles, then its stages."""
    with compiling() as compiled:
        jk.sweep(runs, progress=False)
    return {**compiled, **stages(runs)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of sweep.json")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--beside", type=Path, help="another checkout, timed in turns")
    options = parser.parse_args(arguments)

    runs = preset("quick")
    checkouts = {"here": Path(__file__).resolve().parents[1]}
    if options.beside is not None:
        checkouts["beside"] = options.beside.resolve()
    for where in checkouts.values():
        if not (where / "sweeps" / "vardi_figures.py").is_file():
            parser.error(f"{where} is no checkout of jaxkkt: it has no sweeps/vardi_figures.py")
    turns, loops = list[dict[str, Turn]](), list[Loop]()
    with TemporaryDirectory() as folder:
        for i in range(options.repeats):
            turns.append(
                {
                    name: preset_turn(where, Path(folder) / f"{name}-{i}")
                    for name, where in checkouts.items()
                }
            )
            loops.append(loop_turn(runs))
        results = xr.load_dataset(Path(folder) / "here-0" / "first" / "results.nc")
    products = products_alone(runs, results)
    walls = {
        name: {what: median(t[name].wall[what] for t in turns) for what in turns[0][name].wall}
        for name in checkouts
    }
    memory = {name: max(turn[name].peak_gb for turn in turns) for name in checkouts}
    wall = walls["here"] | {"products alone": products}
    taking = [{**turn["here"].wall, "products alone": products} for turn in turns]
    speedup = {
        what: median(loop.seconds / took[what] for loop, took in zip(loops, taking, strict=True))
        for what in wall
        if what != "start and figures"
    }

    rows = [
        {
            **dict(zip("dmk", size, strict=True)),
            "runs": count,
            "loop ms a step": median(loop.ms_a_step[size] for loop in loops),
        }
        for size, count in sorted(Counter((r.d, r.samples, r.width) for r in runs).items())
    ]
    loop_s = median(loop.seconds for loop in loops)
    print(timing.markdown(rows))
    print(
        f"\n{len(runs)} networks, peak memory {memory['here']:.2f} GB; the PyTorch loop would take "
        f"{loop_s / 3600:.2f} hours ({PAPER_STEPS:,} steps a network)\n"
    )
    others = {f"{name}, s": walls[name] for name in walls if name != "here"}
    table = [
        {
            "": n,
            "seconds": s,
            "times": speedup.get(n, ""),
            **{o: w.get(n, "") for o, w in others.items()},
        }
        for n, s in wall.items()
    ]
    print(timing.markdown(table))
    taken = parts(runs)
    print("\n" + timing.markdown([{"": part, "s of a thread": s} for part, s in taken.items()]))
    record = {
        "runs": len(runs),
        "wall_s": wall,
        "turns": [
            {"loop": loop.seconds, **{name: turn.wall for name, turn in each.items()}}
            for each, loop in zip(turns, loops, strict=True)
        ],
        "peak_memory_gb": memory,
        "parts_s": taken,
        "flow_steps": int(results.steps.where(results.status > 0).sum()),
        "paper_steps_a_run": PAPER_STEPS,
        "loop_s": loop_s,
        "speedup": speedup,
        "sizes": rows,
    }
    print("wrote", timing.write("sweep", record, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
