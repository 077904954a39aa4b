"""A sweep: runs of mixed shapes in, an `xarray.Dataset` of their measurements out."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from warnings import warn

import jax
import jax.numpy as jnp
import xarray as xr

from jaxkkt.engine import results
from jaxkkt.engine.buckets import Bucket, padding_share, plan, streams
from jaxkkt.engine.devices import devices, environment
from jaxkkt.engine.executors import Executor, run_tasks
from jaxkkt.engine.lanes import Row, Tally, together
from jaxkkt.engine.progress import Meter
from jaxkkt.engine.specs import Run, unique
from jaxkkt.engine.store import Store
from jaxkkt.engine.streams import run_streams
from jaxkkt.measurements import Measurement, certificates, flips
from jaxkkt.networks import PRECISION
from jaxkkt.protocols import Protocol, flow_protocol


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: its buckets and their cost."""

    buckets: tuple[Bucket, ...]
    expected_steps: int
    streams: int

    @property
    def runs(self) -> int:
        return sum(len(b.runs) for b in self.buckets)

    @property
    def flops(self) -> float:
        """Expected operations of all matrix products, padding included."""
        return float(self.expected_steps * sum(b.step_flops for b in self.buckets))

    @property
    def bytes(self) -> int:
        """Memory of the largest bucket's lanes, in all streams."""
        return self.streams * max(b.bytes for b in self.buckets)

    def describe(self) -> str:
        lines = [b.describe() for b in self.buckets]
        return "\n".join(
            [
                *lines,
                f"{self.runs} runs in {len(self.buckets)} buckets, streams: {self.streams}, "
                f"{padding_share(self.buckets):.1%} of the work is padding",
                f"about {self.flops:.1e} FLOP in matrix products at {self.expected_steps} steps "
                f"a run, {self.bytes / 2**20:,.0f} MiB in lanes",
            ]
        )

    def minutes(self) -> float:
        """Expected minutes of training here, if steps run at half the rate of large products."""
        return self.flops / (0.5 * product_rate()) / 60


def product_rate(size: int = 1024, repeats: int = 5) -> float:
    """FLOP/s of this machine's square float32 products through JAX: what a sweep can hope for."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(partial(jnp.dot, precision=PRECISION))
    product(a, a).block_until_ready()
    seconds = []
    for _ in range(repeats):
        started = perf_counter()
        product(a, a).block_until_ready()
        seconds.append(perf_counter() - started)
    return 2 * size**3 / median(seconds)


def plan_sweep(runs: Sequence[Run], protocol: Protocol | None = None) -> Plan:
    """The buckets and cost of a sweep, without running it."""
    protocol = flow_protocol() if protocol is None else protocol
    used = devices()
    buckets = plan(unique(runs), protocol, used[0].platform, len(used))
    return Plan(tuple(buckets), protocol.expected_steps, streams(buckets, used))


def sweep(
    runs: Sequence[Run],
    protocol: Protocol | None = None,
    measurements: Sequence[Measurement] | None = None,
    store: str | Path | None = None,
    progress: bool = True,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Trains and measures every run, and returns the rows over d, alpha, width, seed, ...

    The protocol is `flow_protocol()` by default, the measurements `flips()` and `certificates()`.
    The loss is each run's own, whatever the protocol's. With a `store` folder rows land there as
    runs end, the dataset is saved as `results.nc`, and the same call again goes on where it was
    stopped, with the same bits; ValueError if the folder holds a sweep with other settings.
    The dataset's attributes hold the settings and versions. `progress` shows a bar, and at the end
    how the time was spent.

    Runs train on all of this process's devices, or on that of a `with jax.default_device(...)`.
    With an `executor` they train in its workers instead, to the same bits, and land here a task at
    a time: anything with the `submit` of `concurrent.futures` will do, such as a pool of spawned
    processes or Dask's `Client.get_executor()`. A worker must see the same kind of device as this
    process does, and takes all that it sees: give each its own cores or accelerator, and one task
    at a time. The `store` belongs to this process alone.
    """
    protocol, measurements = _defaults(protocol, measurements)
    wanted = unique(runs)
    if len(wanted) < len(runs):
        warn(f"{len(runs) - len(wanted)} runs were given twice and run once", stacklevel=2)
    planned = plan_sweep(wanted, protocol)
    settings = _settings(planned, wanted, protocol, measurements)
    saved = Store(store, settings) if store is not None else None
    rows: dict[Run, Row] = {}
    if saved is not None:
        saved.tidy()
        rows = _rows(saved, wanted)

    weights = {run: b.padded_work / len(b.runs) for b in planned.buckets for run in b.runs}
    tallies = [Tally() for _ in range(planned.streams if executor is None else 0)]

    def done() -> float:
        return sum(weights[run] for run in rows)

    def show() -> None:
        meter.show(together(tallies), len(rows), done())

    what = planned.buckets, rows.keys(), protocol, measurements, tallies
    if executor is None:
        found = run_streams(*what, devices(), show)
    else:
        found = run_tasks(executor, *what, show)
    started, before = perf_counter(), len(rows)
    meter = Meter(len(wanted), sum(weights.values()), done(), progress)
    with closing(meter), closing(found):
        show()
        for row in found:
            rows[row.run] = row
            if saved is not None:
                saved.save(row.run.name, row.values)
    if progress:
        total, seconds = together(tallies), perf_counter() - started
        spent = f"tasks: {len(tallies)}"
        if executor is None:
            each = total.run_seconds / planned.streams
            spent = f"streams: {planned.streams}, each trained for {each:.1f} s"
        print(
            f"{len(rows) - before} runs in {seconds:.1f} s ({spent}); "
            f"{total.useful_share():.1%} of lane-steps useful, "
            f"{padding_share(planned.buckets):.1%} of the work padding",
            file=sys.stderr,
        )
    dataset = _dataset((rows[run] for run in wanted), measurements, settings)
    if saved is not None:
        results.save(dataset, saved.folder / "results.nc")
    return dataset


def landed(
    runs: Sequence[Run],
    protocol: Protocol | None = None,
    measurements: Sequence[Measurement] | None = None,
    *,
    store: str | Path,
) -> xr.Dataset:
    """The rows that a sweep with these arguments has in `store` so far; trains nothing.

    The sweep may be running meanwhile.

    Raises ValueError where the folder holds a sweep with other settings, or no row.
    """
    protocol, measurements = _defaults(protocol, measurements)
    wanted = unique(runs)
    settings = _settings(plan_sweep(wanted, protocol), wanted, protocol, measurements)
    begun = (Path(store) / "settings.json").is_file()
    rows = _rows(Store(store, settings), wanted) if begun else {}
    if not rows:
        raise ValueError(f"no row has landed in {store}: start the sweep with that folder first")
    return _dataset((rows[run] for run in wanted if run in rows), measurements, settings)


def _rows(store: Store, runs: Sequence[Run]) -> dict[Run, Row]:
    found = store.load(run.name for run in runs)
    return {run: Row(run, found[run.name]) for run in runs if run.name in found}


def _defaults(
    protocol: Protocol | None, measurements: Sequence[Measurement] | None
) -> tuple[Protocol, list[Measurement]]:
    return (
        flow_protocol() if protocol is None else protocol,
        [flips(), certificates()] if measurements is None else list(measurements),
    )


def _dataset(
    rows: Iterable[Row], measurements: Sequence[Measurement], settings: Mapping[str, Any]
) -> xr.Dataset:
    attributes = {name: a for m in measurements for name, a in m.attributes.items()}
    return results.to_dataset(rows, attributes, settings)


def _settings(
    planned: Plan, runs: Sequence[Run], protocol: Protocol, measurements: Sequence[Measurement]
) -> Mapping[str, Any]:
    """Everything that a row's bits depend on, and the runs."""
    lanes = {
        f"{b.representation} m{b.samples} d{b.d} k{b.width} {b.loss}": b.lanes
        for b in planned.buckets
    }
    return {
        "protocol": {
            name: getattr(protocol, name)
            for name in (
                "name",
                "batch_size",
                "target_log_loss",
                "max_steps",
                "trained",
                "ball",
                "representation",
            )
        },
        "measurements": [m.name for m in measurements],
        **environment(),
        "lanes": lanes,
        "runs": [run.name for run in runs],
    }
