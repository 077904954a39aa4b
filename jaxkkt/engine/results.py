"""Rows as an `xarray.Dataset`, and the means that leave failed runs out and say how many."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxkkt.engine.lanes import Row
from jaxkkt.files import write_whole
from jaxkkt.training import SUCCEEDED, Status

ALWAYS = ("d", "alpha", "width", "seed")
NOT_RUN = -1

_TRAINING_ATTRIBUTES = {
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
_COORDINATE_ATTRIBUTES = {
    "d": {"long_name": "input dimension", "units": "1"},
    "alpha": {"long_name": "sample exponent, m = round(d^alpha)", "units": "1"},
    "samples": {"long_name": "samples m", "units": "1"},
    "width": {"long_name": "width k", "units": "neurons"},
    "seed": {"long_name": "seed of data and initial weights", "units": "1"},
}


def to_dataset(
    rows: Iterable[Row],
    attributes: Mapping[str, Mapping[str, str]],
    settings: Mapping[str, Any],
) -> xr.Dataset:
    """One variable a measurement, over d, alpha (or samples), width, seed and what else varies.

    Combinations that were not run are NaN with status -1.
    """
    rows = list(rows)
    fields = [row.run.fields() for row in rows]
    counted = "samples" if any(f["alpha"] is None for f in fields) else "alpha"
    axes = {
        name: sorted({f[name] for f in fields})
        for name in fields[0]
        if name in ("d", counted, "width", "seed")
        or (name not in ("alpha", "samples") and len({f[name] for f in fields}) > 1)
    }
    shape = tuple(len(values) for values in axes.values())
    names = sorted({name for row in rows for name in row.values})
    arrays = {
        name: np.full(shape, NOT_RUN, np.int32) if name == "status" else np.full(shape, np.nan)
        for name in names
    }
    samples = np.zeros(shape, np.int64)
    places = {name: {v: i for i, v in enumerate(values)} for name, values in axes.items()}
    for row, field in zip(rows, fields, strict=True):
        place = tuple(places[name][field[name]] for name in axes)
        samples[place] = row.run.samples
        for name, value in row.values.items():
            arrays[name][place] = value
    described = {**_TRAINING_ATTRIBUTES, **attributes}
    dataset = xr.Dataset(
        {name: (tuple(axes), arrays[name], dict(described.get(name, {}))) for name in names},
        coords={
            name: (name, values, _COORDINATE_ATTRIBUTES.get(name, {}))
            for name, values in axes.items()
        },
        attrs={name: str(value) for name, value in settings.items() if name != "runs"},
    )
    if counted == "alpha":
        dataset["samples"] = (tuple(axes), samples, _COORDINATE_ATTRIBUTES["samples"])
    return dataset


def save(dataset: xr.Dataset, path: Path) -> None:
    """Writes netCDF, whole or not at all."""
    write_whole(path, bytes(dataset.to_netcdf(engine="h5netcdf")))


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
    ran = dataset.status != NOT_RUN
    good = dataset.status.isin(SUCCEEDED) & np.isfinite(dataset[name])
    values = dataset[name].where(good)
    used = good.sum(over)
    return Summary(values.mean(over), values.std(over), used, ran.sum(over) - used)
