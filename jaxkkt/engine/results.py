"""Rows as an `xarray.Dataset`, and the means that leave failed runs out and say how many."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from jaxkkt.engine.lanes import Row
from jaxkkt.engine.measuring import CURVE
from jaxkkt.files import write_whole
from jaxkkt.measurements import Measurement
from jaxkkt.runs.run import KINDS, fields_of
from jaxkkt.training import SUCCEEDED, Status

NOT_RUN = -1

_TRAINING_ATTRIBUTES = {
    "error": {"long_name": "traceback of what a run raised, empty for the others"},
    "log_loss": {
        "long_name": "natural logarithm of the loss summed over the samples, at the end",
        "units": "1",
    },
    "steps": {"long_name": "updates made (one gradient each)", "units": "1"},
    "status": {
        "long_name": "how the run ended",
        "units": "1",
        "flag_values": ", ".join(str(value) for value in (NOT_RUN, *Status)),
        "flag_meanings": " ".join(("not_run", *(s.name.lower() for s in Status))),
    },
}
# Dimensions that a table always has, and the order of the others.
_FIRST = ("d", "alpha", "samples", "width", "seed")


def to_dataset(rows: Sequence[Row], settings: Mapping[str, Any]) -> xr.Dataset:
    """One variable a measurement, over d, alpha (or samples), width, seed and what else varies.

    What all runs have in common is a coordinate of one value: nothing that a run is made of is
    left out. Combinations that were not run are NaN with status -1. Where a field belongs to some
    of the runs alone, the others have NaN, or "-", on its axis.
    """
    columns, about = fields_of([row.run for row in rows])
    names = dict.fromkeys(name for row in columns for name in row)
    counted = "samples" if any(row.get("alpha") is None for row in columns) else "alpha"
    values = {name: _filled([row.get(name) for row in columns]) for name in names}
    if counted == "alpha":
        del values["samples"]
    else:
        values.pop("alpha", None)
    varies = {name: len(set(map(_key, some))) > 1 for name, some in values.items()}
    always = ("d", counted, "width", "seed")
    dims = [name for name in _FIRST if name in always]
    more = [name for name in values if varies[name] and name not in dims]
    follows = _followers(values, more)
    dims += [name for name in more if name not in follows]
    axes = {name: sorted({_key(v): v for v in values[name]}.values(), key=_key) for name in dims}
    places = {name: {_key(v): i for i, v in enumerate(axes[name])} for name in dims}
    where = [tuple(places[name][_key(values[name][i])] for name in dims) for i in range(len(rows))]
    shape = tuple(map(len, axes.values()))
    described: dict[str, Mapping[str, str]] = dict(_TRAINING_ATTRIBUTES)
    own: dict[str, Mapping[str, Sequence[Any]]] = {}
    for one in {m for row in rows for m in _measured(row)}:
        described.update(one.attributes())
        own.update(one.axes())
    data = _variables(rows, where, shape, dims, own)
    for name, (over, array, _) in data.items():
        data[name] = (over, array, dict(described.get(name.removeprefix(CURVE), {})))
    coords: dict[str, Any] = {
        name: (name, some, about.get(name, {})) for name, some in axes.items()
    }
    for name, some in values.items():
        if name in follows:
            kind = follows[name]
            at = {_key(k): v for k, v in zip(values[kind], some, strict=True)}
            coords[name] = (kind, [at[_key(k)] for k in axes[kind]], about.get(name, {}))
        elif name not in axes:
            coords[name] = ((), some[0], about.get(name, {}))
    attrs = {name: str(value) for name, value in settings.items() if name != "runs"}
    along = {name: list(some) for axes_of in own.values() for name, some in axes_of.items()}
    dataset = xr.Dataset(data, coords | _moments(rows) | along, attrs)
    if counted == "alpha":
        samples = np.zeros(shape, np.int64)
        for place, row in zip(where, rows, strict=True):
            samples[place] = row.run.samples
        dataset["samples"] = (dims, samples, about.get("samples", {}))
    return dataset


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
    rows: Sequence[Row],
    where: list[tuple[int, ...]],
    shape: tuple[int, ...],
    dims: list[str],
    axes: Mapping[str, Mapping[str, Sequence[Any]]],
) -> dict[str, Any]:
    """Arrays of all values: numbers over the runs' dimensions, arrays over dimensions more.

    Those are called what `axes` calls them, or after the variable.
    """
    found: dict[str, Any] = {}
    for name in sorted({name for row in rows for name in row.values}):
        if name == "status":
            statuses = np.full(shape, NOT_RUN, np.int32)
            for place, row in zip(where, rows, strict=True):
                statuses[place] = row.values[name]
            found[name] = (tuple(dims), statuses, {})
            continue
        if name == "error":
            told = np.full(shape, "", object)
            for place, row in zip(where, rows, strict=True):
                told[place] = row.values.get(name, "")
            found[name] = (tuple(dims), told, {})
            continue
        arrays = {
            place: np.asarray(row.values[name], float)
            for place, row in zip(where, rows, strict=True)
            if name in row.values
        }
        rank = {array.ndim for array in arrays.values()}
        if len(rank) > 1:
            raise ValueError(
                f"{name} is a number for some runs and an array for others: it must be one for all"
            )
        own = tuple(max(a.shape[i] for a in arrays.values()) for i in range(rank.pop()))
        whole: Any = np.full((*shape, *own), np.nan)
        for place, array in arrays.items():
            whole[(*place, *map(slice, array.shape))] = array
        named = axes.get(name.removeprefix(CURVE), {})
        more = tuple(named) or tuple(f"{name}_{i}" for i in range(len(own)))
        curve = next((row.run.curve for row in rows if row.run.curve is not None), None)
        if curve is not None and name.startswith(CURVE):
            more = (curve.dimension, *(named or more[1:]))
        found[name] = ((*dims, *more), whole, {})
    return found


def _measured(row: Row) -> tuple[Measurement, ...]:
    return row.run.measure + (() if row.run.curve is None else row.run.curve.measure)


def _moments(rows: Sequence[Row]) -> dict[str, Any]:
    """The coordinate of the curves' moments."""
    curves = {row.run.curve.moments: row.run.curve for row in rows if row.run.curve is not None}
    if not curves:
        return {}
    if len(curves) > 1:
        raise ValueError("the runs of a table must have the same curve: sweep them apart")
    (curve,) = curves.values()
    about = {"level": "log loss at or below which the run was measured", "step": "steps"}
    name = curve.dimension
    return {name: (name, list(curve.moments), {"long_name": about[name], "units": "1"})}


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
    """Writes netCDF, whole or not at all.

    Not by `to_netcdf`: where a Dask client is open that asks the cluster for a lock on the bytes,
    and never gets it.
    """
    content = BytesIO()
    with h5netcdf.File(content, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
    write_whole(path, content.getvalue())


class Summary(NamedTuple):
    """Mean and standard deviation over the runs that count, and how many did and did not."""

    mean: xr.DataArray
    std: xr.DataArray
    used: xr.DataArray
    excluded: xr.DataArray


def summarize(dataset: xr.Dataset, name: str, over: str = "seed") -> Summary:
    """Mean and standard deviation (population, ddof = 0) of a variable over `over`.

    A run counts if it ended as its protocol meant it to, by converging or at the edge of its ball,
    and its value is finite; the others are counted as excluded.
    """
    if name not in dataset:
        raise ValueError(f"no variable {name!r}: choose from {sorted(map(str, dataset.data_vars))}")
    # One function of arrays: xarray's own operations would join all coordinates at every step.
    mean, std, used, excluded = xr.apply_ufunc(
        _counted,
        dataset[name],
        dataset.status,
        input_core_dims=[[over], [over]],
        output_core_dims=[[]] * 4,
        keep_attrs=False,
    )
    about = dataset[name].attrs
    mean, std = (found.rename(name).assign_attrs(about) for found in (mean, std))
    return Summary(mean, std, used.rename(None), excluded.rename(None))


def _counted(values: np.ndarray, status: np.ndarray) -> tuple[Any, ...]:
    """What `summarize` returns, over the last axis."""
    good = np.isin(status, SUCCEEDED) & np.isfinite(values)
    used = good.sum(axis=-1)
    excluded = (status != NOT_RUN).sum(axis=-1) - used
    count = np.where(used > 0, used, np.nan)
    mean = np.where(good, values, 0).sum(axis=-1) / count
    apart = np.where(good, values - mean[..., None], 0)
    return mean, np.sqrt((apart**2).sum(axis=-1) / count), used, excluded
