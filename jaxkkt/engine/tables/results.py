"""Rows as an `xarray.Dataset`, and as a file."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from jaxkkt.engine.programs.names import CURVE, require_one_rank
from jaxkkt.engine.running.rows import ANCILLARY, Row
from jaxkkt.engine.tables.records import Entry, RowKind, entries_of
from jaxkkt.process.files import write_whole
from jaxkkt.process.garbage import uncollected
from jaxkkt.runs.columns import KINDS
from jaxkkt.training import Status

NOT_RUN = -1
# A table of all combinations of what varies may have so large a share that was not run.
MOST_NOT_RUN = 0.9

_ENGINE_ATTRIBUTES = {
    "environment": {
        "long_name": "which of the attribute `environments` the row was computed in",
        "units": "1",
    },
    "error": {"long_name": "traceback of what a run raised, empty for the others"},
    "log_loss": {
        "long_name": "natural logarithm of the loss summed over the samples, at the end",
        "units": "1",
    },
    "steps": {"long_name": "steps of training made", "units": "1"},
    "status": {
        "long_name": "how the run ended",
        "units": "1",
        **Status.flags(not_run=NOT_RUN),
    },
}
# Dimensions that a table always has, and the order of the others.
_FIRST = ("d", "alpha", "samples", "width", "seed")


@uncollected()
def to_dataset(rows: Sequence[Row], settings: Mapping[str, Any]) -> xr.Dataset:
    """`dataset` of a sweep's rows, with its settings as attributes."""
    return dataset(entries_of(rows), settings)


def dataset(entries: Sequence[Entry], settings: Mapping[str, Any]) -> xr.Dataset:
    """One variable a measurement, over d, alpha (or samples), width, seed and what else varies.

    What all runs have in common is a coordinate of one value: nothing that a run is made of is
    left out. Combinations that were not run are NaN with status -1; where they would be more than
    `MOST_NOT_RUN` of all, as of random draws, or columns do not tell all runs apart, the one
    dimension is `run`. Where a field belongs to
    some of the runs alone, the others have NaN, or "-", on its axis.
    """
    entries, environments = _environments(entries)
    of_rows = [entry.kind for entry in entries]
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(of_rows))}
    rows = _Rows(
        np.array([kinds[kind] for kind in of_rows]),
        *np.unique([entry.seed for entry in entries], return_inverse=True),
    )
    columns = [kind.columns for kind in kinds]
    names = dict.fromkeys(name for row in columns for name in row)
    values = {name: _filled([row.get(name) for row in columns]) for name in names}
    samples, by_alpha = values["samples"], all(row.get("alpha") is not None for row in columns)
    values.pop("samples" if by_alpha else "alpha", None)
    places = _on_a_grid(values, rows) or _one_by_one(values, rows)
    about: dict[str, Mapping[str, str]] = {}
    for kind in kinds:
        about.update(kind.columns_about)
    coords = {name: (*made, about.get(name, {})) for name, made in places.coords.items()}
    along: dict[str, dict[Any, Any]] = {}
    for kind in kinds:
        for axes_of in kind.axes.values():
            for dim, points in axes_of.items():
                along[dim] = along.get(dim, {}) | {_key(value): value for value in points}
    moments = _moments(kinds)
    found = _variables(entries, places, along, next(iter(moments), None))
    described = _described(kinds)
    data = {name: (*made, _attributes(name, described)) for name, made in found.items()}
    attrs = _as_text(settings) | environments  # that of the rows, whoever reads them
    named = {dim: list(some.values()) for dim, some in along.items()}
    made = xr.Dataset(data, coords | moments | named, attrs)
    if by_alpha:
        counts = np.zeros(places.shape, np.int64)
        counts[places.where] = np.array([int(count) for count in samples])[rows.kind_of]
        made["samples"] = (places.dims, counts, about.get("samples", {}))
    return made


class _Rows(NamedTuple):
    """Which kind each row is of, by its place among all kinds; all seeds, and which it has."""

    kind_of: np.ndarray
    seeds: np.ndarray
    seed_of: np.ndarray


class _Places(NamedTuple):
    """Where rows stand in a table: its dimensions and their sizes, the rows' places along each, and
    the coordinates by name, each with the dimensions that it has."""

    dims: list[str]
    shape: tuple[int, ...]
    where: tuple[np.ndarray, ...]
    coords: dict[str, tuple[Any, Any]]


def _on_a_grid(values: Mapping[str, list[Any]], rows: _Rows) -> _Places | None:
    """A dimension for each column that varies, where its values do not follow from another's. None
    where too few combinations were run, or two rows would have one place.

    `values` are those of the columns, one for each kind of rows.
    """
    first = [name for name in _FIRST if name in values or name == "seed"]
    more = [name for name, some in values.items() if _varies(some) and name not in first]
    follows = _followers(values, more)
    axes: dict[str, list[Any]] = {}
    where: tuple[np.ndarray, ...] = ()
    for name in (*first, *(name for name in more if name not in follows)):
        if name == "seed":
            axes[name], place_of = rows.seeds.tolist(), rows.seed_of
        else:
            axes[name] = sorted({_key(v): v for v in values[name]}.values(), key=_key)
            places = {_key(v): i for i, v in enumerate(axes[name])}
            place_of = np.array([places[_key(v)] for v in values[name]])[rows.kind_of]
        where += (place_of,)
    shape, count = tuple(map(len, axes.values())), len(rows.kind_of)
    if prod(shape) * (1 - MOST_NOT_RUN) > count:
        return None
    if len(np.unique(np.ravel_multi_index(where, shape))) < count:
        return None
    coords: dict[str, tuple[Any, Any]] = {name: (name, some) for name, some in axes.items()}
    for name, some in values.items():
        if name in follows:
            leader = follows[name]
            at = {_key(k): v for k, v in zip(values[leader], some, strict=True)}
            coords[name] = (leader, [at[_key(k)] for k in axes[leader]])
        elif name not in axes:
            coords[name] = ((), some[0])
    return _Places(list(axes), shape, where, coords)


def _one_by_one(values: Mapping[str, list[Any]], rows: _Rows) -> _Places:
    """The one dimension `run`."""
    count = len(rows.kind_of)
    coords: dict[str, tuple[Any, Any]] = {
        name: ("run", [some[i] for i in rows.kind_of]) if _varies(some) else ((), some[0])
        for name, some in values.items()
    }
    one_seed = len(rows.seeds) == 1
    coords["seed"] = ((), int(rows.seeds[0])) if one_seed else ("run", rows.seeds[rows.seed_of])
    return _Places(["run"], (count,), (np.arange(count),), coords)


def _described(kinds: Collection[RowKind]) -> dict[str, Mapping[str, str]]:
    """What is said of each variable; of the engine's own what its kind of training says, where all
    are of that kind."""
    found: dict[str, Mapping[str, str]] = {}
    for kind in kinds:
        found.update(kind.variables)
    said = [{name: kind.variables.get(name) for name in _ENGINE_ATTRIBUTES} for kind in kinds]
    for name, about in _ENGINE_ATTRIBUTES.items():
        if any(one[name] is None or one[name] != found[name] for one in said):
            found[name] = about
    return found


def _attributes(name: str, described: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """A variable's; those of a curve are what is said of the same at the end."""
    mine = dict(described.get(name.removeprefix(CURVE), {}))
    if name.startswith(CURVE) and ANCILLARY in mine:
        mine[ANCILLARY] = " ".join(CURVE + one for one in mine[ANCILLARY].split())
    return mine


def _followers(values: Mapping[str, list[Any]], varying: Sequence[str]) -> dict[str, str]:
    """Columns that another one decides, such as the settings of an optimizer: name -> by which.

    They are coordinates along that one, and no axes of their own.
    """
    found: dict[str, str] = {}
    for kind in KINDS:
        if kind not in varying:
            continue
        for name in varying:
            if name not in KINDS and name not in found:
                pairs = {
                    (_key(k), _key(v)) for k, v in zip(values[kind], values[name], strict=True)
                }
                if len(pairs) == len(set(map(_key, values[kind]))):
                    found[name] = kind
    return found


def _variables(
    entries: Sequence[Entry],
    places: _Places,
    along: Mapping[str, Mapping[Any, Any]],
    along_curve: str | None,
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Arrays of all values, with their dimensions: those of the runs, and of arrays more.

    Those are called what their measurement calls them, or after the variable. What it has at a
    value of a dimension stands there: other measurements, or runs, may have other values `along` a
    dimension of that name.
    """
    found: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, (rows, some) in sorted(_columns([entry.values for entry in entries]).items()):
        index = tuple(place_of[rows] for place_of in places.where)
        if name == "status":
            whole = np.full(places.shape, NOT_RUN, np.int32)
        elif name == "error":
            whole = np.full(places.shape, "", "O")
        elif all(issubclass(kind, float | int) for kind in set(map(type, some))):
            whole = np.full(places.shape, np.nan)
        else:
            at_places = zip(zip(*index, strict=True), some, strict=True)
            arrays = {place: np.asarray(value, float) for place, value in at_places}
            axes = [entries[i].kind.axes.get(name, {}) for i in rows.tolist()]
            of_curve = along_curve if name.startswith(CURVE) else None
            more, whole = _of_arrays(name, arrays, axes, places.shape, along, of_curve)
            found[name] = (*places.dims, *more), whole
            continue
        whole[index] = some
        found[name] = tuple(places.dims), whole
    return found


def _of_arrays(
    name: str,
    arrays: Mapping[Any, np.ndarray],
    axes: Sequence[Mapping[str, Sequence[Any]]],
    shape: tuple[int, ...],
    along: Mapping[str, Mapping[Any, Any]],
    along_curve: str | None,
) -> tuple[list[str], np.ndarray]:
    """Arrays by their places as one, NaN where they have nothing, and its dimensions beyond those
    of the runs. `axes` are each array's own."""
    rank = {array.ndim for array in arrays.values()}
    require_one_rank(name, rank)
    own = [max(a.shape[i] for a in arrays.values()) for i in range(rank.pop())]
    first = int(along_curve is not None)
    named: Mapping[str, Sequence[Any]] = next((one for one in reversed(axes) if one), {})
    more = list(named) or [f"{name}_{i}" for i in range(first, len(own))]
    own[first:] = [len(along.get(dim, range(own[i]))) for i, dim in enumerate(more, first)]
    places = {dim: {key: i for i, key in enumerate(along[dim])} for dim in named}
    whole: Any = np.full((*shape, *own), np.nan)
    for (place, array), mine in zip(arrays.items(), axes, strict=True):
        if not named:
            whole[(*place, *map(slice, array.shape))] = array
            continue
        mine = mine if list(mine) == list(named) else named
        at = [[places[dim][_key(value)] for value in some] for dim, some in mine.items()]
        there = [list(range(n)) for n in array.shape[:first]] + at
        cut = (some[:n] for some, n in zip(there, array.shape, strict=True))
        whole[(*place, *np.ix_(*cut))] = array
    return [*([] if along_curve is None else [along_curve]), *more], whole


def _columns(of_rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[np.ndarray, Sequence[Any]]]:
    """For every name the rows that have a value, in order, and their values."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, values in enumerate(of_rows):
        alike.setdefault(tuple(values), []).append(i)
    parts: dict[str, list[tuple[np.ndarray, Sequence[Any]]]] = {}
    for names, some in alike.items():
        columns, rows = zip(*(of_rows[i].values() for i in some), strict=True), np.array(some)
        for name, column in zip(names, columns, strict=True):
            parts.setdefault(name, []).append((rows, column))
    return {name: _in_order(some) for name, some in parts.items()}


def _in_order(
    parts: Sequence[tuple[np.ndarray, Sequence[Any]]],
) -> tuple[np.ndarray, Sequence[Any]]:
    """The parts of a column as one, by row."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([rows for rows, _ in parts])
    some = [value for _, values in parts for value in values]
    order = np.argsort(rows)
    return rows[order], [some[i] for i in order]


def _environments(entries: Sequence[Entry]) -> tuple[Sequence[Entry], dict[str, str]]:
    """Rows, and attributes that say where they were computed. Where that was in several
    environments a row has its own as a value, by its place in the attribute that lists them."""
    kinds = dict.fromkeys(entry.kind for entry in entries)
    texts = {kind: json.dumps(kind.settings, sort_keys=True) for kind in kinds}
    found = sorted(set(texts.values()))
    if len(found) == 1:
        return entries, _as_text(next(iter(kinds)).settings or {})
    places = {kind: found.index(text) for kind, text in texts.items()}
    told = [e._replace(values={**e.values, "environment": places[e.kind]}) for e in entries]
    return told, {"environments": json.dumps([json.loads(text) for text in found], indent=1)}


def _as_text(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}


def _varies(values: list[Any]) -> bool:
    """Whether a column has more than one value."""
    return values.count(values[0]) < len(values) and len(set(map(_key, values))) > 1


def _moments(kinds: Iterable[RowKind]) -> dict[str, Any]:
    """The coordinate of the curves' moments."""
    curves = {kind.moments for kind in kinds if kind.moments is not None}
    if not curves:
        return {}
    if len(curves) > 1:
        raise ValueError("the runs of a table must have the same curve: sweep them apart")
    ((name, moments),) = curves
    about = {"level": "log loss at or below which the run was measured", "step": "steps"}
    return {name: (name, list(moments), {"long_name": about[name], "units": "1"})}


def _filled(values: list[Any]) -> list[Any]:
    """A column in which every value has one type; None becomes NaN or "-"."""
    present = [v for v in values if v is not None]
    if all(isinstance(v, bool) for v in present) and len(present) == len(values):
        return values
    if any(isinstance(v, str | bool) for v in present) or not present:
        return ["-" if v is None else str(v) for v in values]
    if len(present) < len(values) or any(isinstance(v, float) for v in present):
        return [float("nan") if v is None else float(v) for v in values]
    return values


def _key(value: Any) -> Any:
    """Sorts and tells values apart, NaN last."""
    if isinstance(value, float) and value != value:
        return (1, 0.0)
    return (0, value)


def save(dataset: xr.Dataset, path: Path) -> None:
    """Writes netCDF, whole or not at all."""
    write_whole(path, as_bytes(dataset))


def as_bytes(dataset: xr.Dataset) -> bytes:
    """A dataset as netCDF: the same numbers give the same bytes.

    Not by `to_netcdf`: where a Dask client is open that asks the cluster for a lock on the bytes,
    and never gets it.
    """
    content = BytesIO()
    # A dimension's own variable comes first: what was there before would be tied to it once more.
    in_order = sorted(dataset.variables, key=lambda name: name not in dataset.dims)
    with h5netcdf.File(content, "w") as file:
        dataset[in_order].dump_to_store(H5NetCDFStore(file))
    return content.getvalue()
