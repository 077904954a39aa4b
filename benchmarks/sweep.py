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
from typing import Any, NamedTuple

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
# How many lines of what a failed command said are told.
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


class Command(NamedTuple):
    """The quick preset's command in its ways, in seconds, and its peak memory."""

    wall: Mapping[str, float]
    peak_gb: float


def preset_command(checkout: Path, folder: Path) -> Command:
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
    return Command(wall, compiling.peak_gb)


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


def loop_of(runs: Sequence[jk.Run]) -> Loop:
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


class Turn(NamedTuple):
    """The command of each checkout, and the loop, one after the other."""

    commands: Mapping[str, Command]
    loop: Loop


def record_of(
    runs: Sequence[jk.Run], turns: Sequence[Turn], products: float, taken: Mapping[str, float]
) -> dict[str, Any]:
    """What is written of the turns: medians, and the ratios of the loop to this checkout."""
    first = turns[0].commands
    walls = {
        name: {what: median(t.commands[name].wall[what] for t in turns) for what in command.wall}
        for name, command in first.items()
    }
    here = walls["here"] | {"products alone": products}
    taking = [{**turn.commands["here"].wall, "products alone": products} for turn in turns]
    sizes = sorted(Counter((run.d, run.samples, run.width) for run in runs).items())
    return {
        "runs": len(runs),
        "wall_s": here,
        "beside_s": {name: wall for name, wall in walls.items() if name != "here"},
        "turns": [
            {"loop": turn.loop.seconds, **{name: one.wall for name, one in turn.commands.items()}}
            for turn in turns
        ],
        "peak_memory_gb": {name: max(t.commands[name].peak_gb for t in turns) for name in first},
        "parts_s": taken,
        "paper_steps_a_run": PAPER_STEPS,
        "loop_s": median(turn.loop.seconds for turn in turns),
        "speedup": {
            what: median(t.loop.seconds / took[what] for t, took in zip(turns, taking, strict=True))
            for what in here
            if what != "start and figures"
        },
        "sizes": [
            {
                **dict(zip("dmk", size, strict=True)),
                "runs": count,
                "loop ms a step": median(turn.loop.ms_a_step[size] for turn in turns),
            }
            for size, count in sizes
        ],
    }


def tables(record: Mapping[str, Any]) -> str:
    """A record as it is printed."""
    wall, speedup, beside = (record[name] for name in ("wall_s", "speedup", "beside_s"))
    times = [
        {
            "": what,
            "seconds": seconds,
            "times": speedup.get(what, ""),
            **{f"{name}, s": other.get(what, "") for name, other in beside.items()},
        }
        for what, seconds in wall.items()
    ]
    said = (
        f"{record['runs']} networks, peak memory {record['peak_memory_gb']['here']:.2f} GB; the "
        f"PyTorch loop would take {record['loop_s'] / 3600:.2f} hours ({PAPER_STEPS:,} steps a "
        "network)"
    )
    taken = [{"": part, "s of a thread": seconds} for part, seconds in record["parts_s"].items()]
    sizes, whole, streams = map(timing.markdown, (record["sizes"], times, taken))
    return f"{sizes}\n\n{said}\n\n{whole}\n\n{streams}"


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
    turns = []
    with TemporaryDirectory() as folder:
        for i in range(options.repeats):
            commands = {
                name: preset_command(where, Path(folder) / f"{name}-{i}")
                for name, where in checkouts.items()
            }
            turns.append(Turn(commands, loop_of(runs)))
        results = xr.load_dataset(Path(folder) / "here-0" / "first" / "results.nc")
    record = record_of(runs, turns, products_alone(runs, results), parts(runs))
    print(tables(record))
    record["flow_steps"] = int(results.steps.where(results.status > 0).sum())
    print("wrote", timing.write("sweep", record, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
