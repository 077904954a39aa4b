"""What a run costs beside its training: large sweeps of small networks.

`python -m benchmarks.throughput` writes results/throughput.json and prints a table for each part:

- sweeps of one shape, in turns with the same training alone: all streams, compilation apart, and
  what drawing, placing, stepping, taking out and measuring take of all streams together;
- many runs into a store: seconds, the last thousand over the first, memory, opening it again;
- runs that differ in numbers of their own beside runs that differ in their seeds alone;
- runs of unlike lengths, which take turns in the lanes: the share of lane-steps that advance a run;
- an accelerator's plan of 64 lanes, run here: dispatches and transfers a run;
- a random search: buckets, programs, padding, the time of the plan, and of plans that merge less.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import jaxkkt as jk
from benchmarks import timing
from benchmarks.stages import replaced, stages
from jaxkkt.engine.machine.devices import alone
from jaxkkt.engine.planning import plan as planning
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.plan import padding_share, plan
from jaxkkt.engine.programs import draws, measuring
from jaxkkt.engine.programs.telling import Told
from jaxkkt.engine.programs.training import Programs, compile_bucket
from jaxkkt.engine.running.lanes import run_bucket
from jaxkkt.engine.running.tally import Tally
from jaxkkt.engine.tables.stored import Stored

# d, samples, width, and how many runs a sweep of them has.
SHAPES = ((10, 10, 50, 2000), (20, 20, 100, 1000), (50, 50, 300, 100), (100, 10, 1000, 100))
EVER = np.iinfo(np.int32).max


def runs_of(d: int, samples: int, width: int, count: int) -> list[jk.Run]:
    return jk.grid(d=d, samples=samples, width=width, seed=range(count))


def train_alone(bucket: Bucket, programs: Programs, count: int) -> float:
    """Seconds in which `count` streams train all runs of a bucket, from first to last step.

    Drawing and placing come before the clock starts; nothing is measured.
    """
    some = [bucket.runs[i : i + bucket.slots] for i in range(0, len(bucket.runs), bucket.slots)]
    waiting = deque([placed(bucket, programs, runs) for runs in some])
    limits = jax.device_put(np.array([EVER, bucket.lanes], np.int32))

    def stream() -> None:
        while True:
            try:
                batch = waiting.popleft()
            except IndexError:
                return
            jax.block_until_ready(programs.advance(batch, limits)[1])

    started = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(stream) for _ in range(count)]:
            future.result()
    return time.perf_counter() - started


def placed(bucket: Bucket, programs: Programs, runs: Sequence[jk.Run]) -> Any:
    """A batch of these runs before their first step, for `programs.advance`."""
    batch = programs.idle()
    for i in range(0, len(runs), bucket.turn):
        mine = runs[i : i + bucket.turn]
        told = [Told(run, slot) for slot, run in enumerate(mine, i)]
        words = jax.device_put(programs.telling.rows_of(told, bucket))
        drawing = programs.telling.drawing(mine[0])
        drawn = draws.draw_batch(drawing, words, mine, bucket.slots, bucket.side_by_side)
        batch = programs.place(batch, words, drawn)
    return jax.block_until_ready(batch)


def shapes(repeats: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """Each shape's sweep in turns with the same training alone."""
    rows = []
    for *size, count in SHAPES:
        d, samples, width = size
        runs = runs_of(d, samples, width, max(4, round(scale * count)))
        planned = jk.plan_sweep(runs)
        (bucket,) = planned.buckets
        programs = compile_bucket(bucket)
        jk.sweep(runs, progress=False)
        with alone():
            train_alone(bucket, programs, planned.streams)
            pairs = []
            for _ in range(repeats):
                started = time.perf_counter()
                jk.sweep(runs, progress=False)
                whole = time.perf_counter() - started
                pairs.append((whole, train_alone(bucket, programs, planned.streams)))
        each = 1e3 / len(runs)
        rows.append(
            {
                "d, m, k": ", ".join(map(str, size)),
                "runs": len(runs),
                "lanes": bucket.lanes,
                "sweep, ms a run": each * median(whole for whole, _ in pairs),
                "training alone": each * median(train for _, train in pairs),
                "ratio": median(whole / train for whole, train in pairs),
                **{name: each * seconds for name, seconds in stages(runs).items()},
                "raw": pairs,
            }
        )
    return rows


def by_lanes(counts: Sequence[int] = (1, 4, 16, 32), networks: int = 64) -> list[dict[str, Any]]:
    """Milliseconds of training a network of each shape, by the lanes that a core steps at once."""
    rows = []
    for d, samples, width, _ in SHAPES:
        planned = jk.plan_sweep(runs_of(d, samples, width, networks))
        row: dict[str, Any] = {"d, m, k": f"{d}, {samples}, {width}", "chosen": 0}
        for count in counts:
            bucket = planned.buckets[0]
            row["chosen"] = bucket.lanes
            bucket = bucket.with_lanes(count)
            programs = compile_bucket(bucket)
            with alone():
                seconds = [train_alone(bucket, programs, planned.streams) for _ in range(3)]
            row[f"{count} lanes"] = 1e3 * median(seconds) / networks
        rows.append(row)
    return rows


def large(count: int) -> dict[str, Any]:
    """So many runs of the smallest shape into a store, and the store opened again."""
    d, samples, width, _ = SHAPES[0]
    runs = runs_of(d, samples, width, count)
    jk.sweep(runs, progress=False) if count <= 2000 else jk.sweep(runs[:2000], progress=False)
    landed, add, done = [], Stored.add, threading.Event()

    def look(self: Stored, rows: Sequence[Any]) -> None:
        add(self, rows)
        landed.extend([time.perf_counter()] * len(rows))

    memory = [_memory()]

    def watch() -> None:
        while not done.wait(0.1):
            memory.append(_memory())

    watcher = threading.Thread(target=watch)
    with tempfile.TemporaryDirectory() as folder, replaced((Stored, "add", look)):
        watcher.start()
        started = time.perf_counter()
        jk.sweep(runs, store=folder, progress=False)
        whole = time.perf_counter() - started
        done.set()
        watcher.join()
        started = time.perf_counter()
        jk.sweep(runs, store=folder, progress=False)
        again = time.perf_counter() - started
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    step = count // 20
    first, last = landed[2 * step] - landed[step], landed[-1] - landed[-step]
    return {
        "runs": count,
        "seconds": whole,
        "ms a run": 1e3 * whole / count,
        f"last {step} over first {step}": last / first if first else None,  # they landed together
        "memory above its start, MB": max(memory) - memory[0],
        "opened again, s": again,
        "bytes a run": size / count,
    }


def _memory() -> float:
    """Resident memory of this process in MB; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def by_numbers(count: int, repeats: int) -> dict[str, Any]:
    """Runs of so many values of two numbers beside as many of one, in turns, both from their grids
    on; they take a few steps each, so that what surrounds them is what differs."""
    d, samples, width, _ = SHAPES[0]
    each = max(2, round(count**0.5))

    def seconds(**axes: Any) -> float:
        started = time.perf_counter()
        runs = jk.grid(d=d, samples=samples, width=width, max_steps=4, **axes)
        jk.sweep(runs, progress=False)
        return time.perf_counter() - started

    def grid(turn: int) -> float:
        deltas = (0.01 + 1e-4 * turn) * np.linspace(1, 2, each)  # specs that no turn has seen
        return seconds(seed=0, delta=deltas.tolist(), init_scale=np.linspace(0.5, 1, each).tolist())

    grid(-1)
    seconds(seed=range(each**2))
    pairs = [(seconds(seed=range(each**2)), grid(turn)) for turn in range(repeats)]
    return {
        "runs": each**2,
        "seeds, ms a run": 1e3 * median(seeds for seeds, _ in pairs) / each**2,
        "numbers, ms a run": 1e3 * median(numbers for _, numbers in pairs) / each**2,
        "more, ms a run": 1e3 * median(numbers - seeds for seeds, numbers in pairs) / each**2,
    }


def uneven(count: int) -> dict[str, Any]:
    """Small runs that take from 200 to 500 steps, in an order that tells nothing of it."""
    deltas = np.geomspace(0.01, 0.08, 8)
    runs = [
        run.replace(protocol=jk.flow_protocol(delta=float(deltas[run.seed % len(deltas)])))
        for run in runs_of(*SHAPES[1][:3], count)
    ]
    (bucket,) = jk.plan_sweep(runs).buckets
    jk.sweep(runs, progress=False)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        table = jk.sweep(runs, progress=False)
        seconds.append(time.perf_counter() - started)
    tally = Tally()
    list(run_bucket(bucket, deque(bucket.trajectories), compile_bucket(bucket), tally))
    steps = table.steps.values[table.steps.values > 0]
    return {
        "runs": count,
        "lanes": bucket.lanes,
        "slots": bucket.slots,
        "fewest steps": int(steps.min()),
        "most steps": int(steps.max()),
        "ms a run": 1e3 * median(seconds) / count,
        "useful lane-steps": tally.useful_share(),
    }


def accelerator(count: int, lanes_: int = 64) -> dict[str, Any]:
    """Dispatches and transfers a run of an accelerator's plan, counted on this device."""
    runs = runs_of(*SHAPES[0][:3], count)
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: None)
    (bucket,) = plan(runs, [gpu])
    bucket = bucket.with_lanes(lanes_)
    programs = compile_bucket(bucket)
    counts = Counter[str]()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        """Its calls, the arrays that come from the host, and those that it gives to be read."""

        def call(*args: Any) -> Any:
            counts["dispatches"] += 1
            counts["transfers"] += sum(isinstance(a, np.ndarray) for a in jax.tree.leaves(args))
            return function(*args)

        return call

    def put(array: Any, *rest: Any) -> Any:
        counts["transfers"] += 1
        return device_put(array, *rest)

    def read(array: Any, *rest: Any, **named: Any) -> Any:
        counts["transfers"] += isinstance(array, jax.Array)
        return asarray(array, *rest, **named)

    draw_program, measure_program = draws.draw_program, measuring.measure_program
    device_put, asarray = jax.device_put, np.asarray
    counting = programs._replace(
        place=counted(programs.place),
        advance=counted(programs.advance),
        decode=counted(programs.decode),
    )

    def counted_measures(*args: Any) -> Any:
        program, layout = measure_program(*args)
        return counted(program), layout

    with replaced(
        (draws, "draw_program", lambda *args: counted(draw_program(*args))),
        (measuring, "measure_program", counted_measures),
        (jax, "device_put", put),
        (np, "asarray", read),
    ):
        tally = Tally()
        found = list(run_bucket(bucket, deque(bucket.trajectories), counting, tally))
    assert sum(map(len, found)) == count
    return {
        "runs": count,
        "lanes": bucket.lanes,
        **{f"{name} a run": counts[name] / count for name in ("dispatches", "transfers")},
        "useful lane-steps": tally.useful_share(),
    }


def random_shapes(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """So many different ones: d, sample exponent and width at random."""
    rng = np.random.default_rng(seed)
    found = dict[tuple[int, int, int], None]()
    while len(found) < count:
        d, width = int(rng.integers(10, 100)), int(rng.integers(50, 500))
        samples = max(2, round(d ** rng.uniform(0.3, 1.2)))
        found[d, samples, width] = None
    return list(found)


def random_search(count: int) -> list[dict[str, Any]]:
    """Plans for a run of each of as many shapes.

    The first is what a sweep does; the others merge more, as if to compile cost four times as much,
    and less.
    """
    rows, runs = [], list[jk.Run]()
    for d, samples, width in random_shapes(count):
        runs += jk.grid(d=d, samples=samples, width=width, seed=0)
    name = "OPERATIONS_PER_COMPILATION"
    for share in (1, 4, 0.1, 0.01):
        with replaced((planning, name, share * getattr(planning, name))):
            started = time.perf_counter()
            planned = jk.plan_sweep(runs).buckets
            seconds = time.perf_counter() - started
        draws_of = {(b.drawn_at, b.turn) for b in planned}
        measures_of = {(b.measured_at, b.turn) for b in planned}
        rows.append(
            {
                "shapes": count,
                "cost of compiling": share,
                "plan, s": seconds,
                "buckets": len(planned),
                "programs": 3 * len(planned) + len(draws_of) + len(measures_of),
                "padding": padding_share(planned),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="turns of every contestant (5)")
    parser.add_argument("--runs", type=int, default=20_000, help="runs into a store (20000)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each shape's runs (1)")
    parser.add_argument("--out", type=Path, default=timing.RESULTS, help="folder of the JSON")
    parser.add_argument(
        "--lanes", action="store_true", help="training alone by the number of lanes, and no more"
    )
    options = parser.parse_args(arguments)
    if options.lanes:
        rows = by_lanes()
        print(timing.markdown(rows))
        print("wrote", timing.write("lanes", {"lanes": rows}, options.out))
        return 0
    record: dict[str, Any] = {"shapes": shapes(options.repeats, options.scale)}
    visible = [{k: v for k, v in row.items() if k != "raw"} for row in record["shapes"]]
    print(timing.markdown(visible), flush=True)
    for name, part in (
        ("store", lambda: [large(options.runs)]),
        ("numbers", lambda: [by_numbers(min(options.runs, 10_000), options.repeats)]),
        ("uneven", lambda: [uneven(min(options.runs, 800))]),
        ("accelerator", lambda: [accelerator(min(options.runs, 2000))]),
        ("search", lambda: random_search(min(options.runs, 1000))),
    ):
        record[name] = part()
        print(f"\n{name}\n\n{timing.markdown(record[name])}", flush=True)
    print("\nwrote", timing.write("throughput", record, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
