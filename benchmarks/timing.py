"""Timing of contestants against each other, and the record of what was measured where."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Name = TypeVar("Name", bound=Hashable)

RESULTS = Path(__file__).parent / "results"


class Contestant(NamedTuple):
    """Something to time. One call of `run` does `units` of work, for instance network-steps."""

    run: Callable[[], object]
    units: float


def interleaved(
    contestants: Mapping[Name, Contestant],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: float = 0.3,
) -> dict[Name, list[float]]:
    """Seconds per unit of every contestant in every repeat.

    They take turns (A B C A B C ...), so whatever else slows the machine meets them all and drops
    out of the ratios within a repeat. A turn is untimed calls for `warm_up` seconds, at least
    one, and a timed one: NumPy's threads spin for up to 0.1 s after their last product and slow
    down what comes next by half, and after a pause Linux may run two of XLA's threads on one
    core for a while. A call ends when the JAX arrays it returns are ready.
    """

    def call(contestant: Contestant) -> float:
        start = clock()
        jax.block_until_ready(contestant.run())
        return clock() - start

    seconds: dict[Name, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            spent = call(contestant)
            while spent < warm_up:
                spent += call(contestant)
            seconds[name].append(call(contestant) / contestant.units)
    return seconds


def medians(seconds: Mapping[Name, Sequence[float]]) -> dict[Name, float]:
    """Median over the repeats, by contestant."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def ratio(seconds: Mapping[Name, Sequence[float]], slow: Name, fast: Name) -> float:
    """Median over the repeats of `slow`'s time over `fast`'s time in the same repeat."""
    pairs = zip(seconds[slow], seconds[fast], strict=True)
    return statistics.median(a / b for a, b in pairs)


def split(jitted: Any, *args: Any) -> tuple[Any, dict[str, float]]:
    """The compiled function, and the seconds that lowering and compiling took."""
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    middle = time.perf_counter()
    compiled = lowered.compile()
    end = time.perf_counter()
    return compiled, {"lowering_s": middle - start, "compiling_s": end - middle}


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Where and when: date, processor, versions, JAX's device and default dtype."""
    device = jax.devices()[0]
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "torch", "numpy")},
        "device": device.device_kind,
        "devices": jax.device_count(),
        "dtype": str(jnp.zeros(()).dtype),
    }


def write(name: str, record: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Writes `record` and the machine to `folder`/`name`.json and returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **record}, indent=1) + "\n")
    return path


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table of rows with the same columns; numbers are aligned to the right."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    numeric = [isinstance(rows[0][column], int | float) for column in columns]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = [
        "-" * (width - 1) + (":" if right else "-")
        for width, right in zip(widths, numeric, strict=True)
    ]
    return "\n".join([line(columns), line(rule), *map(line, cells)])


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
