"""The mixed quick grid, flow protocol, beside a PyTorch loop at the paper's schedule.

`python -m benchmarks.sweep` runs the whole quick preset of `sweeps.vardi_figures`, from the first
draw to the last measurement and with all compilation, in a process of its own, and times a PyTorch
loop for a moment on every size in it. The loop's whole time is what its steps take, times the
steps that the paper's schedule needs. Writes results/sweep.json.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import xarray as xr

from benchmarks import peers, timing
from jaxkkt.datasets import Dataset
from jaxkkt.engine.draws import draw
from jaxkkt.networks import Params
from sweeps.vardi_figures import preset

# The fewest steps to a loss of 1e-30 that any run of `benchmarks.protocols` took by the schedule.
PAPER_STEPS = 71_000
SECONDS_A_SIZE = 0.4


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of sweep.json")
    options = parser.parse_args(arguments)

    runs = preset("quick")
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sweeps.vardi_figures", "--preset", "quick"]
        started = time.perf_counter()
        subprocess.run([*command, "--out", folder], check=True)
        wall = time.perf_counter() - started
        # ru_maxrss counts kilobytes on Linux: of the largest child so far, which is the sweep.
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        results = xr.load_dataset(Path(folder) / "results.nc")

    loop, rows = 0.0, []
    for (d, m, k), count in sorted(Counter((r.d, r.samples, r.width) for r in runs).items()):
        run = next(r for r in runs if (r.d, r.samples, r.width) == (d, m, k))
        per_step = loop_seconds_per_step(*draw(run))
        loop += count * PAPER_STEPS * per_step
        rows.append({"d": d, "m": m, "k": k, "runs": count, "loop ms a step": per_step * 1e3})
    print(timing.markdown(rows))
    print(
        f"\n{len(runs)} networks in {wall:.1f} s, peak memory {memory:.2f} GB; the PyTorch loop "
        f"would take {loop / 3600:.2f} hours ({PAPER_STEPS:,} steps a network): "
        f"{loop / wall:.0f} times as long"
    )
    record = {
        "runs": len(runs),
        "wall_s": wall,
        "peak_memory_gb": memory,
        "flow_steps": int(results.steps.where(results.status > 0).sum()),
        "paper_steps_a_run": PAPER_STEPS,
        "loop_s": loop,
        "speedup": loop / wall,
        "sizes": rows,
    }
    print("wrote", timing.write("sweep", record, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
