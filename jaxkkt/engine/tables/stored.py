"""What a sweep has in its store: the rows that are there, those that land, the results file."""

import errno
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cache
from math import inf
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from typing import Any
from warnings import warn

import jax
import pandas as pd
import xarray as xr

from jaxkkt.engine.machine.devices import environment, written_by
from jaxkkt.engine.running.checkpoints import path_of
from jaxkkt.engine.running.rows import Row
from jaxkkt.engine.tables import results
from jaxkkt.engine.tables.records import (
    Entry,
    Known,
    entries_in,
    entries_of,
    has_spec,
    known,
    records_of,
)
from jaxkkt.networks import Params
from jaxkkt.process.files import write_whole
from jaxkkt.process.garbage import uncollected
from jaxkkt.runs.columns import MEASURE, Orders, distinct, in_order, values_of
from jaxkkt.runs.run import Run, hashes_of, names_of
from jaxkkt.store import Record, Store, differences
from jaxkkt.store.lock import WHOLE
from jaxkkt.store.store import CHECKPOINTS, RESULTS, plain

log = logging.getLogger("jaxkkt")

# The results file is written again as rows land: first after so long, and then so seldom that it
# takes no more than this share of the time.
SECONDS_BETWEEN_RESULTS = 30.0
SHARE_FOR_RESULTS = 0.02


class Stored:
    """The rows of `runs`, all of a `sweep` or a share, in a folder, and where the others land.

    Raises ValueError where the folder holds rows of other runs alone, if they have not all raised,
    or some of these with other settings that may not `mix`, and where it cannot be told what a run
    computes.
    """

    def __init__(
        self,
        folder: str | Path,
        runs: Sequence[Run],
        sweep: Sequence[Run],
        settings: Mapping[str, Any],
        mix: bool = False,
    ) -> None:
        self._store, self._runs, self._sweep = Store(folder), runs, sweep
        self._attributes, self._mix, self._environment = settings, mix, plain(environment())
        for run in distinct(sweep):
            run.identity  # noqa: B018  raises where it cannot be told
        self.rows: dict[Run, Row] = {}
        self.lacking: dict[Run, Known] = {}  # those that ended, but lack measurements
        # What the others were computed with.
        self._environments: dict[Run, Mapping[str, Any]] = {}
        self._table: xr.Dataset | None = None  # of the rows that are there
        self._read()

    @uncollected()
    def _read(self) -> None:
        self.lacking.clear()
        self._table = None
        found = self._store.landed(names_of(self._sweep), self._environment, self._mix)
        if not found:
            self._refuse_strangers()
            return
        hashes = cache(hashes_of)
        for run, name in zip(self._runs, names_of(self._runs), strict=True):
            if name not in found:
                continue
            one = known(run, hashes(run.apart_from_seed), found[name])
            computed_with = one.record.segment.about["settings"]
            if not one.lacks:
                self.rows[run] = one.row
                self._environments[run] = computed_with
            elif computed_with == self._environment:
                self.lacking[run] = one

    def drop(self, kept: Set[Run]) -> None:
        """Lets go of rows that are to be computed again: of runs that raised, and of runs to be
        `kept` whose network is not."""
        gone = [run for run, row in self.rows.items() if "error" in row.values]
        for run in kept & self.rows.keys():
            if not self._store.has_network(run.name, self.rows[run].network):
                gone.append(run)
        for run in gone:
            self.rows.pop(run, None)
        self._table = None

    @contextmanager
    def writing(self, part: str, kept: Set[Run]) -> Iterator[None]:
        """For `add`. What others wrote meanwhile is read first. The results file is written at the
        end, too, unless this process has but a part of the runs.

        Raises OSError before any work is done where the folder cannot be written, or another
        process writes there.
        """
        self._next = inf
        wanted = (run for run in self._runs if run in kept and run not in self.rows)
        self._require_room([run for run in wanted if not self._has_network(run)])
        with self._store.writing(self._environment, part, written_by=written_by()) as self._writer:
            self._read()
            self.drop(kept)
            if part != WHOLE:
                yield
                return
            self._plan_results(0)
            try:
                yield
            except BaseException:
                with suppress(Exception):  # what raised first is to be told
                    self._save_results()
                raise
            self._save_results()

    def add(self, rows: Sequence[Row]) -> None:
        """Rows land, their networks before them.

        A results file that cannot be written meanwhile is told, and is no reason to stop.
        """
        records = list(records_of(rows))
        for row, (name, _, _) in zip(rows, records, strict=True):
            if row.kept is not None:
                self._store.save_network(name, row.network, row.kept)
        self._writer.add_all(records)
        self._drop_checkpoints([row.run for row in rows])
        self._table = None
        for row in rows:
            self.rows[row.run] = row.without_network()
            self._environments.pop(row.run, None)
        if monotonic() > self._next:
            try:
                self._save_results()
            except (OSError, ValueError) as error:
                log.warning("%s is not up to date: %s", RESULTS, error)
                self._next = inf

    def _drop_checkpoints(self, runs: Sequence[Run]) -> None:
        """Lets go of those of runs whose rows have landed."""
        folder = self._store.folder / CHECKPOINTS
        if not folder.is_dir():
            return
        there = {path.name for path in folder.iterdir()}
        paths = [path for run in runs if (path := path_of(folder, run)).name in there]
        if paths:
            self._writer.sync()
        for path in paths:
            path.unlink(missing_ok=True)

    def _has_network(self, run: Run) -> bool:
        """Whether that of a run that lacks measurements is kept."""
        one = self.lacking.get(run)
        return one is not None and self._store.has_network(run.name, one.row.network)

    def _require_room(self, runs: Collection[Run]) -> None:
        """Raises OSError where the disk has no room for the networks of these runs."""
        numbers = sum((run.d + 2) * run.width for run in runs)
        needed = numbers * jax.dtypes.canonicalize_dtype(float).itemsize
        place = next(p for p in (self._store.folder, *self._store.folder.parents) if p.exists())
        free = disk_usage(place).free
        if needed > free:
            raise OSError(
                errno.ENOSPC,
                f"{len(runs)} networks take {needed / 2**20:,.1f} MiB, and {self._store.folder} "
                f"has {free / 2**20:,.1f} MiB free: keep fewer, or give another folder",
            )

    def network(self, run: Run) -> Params | None:
        """The network of a row that lacks measurements, where it was kept and is whole."""
        name, network = run.name, self.lacking[run].row.network
        if not self._store.has_network(name, network):
            return None
        try:
            return self._store.load_network(name, network)
        except ValueError as error:
            log.warning("trained again: %s", error)
            return None

    @uncollected()
    def table(self) -> xr.Dataset:
        """What has landed, in the order of the runs; ValueError where nothing has."""
        if self._table is None:
            rows = [self.rows[run] for run in self._runs if run in self.rows]
            if not rows:
                raise ValueError(
                    f"no row of these runs has landed in {self._store.folder}: sweep them there "
                    "first"
                )
            settings = [self._environments.get(row.run, self._environment) for row in rows]
            self._table = results.dataset(entries_of(rows, settings), self._attributes)
        return self._table

    def refresh_results(self, table: xr.Dataset) -> None:
        """Writes the results file of a store that had all rows, where it has another one.

        One that cannot be written is left as it is, with a warning.
        """
        path = self._store.folder / RESULTS
        content = results.as_bytes(table)
        try:
            if path.exists() and path.read_bytes() == content:
                return
            with self._store.alone():
                write_whole(path, content)
        except OSError as error:
            log.warning("%s is not of these runs, and stays so: %s", path, error)

    def _save_results(self) -> None:
        if self.rows:
            began = monotonic()
            results.save(self.table(), self._store.folder / RESULTS)
            self._plan_results(monotonic() - began)

    def _plan_results(self, seconds: float) -> None:
        """When to write them again, where that takes so long."""
        self._next = monotonic() + max(SECONDS_BETWEEN_RESULTS, seconds / SHARE_FOR_RESULTS)

    def _refuse_strangers(self) -> None:
        # Runs that raised left no result: those of a mistaken call do not bar the right one.
        records = [record for record in self._store.records() if not _raised(record)]
        if not records:
            return
        mine = [record for record in records if has_spec(record)]
        specs = {r.value["spec"]: r.segment.definitions[r.value["spec"]]["columns"] for r in mine}
        orders = Orders()
        there = _by_column([in_order(specs[s], specs[s], orders) for s in sorted(specs)])
        there["seed"] = sorted({r.value["seed"] for r in mine})
        now = values_of(self._sweep, orders)
        there["curve"] = sorted({_curve_of(r) for r in mine})
        now["curve"] = sorted({_in_words(run.to_json()["curve"]) for run in distinct(self._sweep)})
        # More values than are there bar nothing, and nor does what is measured.
        bar = [n for n in there if n != MEASURE and not {*there[n]} <= {*now.get(n, [])}]
        differing = differences({n: there[n] for n in bar}, {n: now.get(n) for n in bar})
        differing = differing or ["what own functions compute, or the numbers in own arrays"]
        raise ValueError(
            f"{self._store.folder} holds {len({r.name for r in records})} runs, and none of these. "
            "Name another folder (--out, store=). A sweep can be extended there, by all it has and "
            "more. What differs:\n  " + "\n  ".join(differing)
        )


@uncollected()
def read_store(folder: str | Path) -> xr.Dataset:
    """All rows of a store as one table, whatever versions, devices and machines wrote them.

    Needs neither the runs nor the code that they were made of, and runs nothing of it. Where rows
    were computed in several environments the variable `environment` says in which of those in the
    attribute `environments`, as JSON. Warns of rows that nothing in the table tells apart. Raises
    ValueError where there is no row.
    """
    entries = _entries(folder)
    if not entries:
        raise ValueError(f"no row has landed in {folder}")
    return results.dataset(entries, {})


@uncollected()
def read_rows(folder: str | Path) -> pd.DataFrame:
    """All rows of a store, one a run: what the run is and what was measured, by column.

    As `read_store`, but for arrays, which are lists here. `run` is what the store calls a run,
    which has several rows where it was measured in several ways, and `date` when what is in a row
    was last computed: of what was measured before and after an edit the later is the new one. Empty
    where there is no row.
    """
    return pd.DataFrame(
        [
            {**e.kind.columns, "seed": e.seed, "run": e.run, "date": e.date, **e.values}
            for e in _entries(folder)
        ]
    )


def _entries(folder: str | Path) -> list[Entry]:
    entries = entries_in(Store.existing(folder).records())
    kinds = dict.fromkeys(entry.kind for entry in entries)
    told = {kind: _told(kind.columns) for kind in kinds}
    first: dict[Any, str] = {}
    seen, alike = set[Any](), 0
    for kind, seed, _, run, _ in entries:
        measured, others = told[kind]
        # What was measured of one does not tell it from another run.
        alike += first.setdefault((others, seed), run) != run or (measured, others, seed) in seen
        seen.add((measured, others, seed))
    if alike:
        warn(
            f"{alike} of {len(entries)} rows in {folder} have the columns and the seed of another: "
            "own functions or arrays of one name, before and after an edit for instance, or runs "
            "with a curve and without. Means over them mix what they are. The table of given runs "
            "tells them apart: jk.landed(runs, store=...). Before a sweep give each function and "
            "jk.data.Arrays(..., name='mine') a name of its own, and write "
            "jk.optimizer(optax.adam, learning_rate=0.1) for optax.adam(0.1)",
            stacklevel=4,
        )
    return entries


def _told(columns: Mapping[str, Any]) -> tuple[Any, str]:
    """What columns say was measured, and all else that they say."""
    others = {name: value for name, value in columns.items() if name != MEASURE}
    return columns.get(MEASURE), json.dumps(others, sort_keys=True)


def _raised(record: Record) -> bool:
    return has_spec(record) and "error" in record.value["ending"]


def _curve_of(record: Record) -> str:
    known = record.segment.definitions
    parts = known[record.value["spec"]].get("is", {})
    return _in_words(known.get(parts.get("curve")))


def _in_words(curve: Mapping[str, Any] | None) -> str:
    """A curve's JSON, without the kind of it."""
    if curve is None:
        return "none"
    return ", ".join(f"{name} {value}" for name, value in curve.items() if name != "kind" and value)


def _by_column(columns: Collection[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, dict[Any, None]] = {}
    for row in columns:
        for name, value in row.items():
            values.setdefault(name, {})[value] = None
    return {name: list(some) for name, some in values.items()}
