"""A sweep: runs of mixed shapes in, an `xarray.Dataset` of their measurements out."""

import logging
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from numbers import Real
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal
from warnings import warn

import jax
import jax.numpy as jnp
import xarray as xr

from jaxkkt.engine.machine.devices import alone, devices, environment, refuse_debugging
from jaxkkt.engine.machine.packing import require_numbers_held
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.lane_counts import streams
from jaxkkt.engine.planning.plan import padding_share, plan
from jaxkkt.engine.planning.shards import Shard, share
from jaxkkt.engine.programs.draws import require_what_is_asked
from jaxkkt.engine.programs.names import require_free_names
from jaxkkt.engine.programs.returned import names_in
from jaxkkt.engine.remeasuring import remeasured
from jaxkkt.engine.running.executors import Executor, run_tasks
from jaxkkt.engine.running.interrupts import Request, Stopped, listening
from jaxkkt.engine.running.progress import Meter
from jaxkkt.engine.running.rows import Row, failed, give_up, in_doubt
from jaxkkt.engine.running.streams import run_streams
from jaxkkt.engine.running.tally import Tally, together
from jaxkkt.engine.tables import results
from jaxkkt.engine.tables.stored import Stored
from jaxkkt.networks import PRECISION, Params
from jaxkkt.process.garbage import seldom_collected, uncollected
from jaxkkt.runs.columns import distinct, values_of
from jaxkkt.runs.run import Run, refuse_changed, unique
from jaxkkt.store import Store
from jaxkkt.store.lock import WHOLE
from jaxkkt.store.store import CHECKPOINTS

log = logging.getLogger("jaxkkt")

Keep = Literal["params"] | Iterable[Run] | None

# A sweep gives up where so many runs, of so many seeds, have raised and none has come to its end;
# or so many more, of whatever seeds.
RAISED_AT_MOST, SEEDS, RAISED_OF_ONE_SEED = 3, 2, 10


@dataclass(frozen=True)
class Plan:
    """What a sweep would do: its buckets, their cost, and which runs its store has already."""

    buckets: tuple[Bucket, ...]
    streams: int
    there: frozenset[Run] = frozenset()

    @property
    def runs(self) -> int:
        return sum(len(b.runs) for b in self.buckets)

    @property
    def flops(self) -> float:
        """Expected operations of all matrix products, padding included."""
        return float(sum(b.guessed_steps * b.step_flops for b in self.buckets))

    @property
    def flops_left(self) -> float:
        """Those of the runs that the store does not have, as a share of their bucket's."""
        shares = [1 - len(self.there.intersection(b.runs)) / len(b.runs) for b in self.buckets]
        each = zip(self.buckets, shares, strict=True)
        return float(sum(share * b.guessed_steps * b.step_flops for b, share in each))

    @property
    def bytes(self) -> int:
        """Memory of the largest bucket's lanes, in all streams."""
        return self.streams * max(b.bytes for b in self.buckets)

    def __str__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        lines = [b.describe() for b in self.buckets]
        steps = sum(b.guessed_steps * len(b.runs) for b in self.buckets) / self.runs
        trained = sum(len(b.trajectories) for b in self.buckets)
        told = "" if trained == self.runs else f" on {trained} trajectories"
        left = f"{len(self.there)} of the {self.runs} runs are in the store already"
        return "\n".join(
            [
                *lines,
                f"{self.runs} runs{told} in {len(self.buckets)} buckets, streams: {self.streams}, "
                f"{padding_share(self.buckets):.1%} of the work is padding",
                f"about {self.flops:.1e} FLOP in matrix products at {steps:,.0f} steps "
                f"each, {self.bytes / 2**20:,.0f} MiB in lanes",
                *([left] if self.there else []),
            ]
        )

    def minutes(self) -> float:
        """Expected minutes of training here, of the runs that the store does not have, if steps run
        at half the rate of large products."""
        return self.flops_left / (0.5 * product_rate()) / 60


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


def plan_sweep(runs: Sequence[Run], store: str | Path | None = None, mix: bool = False) -> Plan:
    """The buckets and cost of a sweep, without running it; with a `store`, of what is left to do.

    The arguments are those of `sweep`. A run whose row lacks a measurement counts as left.

    Raises ValueError where two measurements of a run return the same name, where a measurement, an
    array's dimension or a field has one that the table needs for something else, where a
    measurement returns a number for some runs and an array for others or asks for held-out points
    or a truth that the data do not have, where runs have curves of other moments, and where a sweep
    could not go on in this `store`. Of what measurements return at other sizes it looks at the
    smallest, the largest, and those with a size of 1; and it knows nothing of what those return
    that run `on_host`.
    """
    wanted = unique(runs)
    planned = _plan(wanted)
    if store is None:
        return planned
    stored = Stored(store, wanted, wanted, _settings(planned, wanted), mix)
    stored.drop(set())  # runs that raised are tried again
    return replace(planned, there=frozenset(stored.rows))


@uncollected()
def _plan(wanted: Sequence[Run]) -> Plan:
    used = devices()
    buckets = plan(wanted, used)
    for b in buckets:
        for run in b.one_of_each:
            require_what_is_asked(run)
    for run in distinct(wanted):
        curve = () if run.curve is None else run.curve.measure
        for spec in (run.data, run.initialization, run.protocol, *run.measure, *curve):
            if not getattr(spec, "on_host", False):
                require_numbers_held(spec)
    require_free_names(wanted, names_in(buckets))
    if len({(run.curve.dimension, run.curve.moments) for run in wanted if run.curve}) > 1:
        raise ValueError("the runs of a table must have the same curve: sweep them apart")
    return Plan(tuple(buckets), streams(buckets, used))


def sweep(
    runs: Sequence[Run],
    store: str | Path | None = None,
    keep: Keep = None,
    progress: bool | None = None,
    executor: Executor | None = None,
    patience: float = inf,
    shard: Shard | None = None,
    mix: bool = False,
) -> xr.Dataset:
    """Trains and measures every run, and returns the rows over d, alpha, width, seed, ...

    Runs come from `grid`: what varies among them is a dimension, what they have in common a
    coordinate of one value. Where few of all combinations were run, as of random draws, the table
    has one row a run, along `run`.

    With a `store` folder rows land there as runs end, and the dataset is saved as `results.nc`, now
    and then and at the end. The same call again goes on where it was stopped, with the same bits.
    Other runs beside those that are there, and other measurements of these, extend it: what is
    missing is computed. ValueError if the folder holds other runs alone, or rows computed with
    other versions, devices or flags, unless they may `mix`: then the results say which is which.
    `keep="params"` keeps the trained network of every run in the store, and a list of runs those of
    these: `jk.load_network(store, run)` reads them back, the very numbers that were measured.
    `shard=(3, 16)` takes the third of sixteen equal shares of the runs alone, and returns what it
    has; runs that share a trajectory stay together where there are enough. Sixteen processes can so
    share a store; the call without `shard` then gives all. In a program under `jax.distributed`
    each process takes its share by itself.

    ValueError, too, where an own function computes something else than when it was first used in
    this process, since it reads a global that has changed or draws numbers by NumPy.

    A run whose data or measurements raise has the status RAISED and its traceback in `error`; the
    others go on, and the same call tries it again. Where three of two
    seeds have raised, or ten, and none has come to its end the first error is raised.
    Ctrl-C and SIGTERM stop it after the chunk of steps under way, with what has ended saved, by
    `Stopped`, a KeyboardInterrupt; a second one at once.
    `progress` shows a bar; by default in a terminal or notebook, and a line of logging now and then
    where there is none.

    Runs by a linear optimizer that differ in nothing but `target_log_loss`, `max_steps`, `ball` and
    what is measured at the end share a trajectory: each goes on from where one that stops no later
    ended, to the bits that it has when it trains from its start.

    Runs train on all of this process's devices, or on that of a `with jax.default_device(...)`.
    With an `executor` they train in its workers instead, to the same bits, and land here a task at
    a time: `jk.Workers(4)`, processes of this machine of which any may die, Dask's
    `Client.get_executor()`, or anything else with the `submit` of `concurrent.futures`. A worker
    must see the same kind of device as this process does, and takes all that it sees: give each its
    own cores or accelerator, and one task at a time. Only this process writes to the `store`. A run
    that kills its worker again and again is RAISED. TimeoutError where for `patience` seconds no
    task has ended: executors do not tell when all their workers are gone.
    """
    wanted = unique(runs)
    _require_executor(executor, patience)
    refuse_debugging()
    # Own functions may go to another folder.
    store = None if store is None else Store(store).folder.absolute()
    if len(wanted) < len(runs):
        warn(f"{len(runs) - len(wanted)} runs were given twice and run once", stacklevel=2)
    refuse_changed(wanted, stored=store is not None)
    kept = _kept(wanted, keep, store)
    planned = _plan(wanted)
    settings = _settings(planned, wanted)
    buckets, mine, part = share(planned.buckets, wanted, shard)
    stored = Stored(store, mine, wanted, settings, mix) if store is not None else None
    if stored is not None:
        stored.drop(kept)
    rows: dict[Run, Row] = {} if stored is None else stored.rows

    weights: dict[Run, float] = {}
    for b in buckets:
        weights |= dict.fromkeys(b.runs, b.padded_work / len(b.runs))
    tallies = [Tally() for _ in range(planned.streams if executor is None else 0)]

    def show() -> None:
        meter.show(together(tallies), len(rows), work, stop.is_set())
        collect()

    saved = None if store is None else store / CHECKPOINTS

    def train(stop: Request) -> Generator[list[Row], None, None]:
        if executor is None:
            used = devices()
            return run_streams(buckets, rows.keys(), tallies, used, show, kept, stop, saved)
        return run_tasks(executor, buckets, rows.keys(), tallies, show, kept, stop, patience, saved)

    started, before = perf_counter(), len(rows)
    work = sum(weights[run] for run in rows)  # done
    seeds = min(SEEDS, len({run.seed for run in mine}))
    meter = Meter(len(mine), sum(weights.values()), work, progress)
    with ExitStack() as stack:
        stack.enter_context(closing(meter))
        stop = stack.enter_context(listening())
        stack.enter_context(alone())
        collect = stack.enter_context(seldom_collected())
        if stored is not None and len(rows) < len(mine):
            stack.enter_context(stored.writing(part, kept))
            with closing(remeasured(stored.lacking, stored.network, buckets, stop)) as found:
                for some in found:
                    stored.add(some)
                    collect()
            work = sum(weights[run] for run in rows)
        show()
        for some in stack.enter_context(closing(train(stop))):
            if stored is not None:
                stored.add(some)
            else:
                rows.update((row.run, row) for row in some)
            work += sum(weights[row.run] for row in some)
            give_up(rows.values(), RAISED_AT_MOST, seeds)
            give_up(rows.values(), RAISED_OF_ONE_SEED)
    _require_all_ended(rows, mine, stop, store)
    if len(rows) > before and progress is not False:
        seconds = perf_counter() - started
        meter.say(_told(len(rows) - before, seconds, tallies, executor is None, buckets))
    give_up(rows.values(), 1)
    ended = [rows[run] for run in mine]
    for told in (*failed(ended), *in_doubt(ended)):
        log.warning(told)
    if stored is None:
        return results.to_dataset(ended, settings)
    table = stored.table()
    if len(rows) == before and part == WHOLE:
        stored.refresh_results(table)
    return table


def _require_executor(executor: Any, patience: float) -> None:
    if not isinstance(patience, Real) or not patience > 0:
        raise ValueError(f"patience must be a positive number of seconds, got {patience!r}")
    if executor is not None and (isinstance(executor, type) or not hasattr(executor, "submit")):
        raise ValueError(
            "executor must have the `submit` of concurrent.futures, such as `workers` in "
            f"`with jk.Workers(4) as workers`, got {executor!r}"
        )


def _require_all_ended(
    rows: Collection[Run], wanted: Collection[Run], stop: Request, store: Path | None
) -> None:
    """Raises Stopped where a sweep was asked to stop, RuntimeError where it ended early unasked."""
    if len(rows) >= len(wanted):
        return
    count = f"{len(rows)} of {len(wanted)} runs"
    if stop.is_set():
        where = "nothing is kept" if store is None else f"the same call goes on from {store}"
        raise Stopped(f"stopped after {count}; {where}", stop.number)
    raise RuntimeError(
        f"only {count} have ended, and nobody asked to stop: is the executor closed?"
    )


def _told(
    count: int, seconds: float, tallies: Sequence[Tally], here: bool, buckets: Sequence[Bucket]
) -> str:
    """What a sweep has done: in streams of this process, or in tasks of others."""
    total = together(tallies)
    each = total.run_seconds / max(1, len(tallies))
    spent = f"streams: {len(tallies)}, each trained for {each:.1f} s"
    if not here:
        spent = f"tasks: {len(tallies)}"
    return (
        f"{count} runs in {seconds:.1f} s ({spent}); {total.useful_share():.1%} of lane-steps "
        f"useful, {padding_share(buckets):.1%} of the work padding"
    )


def landed(runs: Sequence[Run], *, store: str | Path, mix: bool = False) -> xr.Dataset:
    """The rows that a sweep of these runs has in `store` so far; trains nothing.

    The sweep may be running meanwhile. Raises ValueError where the folder holds none of them, or
    some with other settings that may not `mix`. `read_store` reads whatever is there.
    """
    wanted = unique(runs)
    return Stored(store, wanted, wanted, _settings(_plan(wanted), wanted), mix).table()


def load_network(store: str | Path, run: Run) -> Params:
    """The trained network of a run, kept by `sweep(..., keep=...)`: exactly what was measured.

    Raises ValueError where the store has none of this run. It looks through the whole folder: for
    many runs take `load_networks`.
    """
    if not isinstance(run, Run):
        raise ValueError(f"load_network takes one jk.Run of those of the sweep, got {run!r:.80}")
    return next(load_networks(store, [run]))


def load_networks(store: str | Path, runs: Sequence[Run]) -> Iterator[Params]:
    """The trained networks of runs, as `load_network` each, read as they are asked for:
    `for run, params in zip(runs, jk.load_networks(store, runs))`.

    Raises ValueError at once where the store lacks one.
    """
    runs = runs if isinstance(runs, Run) else list(runs)
    strange = [runs] if isinstance(runs, Run) else [r for r in runs if not isinstance(r, Run)]
    if strange:
        told = f"load_networks takes a list of jk.Run of those of the sweep, got {strange[0]!r:.80}"
        raise ValueError(told)
    return Store.existing(store).load_networks([run.name for run in runs])


def _kept(runs: Sequence[Run], keep: Keep, store: Any) -> set[Run]:
    if keep is None:
        return set()
    if store is None:
        raise ValueError("networks are kept in a store: give its folder, store='out'")
    if isinstance(keep, str) and keep == "params":
        return set(runs)
    if isinstance(keep, str | Run) or not isinstance(keep, Iterable):
        raise ValueError(f"keep must be 'params', or a list of the runs to keep, got {keep!r:.80}")
    kept = set(keep)
    unknown = kept - set(runs)
    if unknown:
        raise ValueError(f"keep names {len(unknown)} runs that are not among those of the sweep")
    return kept


def _settings(planned: Plan, runs: Sequence[Run]) -> Mapping[str, Any]:
    """What a table says of how its rows were computed."""
    lanes = {b.computed_as: b.lanes for b in planned.buckets}
    fields = values_of(runs)
    return {**environment(), "fields": fields, "lanes": lanes}
