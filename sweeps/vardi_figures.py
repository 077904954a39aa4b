"""Figures 1 and 2 of Vardi, Yehudai, Shamir (2022), and their claims beside what was measured.

Trains networks on m = round(d^alpha) points of the sphere of radius sqrt(d), finds the smallest
universal perturbation c that flips every sample on the margin, and counts those samples.
Leaves in the output folder: the panels 1a, 1b, 2a, 2b (PNG and PDF), every run in results.nc
(open it with xarray.open_dataset), and the claims in claims.md and claims.json. Run the same
command again to go on after an interruption, or with --landed to draw what is there.

Any of --d, --alpha, --width, --seeds, --loss, --data, --init and --init-scale replaces the preset's
runs by every combination of the values given. For example

  --preset paper --dry-run
  --d 50 100 --alpha 0.5 1.0 --width 1000 --seeds 5 --out DIR
  --d 100 --alpha 1.0 --width 100 1000 8000 --protocol paper
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies

from .vardi_claims import (
    PAPER_WIDTH,
    at_paper_width,
    claims,
    main_setting,
    notes,
    width_against_d,
)

ALPHAS = (0.5, 0.8, 1.0, 1.2, 1.5)
WIDTH = 1000
PRESETS = {
    "quick": studies.Preset("138 networks, d to 100"),
    "paper": studies.Preset("the paper's grid, 550 networks, d to 1,000, widths to 8,000, 5 seeds"),
}


@dataclass(frozen=True)
class Options(studies.Options):
    d: tuple[int, ...] | None = None
    """input dimensions; 100 where other axes are given"""
    alpha: tuple[float, ...] | None = None
    """m = round(d^alpha) samples; all 5 of the paper where other axes are given"""
    width: tuple[int, ...] | None = None
    """hidden neurons; 1000 where other axes are given"""
    seeds: int | None = None
    """number of seeds, from 0 on; 3 where other axes are given"""
    loss: tuple[Literal["exponential", "logistic"], ...] | None = None
    """loss of a sample"""
    data: tuple[Literal["sphere", "unit sphere", "gaussian"], ...] | None = None
    """distribution of the points"""
    init: tuple[Literal["torch", "gaussian", "lazy"], ...] | None = None
    """initial weights"""
    init_scale: tuple[float, ...] | None = None
    """factor on the initial weights"""
    protocol: Literal["flow", "paper"] = "flow"
    """flow: gradient flow in log-loss time, a few hundred steps a run; paper: batches of 5,000,
    lr 1e-5 times 1.1 every 100 steps, about 72,000 steps"""
    slack: float = 1.1
    """samples with q <= slack min q are on the margin"""
    certify: bool = False
    """record how close every network is to a KKT point, too: a fifth more time"""


def preset(name: str, **common: Any) -> list[jk.Run]:
    """The runs of a preset: every alpha against d at one width, and the widths at alpha = 1.

    quick has the other loss and data as well, at d = 100.
    """
    grid = partial(jk.grid, **common)
    if name == "paper":
        d, seed = range(100, 1001, 100), range(5)
        more = (100, 250, 500, 2000, 4000, 8000)
        return [
            *grid(d=d, alpha=ALPHAS, width=WIDTH, seed=seed),
            *grid(d=d, alpha=1.0, width=more, seed=seed),
        ]
    d, seed = range(20, 101, 20), range(3)
    return [
        *grid(d=d, alpha=ALPHAS, width=WIDTH, seed=seed),
        *grid(d=d, alpha=1.0, width=(100, 300, 2000), seed=seed),
        *grid(d=100, alpha=ALPHAS[:4], width=WIDTH, seed=seed, loss="logistic"),
        # Gaussian data of more samples take several times the steps: see docs/protocols.md.
        *grid(d=100, alpha=ALPHAS[:2], width=WIDTH, seed=seed, data="gaussian"),
    ]


def runs(options: Options) -> list[jk.Run]:
    """The preset's runs, or the product of the axes where any is given."""
    measure = [jk.Flips(slack=options.slack), *([jk.Certificates] if options.certify else [])]
    common: dict[str, Any] = {"measure": measure, "protocol": options.protocol}
    axes = {
        "d": options.d,
        "alpha": options.alpha,
        "width": options.width,
        "seed": None if options.seeds is None else range(options.seeds),
        "loss": options.loss,
        "data": options.data,
        "initialization": options.init,
        "init_scale": options.init_scale,
    }
    given = {name: values for name, values in axes.items() if values is not None}
    if not given:
        return preset(options.preset, **common)
    return jk.grid(**{"d": 100, "alpha": ALPHAS, "seed": range(3), **common, **given})


def against_d(
    figure: Figure, results: xr.Dataset, variable: str, by: str, label: str, line: bool = False
) -> None:
    """A variable against d, a line for each alpha at the paper's width, or for each width."""
    shown, setting = main_setting(results)
    if by == "alpha":
        shown = at_paper_width(shown)
    elif 1.0 in shown.alpha:
        shown = shown.sel(alpha=1.0)
    else:
        return
    ax = figure.subplots()
    plotting.families(ax, shown, variable, by, symbol={"alpha": r"$\alpha$"}.get(by, by))
    if line and setting["data"] == "sphere":
        plotting.sqrt_d(ax, results.d.values)
    width = width_against_d(results)
    told = f", width {width}" if by == "alpha" and width != PAPER_WIDTH else ""
    ax.set_xlabel(f"input dimension $d${told}")
    ax.set_ylabel(label)


def panel(name: str, *what: Any, **how: Any) -> studies.Panel:
    return studies.Panel(name, lambda figure, results: against_d(figure, results, *what, **how))


PANELS = (
    panel("figure1a", "flip_size_exact", "alpha", "smallest flip size $c$", line=True),
    panel("figure1b", "flip_size_exact", "width", "smallest flip size $c$", line=True),
    panel("figure2a", "on_margin_share", "alpha", "share of samples on the margin"),
    panel("figure2b", "off_margin_count", "alpha", "samples not on the margin"),
)


def parts(options: Options) -> list[studies.Part]:
    return [studies.Part(runs(options), claims=claims, notes=notes, panels=PANELS)]


STUDY = studies.Study("vardi-figures", __doc__, Options, parts, PRESETS, folder="vardi")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
