"""Figures from results: every function draws on an `ax` that is given and returns it."""

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

from jaxkkt.engine.tables.results import NOT_RUN
from jaxkkt.engine.tables.summaries import require_variable, summarize, told_by

STYLE = Path(__file__).with_name("paper.mplstyle")
# Labels of a logarithmic axis are at least so far from each other, as a share of its length.
NEAREST_LABELS = 0.08
# An axis of one value, and a map's only row or column, reach so far to each side: a factor.
AROUND = 1.5
# Markers of lines that have but one point, by their style.
ALONE: dict[Any, str] = {"-": "_", "--": "+", ":": "1"}
# How wide a letter is, as a share of the font's size: labels are broken into lines by it.
LETTER = 0.55


def mean_band(
    ax: Axes, results: xr.Dataset, variable: str, along: str = "d", label: str | None = None
) -> Axes:
    """Mean over the seeds as a line and one standard deviation to each side as a band; as points
    with bars where `along` holds strings.

    Where `results` has dimensions of several values beside `along` and seed, select one of each
    first. Runs that failed are left out of both (see `engine.summarize`), and where all of them did
    the line has a gap. Strings are the ticks of the axis, in the order of `results`. An axis
    without a label gets the table's description of what it shows. Raises ValueError for a variable
    that `results` do not have, and where `along` is the seeds, which are what is averaged.
    """
    if along == "seed":
        raise ValueError(
            "a band is mean and deviation over the seeds, and cannot lead along them: for a line a "
            f"seed use ax.plot(results.seed, results[{variable!r}])"
        )
    require_variable(results, variable)
    axes = {along, "seed"}
    alone = [dim for dim, size in results.sizes.items() if size == 1 and dim not in axes]
    results = results.squeeze(alone)
    if np.issubdtype(results[along].dtype, np.number):
        results = results.sortby(along)  # a line in the order of another table goes to and fro
    extra = set(map(str, results[variable].dims)) - axes
    if extra:
        raise ValueError(
            f"{variable} still has the dimensions {sorted(extra)}: select one value of each first, "
            f"or draw over one of them, `along={min(extra)!r}`, where that is {along!r} now"
        )
    summary = summarize(results, variable)
    shown = (summary.used + summary.excluded).values > 0  # NaN where none counts
    places = np.asarray(results[along].values)
    if np.issubdtype(places.dtype, np.number):
        x = places.astype(float)[shown]
    else:
        places = places.astype(str)
        # Also those that are not shown: their order would depend on which come first.
        ax.xaxis.update_units(places)
        x = places[shown]
    mean, std = summary.mean.values[shown], summary.std.values[shown]
    if np.issubdtype(places.dtype, np.number):
        (means,) = ax.plot(x, mean, marker="o", label=label)
        ax.fill_between(x, mean - std, mean + std, color=means.get_color(), alpha=0.2, linewidth=0)
    else:
        ax.errorbar(x, mean, std, fmt="o", label=label)
    extent = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    ax.set_xlabel(ax.get_xlabel() or _described(results[along], ax.xaxis.label, extent.width))
    ax.set_ylabel(ax.get_ylabel() or _described(results[variable], ax.yaxis.label, extent.height))
    return ax


def families(
    ax: Axes, results: xr.Dataset, variable: str, by: str, along: str = "d", symbol: str = ""
) -> Axes:
    """One `mean_band` for each value of `by`, numbers or strings, with a legend.

    `by` is a dimension of `results`, or a coordinate of one value. Raises ValueError for others.
    """
    if by in results.coords and not results[by].dims:  # one value is selected, or all runs have it
        results = results.expand_dims(by)
    if by not in results.dims:
        there = ", ".join(map(str, results.dims))
        raise ValueError(f"lines are by a dimension of the table, {there}, got by={by!r}")
    for value in results[by].values:
        part = results.sel({by: value})
        if (part.status != NOT_RUN).any():
            mean_band(ax, part, variable, along, label=f"{symbol or by} = {told_by(value)}")
    return _legend(ax)


def line(ax: Axes, x: Any, y: Any, style: str, **options: Any) -> Axes:
    """`ax.plot(x, y, style)`; a line without markers of one point gets one, to be seen."""
    (drawn,) = ax.plot(x, y, style, **options)
    if np.size(x) == 1 and drawn.get_marker() == "None":
        drawn.set(marker=ALONE.get(drawn.get_linestyle(), "_"), markersize=9)
    return ax


def sqrt_d(ax: Axes, d: np.ndarray) -> Axes:
    """The line sqrt(d): a perturbation of this size flips the label of any point trivially."""
    low, high = np.min(d), np.max(d)
    d = np.linspace(low, high, 200 if low < high else 1)
    return _legend(line(ax, d, np.sqrt(d), "--", color="black", label=r"$\sqrt{d}$"))


def accuracy_map(ax: Axes, accuracy: xr.DataArray, along: str, across: str) -> Axes:
    """Accuracies over two dimensions, on logarithmic axes, with a colour bar from 0 to 1.

    A cell reaches half way to the next value on logarithms; the only one of an axis, a factor of
    1.5. Values of 0 or less, which such axes do not have, are left out.
    """
    for name in (along, across):
        accuracy = accuracy.isel({name: (accuracy[name] > 0).values}).sortby(name)
    mesh = ax.pcolormesh(
        _edges(accuracy[along].values),
        _edges(accuracy[across].values),
        accuracy.transpose(across, along),
        shading="flat",
        vmin=0,
        vmax=1,
    )
    logarithmic(ax, accuracy[along].values)
    ax.set_xlabel({"d": "input dimension $d$", "width": "width $k$"}.get(along, along))
    ax.figure.colorbar(mesh, ax=ax, label=accuracy.attrs.get("long_name", ""))
    return ax


def _edges(values: np.ndarray) -> np.ndarray:
    """Where the cells of rising values begin and end, (n+1,): geometric midpoints."""
    places = np.log(np.asarray(values, float))
    if places.size == 1:
        return np.exp(places + np.log(AROUND) * np.array([-1, 1]))
    middles = (places[1:] + places[:-1]) / 2
    ends = 2 * places[[0, -1]] - middles[[0, -1]]
    return np.exp(np.concatenate([ends[:1], middles, ends[1:]]))


def logarithmic(ax: Axes, x: np.ndarray) -> Axes:
    """Both axes logarithmic, with a tick at every one of the few values `x`.

    From the largest on each is labelled unless the label to its right is too near. Where all that
    was drawn is at one x the axis reaches a factor of 1.5 to each side. Where no positive value was
    drawn the vertical axis stays linear.
    """
    low, high = ax.dataLim.intervalx
    if low == high > 0:  # or panels that share the axis leave no width of it
        ax.set_xlim(low / AROUND, high * AROUND)
    ax.set_xscale("log")
    if np.isfinite(ax.dataLim.minposy):  # Matplotlib raises for an axis without logarithms
        ax.set_yscale("log")
    places, labels, last = np.log(np.asarray(x, float)), [], np.inf
    nearest = NEAREST_LABELS * np.ptp(places)
    for value, place in sorted(zip(x, places, strict=True), reverse=True):
        free = last - place >= nearest
        labels.append(f"{value:g}" if free else "")
        last = place if free else last
    ax.set_xticks(sorted(x), labels[::-1])
    ax.xaxis.set_minor_locator(NullLocator())
    return ax


def power_law(ax: Axes, d: np.ndarray, values: xr.DataArray, exponent: float) -> Axes:
    """The line d^exponent through the mean of `values` on logarithms, as a claim to compare.

    `values` have the dimension d, with a coordinate or at the `d` that are given, at which the line
    is drawn; those that are no positive number do not count. Nothing where there is but one d.
    """
    d = np.asarray(d, dtype=float)
    if d.size < 2:
        return ax
    finite = values.where(np.isfinite(values) & (values > 0))
    own = values.d if "d" in values.coords else xr.DataArray(d, dims="d")
    height = float(np.exp((np.log(finite) - exponent * np.log(own)).mean()))
    ax.plot(d, height * d**exponent, color="black", linestyle="--", label=f"$d^{{{exponent:g}}}$")
    return _legend(ax)


def flip_curve(ax: Axes, sizes: np.ndarray, margins: np.ndarray) -> Axes:
    """Margins y_i N(x_i - y_i c u), one line a sample, against the perturbation size c.

    Shapes: sizes (n,), margins (n, m).
    """
    ax.plot(sizes, margins, color="C0", alpha=0.4, linewidth=0.8)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel("perturbation size $c$")
    ax.set_ylabel(r"$y_i\,N(x_i - y_i c\,u)$")
    return ax


def _described(values: xr.DataArray, label: Text, inches: float) -> str:
    """What the values are, in lines that an axis of this length has room for."""
    letter = LETTER * label.get_fontproperties().get_size_in_points() / 72
    text = str(values.attrs.get("long_name", values.name))
    return fill(text, max(1, int(inches / letter)), break_long_words=False, break_on_hyphens=False)


def _legend(ax: Axes) -> Axes:
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)  # above: covers no data
    return ax
