"""Means of a table that leave failed runs out and say how many; combinations of its dimensions."""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxkkt.engine.running.rows import ANCILLARY
from jaxkkt.engine.tables.results import NOT_RUN
from jaxkkt.training import SUCCEEDED


def combinations(dataset: xr.Dataset, over: str | Sequence[str], name: str) -> xr.Dataset:
    """Several dimensions as one, `name`, of those combinations that were run.

    A learning rate is a dimension of its own, at which the flow, which has none, is NaN: to select
    a rate would drop it. `combinations(table, ["optimizer", "learning_rate"], "rule")` has both on
    one dimension, "flow", "sgd 0.01" and "sgd 0.1", in the order of the table: a combination is
    called by its values, but for those that its runs do not have, and by "momentum=0.9" where two
    would be called 0.9. The values themselves are coordinates along it. Raises ValueError for what
    is no dimension of the runs, for a name that the table has already, and for a table without
    `status`.
    """
    along = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    if not along:
        raise ValueError("give the dimensions that are to be one, got none")
    _require_dimensions(dataset, along)
    if name in dataset.variables:
        raise ValueError(f"the table has {name!r} already: call the new dimension something else")
    flat = dataset.stack({name: along}).reset_index(name)
    ran = flat.status.notnull() & (flat.status != NOT_RUN)
    flat = flat.isel({name: ran.any([dim for dim in ran.dims if dim != name]).values})
    values = [
        {one: v for one, v in zip(along, some, strict=True) if v == v and v != "-"}
        for some in zip(*(flat[one].values.tolist() for one in along), strict=True)
    ]
    short = [" ".join(map(told_by, mine.values())) for mine in values]
    often = Counter(short)
    long = [" ".join(f"{one}={v}" for one, v in mine.items()) for mine in values]
    told = [(b if often[a] > 1 else a) or "-" for a, b in zip(short, long, strict=True)]
    return flat.assign_coords({name: told})


def require_variable(dataset: xr.Dataset, name: str) -> None:
    """Raises ValueError unless this is a table that has the variable, told by its name."""
    if not isinstance(name, str):
        raise ValueError(f"give the name of one variable, as 'flip_size', got {name!r}")
    if not isinstance(dataset, xr.Dataset):
        raise ValueError(
            f"give the table and the name of a variable, got a {type(dataset).__name__}: statuses "
            "of runs are beside it, in the table"
        )
    if name not in dataset:
        raise ValueError(f"no variable {name!r}: choose from {sorted(map(str, dataset.data_vars))}")


def told_by(value: Any) -> str:
    """A value as text: short, and still another text for another number."""
    floating = np.issubdtype(np.asarray(value).dtype, np.floating)
    return f"{float(str(value)):.12g}" if floating else str(value)


def _require_dimensions(dataset: xr.Dataset, names: Sequence[str]) -> None:
    if "status" not in dataset:
        raise ValueError(
            "the table has no 'status', which tells the runs that failed: keep it beside what you "
            "choose, as in table[['status', 'flip_size']]"
        )
    for one in names:
        if one not in dataset.status.dims:
            there = ", ".join(map(str, dataset.status.dims))
            raise ValueError(
                f"the table has no dimension {one!r}, but {there}: "
                "where runs are no grid, group them by a coordinate first (dataset.groupby)"
            )


class Summary(NamedTuple):
    """Mean and standard deviation over the runs that count, and how many did and did not."""

    mean: xr.DataArray
    std: xr.DataArray
    used: xr.DataArray
    excluded: xr.DataArray


def summarize(dataset: xr.Dataset, name: str, over: str | Sequence[str] = "seed") -> Summary:
    """Mean and standard deviation (population, ddof = 0) of a variable over one or more dimensions.

    The standard error of the mean is `std / (used - 1) ** 0.5`.

    A run counts if it ended as its protocol meant it to (`training.SUCCEEDED`: it converged, or
    came to the edge of its ball, or adversarial training came to its end), and its value is finite;
    the others are counted as excluded. So are values of which the measurement says that they may
    be wrong: residuals and slackness where `certificate_status` is not 0. Variables that are 0
    where a value counts are named by its attribute `ancillary_variables`; of a table without them
    all values count. Raises ValueError for a table without `status`, and for a
    variable or dimension that it does not have.
    """
    require_variable(dataset, name)
    along = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    _require_dimensions(dataset, along)
    values = dataset[name]
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name!r} has no mean: it holds {values.dtype}, not numbers")
    if missing := [one for one in along if one not in values.dims]:
        raise ValueError(
            f"{name!r} does not differ along {missing[0]!r}, which it has no dimension of: it is "
            f"the same for all of these runs"
        )
    for told in values.attrs.get(ANCILLARY, "").split():
        if told in dataset:
            values = values.where(dataset[told] == 0)
    # One function of arrays: xarray's own operations would join all coordinates at every step.
    mean, std, used, excluded = xr.apply_ufunc(
        _counted,
        values,
        dataset.status,
        input_core_dims=[along, along],
        output_core_dims=[[]] * 4,
        keep_attrs=False,
        kwargs={"axes": len(along)},
    )
    about = dataset[name].attrs
    mean, std = (found.rename(name).assign_attrs(about) for found in (mean, std))
    return Summary(mean, std, used.rename(None), excluded.rename(None))


def _counted(values: np.ndarray, status: np.ndarray, axes: int) -> tuple[Any, ...]:
    """What `summarize` returns, over so many of the last axes."""
    values, status = _joined(values, axes), _joined(status, axes)
    good = np.isin(status, SUCCEEDED) & np.isfinite(values)
    used = good.sum(axis=-1)
    # NaN where xarray made room for runs that there are not, as `where` and `reindex` do.
    ran = (status != NOT_RUN) & ~np.isnan(status)
    excluded = ran.sum(axis=-1) - used
    count = np.where(used > 0, used, np.nan)
    mean = np.where(good, values, 0).sum(axis=-1) / count
    apart = np.where(good, values - mean[..., None], 0)
    return mean, np.sqrt((apart**2).sum(axis=-1) / count), used, excluded


def _joined(array: np.ndarray, axes: int) -> np.ndarray:
    """With so many of its last axes as one."""
    kept = array.ndim - axes
    return array.reshape(*array.shape[:kept], prod(array.shape[kept:]))
