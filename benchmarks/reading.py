"""Reading a large store: `python -m benchmarks.reading --rows 1000000`.

One network is trained, and its row written again under as many seeds. Then the store is checked,
read by itself, and opened by the sweep of all those runs, which finds nothing to do. A smaller
store is read before: were a row's time to grow with their number, it would show.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jaxkkt as jk
from benchmarks import timing
from jaxkkt.engine.machine.devices import environment
from jaxkkt.store import Store, care

AT_A_TIME = 10_000


def fill(folder: Path, runs: Sequence[jk.Run]) -> None:
    """A store of all these runs, each with the row of the first."""
    jk.sweep(runs[:1], store=folder, progress=False)
    (segment,) = Store(folder).segments()
    ((_, row),) = segment.rows
    with Store(folder).writing(environment()) as writer:
        for i in range(1, len(runs), AT_A_TIME):
            some = runs[i : i + AT_A_TIME]
            writer.add_all(
                (run.name, {**row, "seed": run.seed}, segment.definitions) for run in some
            )


def reading(count: int) -> dict[str, Any]:
    """Seconds that it takes to read a store of so many rows, and the most memory of the process."""
    runs = jk.grid(d=10, samples=10, width=50, seed=range(count))
    with tempfile.TemporaryDirectory() as folder:
        filled = _seconds(lambda: fill(Path(folder), runs))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.rows"))
        row = {
            "rows": count,
            "written, s": filled,
            "MB": size / 1e6,
            "verified, s": _seconds(lambda: care.verify(folder)),
            "read by itself, s": _seconds(lambda: jk.read_store(folder)),
            "opened by its sweep, s": _seconds(
                lambda: jk.sweep(runs, store=folder, progress=False)
            ),
        }
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return {**row, "peak memory, GB": most * 1024 / 1e9}


def _seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the store (1000000)")
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of the JSON")
    options = parser.parse_args(arguments)
    rows = [reading(count) for count in (max(1, options.rows // 50), options.rows)]
    print(timing.markdown(rows))
    print("\nwrote", timing.write("reading", {"rows": rows}, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
