"""Figures 2, 3, 5, 6 and 7 of Wang, Ullah, Mianjy, Arora (2022): one gradient step, lazy networks.

Trains lazy networks on zeros against ones, or random labels on the sphere, up to the edge of the
lazy ball, and finds for every test point the smallest gradient step that flips it: |delta|/|x|,
|grad f| and |eta| against the dimension d, for several widths (Figures 2 and 5) or balls C0 (3 and
6); 2 and 3 with pixels as they are and biases, 5 and 6 with |x| = 1 and none; 7 their histograms.
Leaves the panels (PNG and PDF), every run in results-FIGURE.nc, and the fitted exponents beside the
paper's claims in claims-FIGURE.md; names end in "-sgd" or "-published" under those options. Run the
same command again to go on after an interruption.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import jaxkkt as jk
from jaxkkt import engine, plotting
from jaxkkt.engine.draws import draw, held_out
from jaxkkt.engine.results import save
from jaxkkt.lazy import lazy_flow, lazy_sgd
from sweeps.wang_claims import claims_table

BALLS = (10, 20, 30, 40)
PAPER_D = (25, 49, 100, 196, 400, 625, 784)


@dataclass(frozen=True)
class Figure:
    """What a figure of the paper varies beside d, and the setting it is measured in."""

    lines: str  # "width" or "ball"
    normalized: bool

    @property
    def setting(self) -> str:
        return "normalized" if self.normalized else "with biases"


FIGURES = {
    "2": Figure("width", normalized=False),
    "3": Figure("ball", normalized=False),
    "5": Figure("width", normalized=True),
    "6": Figure("ball", normalized=True),
    "7": Figure("width", normalized=False),
}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "source": "digits upsampled",
        "d": (25, 49, 100, 196),
        "width": (1_000, 10_000, 100_000),
        "ball_width": 10_000,
        "samples": 100,
        "seeds": 2,
    },
    "sphere": {
        "source": "sphere",
        "d": (25, 49, 100, 196, 400, 784),
        "width": (1_000, 10_000, 100_000),
        "ball_width": 10_000,
        "samples": 100,
        "seeds": 3,
    },
    "paper": {
        "source": "mnist",
        "d": PAPER_D,
        "width": (1_000, 10_000, 100_000),
        "ball_width": 100_000,
        "samples": 12_665,
        "seeds": 5,
    },
}
PANELS = (
    ("step_relative_size", r"$|\delta| / |x|$", -0.5),
    ("step_gradient_norm", r"$|\nabla f|$", 0.5),
    ("step_eta", r"$|\eta|$", -1.0),
)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.wang_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--figure", choices=sorted(FIGURES), nargs="+", default=["2"], help="(default: 2)"
    )
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        default="quick",
        help="quick: 100 of scikit-learn's digits, 2 seeds; sphere: 100 random points and labels, "
        "d to 784, 3 seeds; paper: MNIST from the folder that JAXKKT_MNIST names, d to 784, 5 "
        "seeds (default: quick)",
    )
    parser.add_argument(
        "--source",
        choices=("digits", "digits upsampled", "mnist", "sphere"),
        help="of the images; `sphere`: random points and labels",
    )
    parser.add_argument("--d", type=int, nargs="+", help="input dimensions, squares for images")
    parser.add_argument("--width", type=int, nargs="+", help="hidden neurons of figures 2, 5, 7")
    parser.add_argument("--ball-width", type=int, help="hidden neurons of figures 3 and 6")
    parser.add_argument("--samples", type=int, help="training samples")
    parser.add_argument("--seeds", type=int, help="number of seeds, from 0 on")
    parser.add_argument("--ball", type=float, nargs="+", help="C0 (default: 10; 10 to 40)")
    parser.add_argument(
        "--protocol",
        choices=("flow", "sgd"),
        default="flow",
        help="flow: gradient flow in log-loss time; sgd: lr 0.1 in batches of 64 (default: flow)",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="eta in steps of 0.001 up to 5, and 0 for misclassified images, which count in the "
        "means, as in the paper's published code",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: results/wang-PRESET)")
    parser.add_argument("--dry-run", action="store_true", help="print the cost, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def runs_of(figure: Figure, grid: dict[str, Any]) -> list[jk.Run]:
    """The runs of one ball: all widths, or one where balls are compared."""
    suffix = " normalized" if figure.normalized else ""
    data = {"sphere": "unit sphere" if figure.normalized else "sphere"}.get(
        grid["source"], grid["source"] + suffix
    )
    widths = grid["width"] if figure.lines == "width" else (grid["ball_width"],)
    return jk.grid(
        d=grid["d"],
        samples=(grid["samples"],),
        width=widths,
        seed=range(grid["seeds"]),
        loss=("logistic",),
        data=(data,),
        initialization=("lazy" if figure.normalized else "lazy with biases",),
    )


def protocol_of(name: str, figure: Figure, ball: float) -> jk.Protocol:
    make = {"flow": lazy_flow, "sgd": lazy_sgd}[name]
    return make(ball=float(ball), biases=not figure.normalized)


def swept(
    figure: Figure,
    grid: dict[str, Any],
    balls: Sequence[float],
    protocol: str,
    published: bool,
    out: Path,
    bar: bool,
) -> xr.Dataset:
    """All runs of a figure, over ball, d, width and seed."""
    tables = []
    for ball in balls:
        setting = f"{figure.setting} C0={ball:g} {figure.lines}"
        folder = out / (setting + _suffix(protocol, published)).replace(" ", "-")
        table = jk.sweep(
            runs_of(figure, grid),
            protocol_of(protocol, figure, ball),
            [jk.gradient_steps(_bracket(published), published)],
            folder,
            bar,
        )
        tables.append(table)
    return xr.concat(tables, xr.Variable("ball", list(balls)), combine_attrs="drop_conflicts")


def drawn(results: xr.Dataset, figure: Figure, stem: Path) -> list[Path]:
    """The three panels, means and standard deviations over seeds, with the claimed slopes."""
    by = figure.lines
    others = {"width": {"ball": results.ball[0]}, "ball": {"width": results.width[-1]}}[by]
    shown = results.sel(others)
    if "samples" in shown.dims:
        shown = shown.isel(samples=0)
    with plt.style.context(plotting.STYLE):
        canvas, axes = plt.subplots(1, 3, figsize=(9.5, 3.2))
        for ax, (variable, label, slope) in zip(axes, PANELS, strict=True):
            symbol = {"width": "k", "ball": "$C_0$"}[by]
            plotting.families(ax, shown, variable, by, symbol=symbol)
            plotting.power_law(ax, results.d.values, shown[variable], slope)
            plotting.logarithmic(ax, results.d.values)
            ax.set_xlabel("input dimension $d$")
            ax.set_ylabel(label)
        return plotting.save(canvas, stem)


def _bracket(published: bool) -> float:
    """Of |delta| / |x|: the published code searches up to |eta| = 5, however far that is."""
    return 1e4 if published else 1.0


def _suffix(protocol: str, published: bool) -> str:
    """Of the files' names, so that no setting writes over another's."""
    return ("" if protocol == "flow" else f"-{protocol}") + ("-published" if published else "")


def histograms(
    grid: dict[str, Any], ball: float, protocol: str, published: bool, stem: Path
) -> list[Path]:
    """Figure 7: the test points of one network, at the largest dimension and width.

    Those that are classified correctly and flip; with `published` all.
    """
    figure = FIGURES["7"]
    largest = {**grid, "d": (max(grid["d"]),), "width": (max(grid["width"]),), "seeds": 1}
    (run,) = runs_of(figure, largest)
    start, data = draw(run)
    trained = jk.train(start, *data, protocol_of(protocol, figure, ball), run.shuffle_key())
    x, y = held_out(run)
    found = jk.perturbations.gradient_steps(trained.params, x, _bracket(published))
    kept = np.asarray(found.needs_step(y) & (found.status == 0))
    eta = found.eta
    if published:
        kept, eta = np.ones_like(kept), found.published_eta(y)
    values = (
        eta * found.gradient_norm / np.linalg.norm(x, axis=1),
        found.gradient_norm,
        eta,
    )
    with plt.style.context(plotting.STYLE):
        canvas, axes = plt.subplots(1, 3, figsize=(9.5, 2.8))
        for ax, value, (_, label, _) in zip(axes, values, PANELS, strict=True):
            ax.hist(np.asarray(value)[kept], bins=20)
            ax.set_xlabel(label)
        axes[0].set_ylabel("test points")
        canvas.suptitle(
            f"d = {run.d}, k = {run.width}, $C_0$ = {ball:g}: {kept.sum()} of {len(y)} test points"
        )
        return plotting.save(canvas, stem)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    grid = dict(PRESETS[options.preset])
    grid |= {
        name: value
        for name in ("source", "d", "width", "ball_width", "samples", "seeds")
        if (value := getattr(options, name)) is not None
    }
    out = options.out or Path("results") / f"wang-{options.preset}"
    try:
        for name in options.figure:
            figure = FIGURES[name]
            balls = options.ball or (BALLS if figure.lines == "ball" else BALLS[:1])
            protocol = protocol_of(options.protocol, figure, balls[0])
            if options.dry_run:
                planned = engine.plan_sweep(runs_of(figure, grid), protocol)
                print(f"figure {name}, each of {len(balls)} balls:\n{planned.describe()}")
                continue
            out.mkdir(parents=True, exist_ok=True)
            suffix = _suffix(options.protocol, options.published)
            stem = out / f"figure{name}{suffix}"
            if name == "7":
                paths = histograms(grid, balls[0], options.protocol, options.published, stem)
            else:
                results = swept(
                    figure,
                    grid,
                    balls,
                    options.protocol,
                    options.published,
                    out,
                    not options.quiet,
                )
                save(results, out / f"results-{name}{suffix}.nc")
                text = claims_table(results, figure.lines, learnable=grid["source"] != "sphere")
                (out / f"claims-{name}{suffix}.md").write_text(text)
                print(f"figure {name}\n\n{text}")
                paths = drawn(results, figure, stem)
            print("wrote", ", ".join(map(str, paths)), file=sys.stderr)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
