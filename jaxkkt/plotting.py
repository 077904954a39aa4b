"""Figures from results: every function draws on an `ax` that is given and returns it."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxkkt.engine.results import summarize

STYLE = Path(__file__).with_name("paper.mplstyle")


def mean_band(
    ax: Axes, results: xr.Dataset, variable: str, along: str = "d", label: str | None = None
) -> Axes:
    """Mean over the seeds as a line and one standard deviation to each side as a band.

    `results` must have the dimensions `along` and seed alone: select the others first. Runs that
    failed are left out of both (see `engine.summarize`).
    """
    extra = set(map(str, results[variable].dims)) - {along, "seed"}
    if extra:
        raise ValueError(
            f"{variable} still has the dimensions {sorted(extra)}: select one value of each first"
        )
    summary = summarize(results, variable)
    shown = summary.used.values > 0
    x = np.asarray(results[along].values, dtype=float)[shown]
    mean, std = summary.mean.values[shown], summary.std.values[shown]
    (line,) = ax.plot(x, mean, marker="o", label=label)
    ax.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax


def families(
    ax: Axes, results: xr.Dataset, variable: str, by: str, along: str = "d", symbol: str = ""
) -> Axes:
    """One `mean_band` for each value of the dimension `by`, with a legend."""
    for value in results[by].values:
        part = results.sel({by: value})
        if (part.status != -1).any():
            mean_band(ax, part, variable, along, label=f"{symbol or by} = {value:g}")
    return _legend(ax)


def sqrt_d(ax: Axes, d: np.ndarray) -> Axes:
    """The line sqrt(d): a perturbation of this size flips the label of any point trivially."""
    d = np.linspace(np.min(d), np.max(d), 200)
    ax.plot(d, np.sqrt(d), color="black", linestyle="--", label=r"$\sqrt{d}$")
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


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.pdf and closes the figure; returns both paths."""
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for path in paths:
        figure.savefig(path)
    plt.close(figure)
    return paths


def _legend(ax: Axes) -> Axes:
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)  # above: covers no data
    return ax
