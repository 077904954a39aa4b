"""Figures 1 and 2 of Vardi, Yehudai, Shamir (2022), and their claims beside what was measured.

Trains networks on m = round(d^alpha) points of the sphere of radius sqrt(d), finds the smallest
universal perturbation c that flips every sample on the margin, and counts those samples.
Leaves in the output folder: the panels 1a, 1b, 2a, 2b (PNG and PDF), every run in results.nc
(open it with xarray.open_dataset), and the claims table in claims.md. Run the same command
again to go on after an interruption, or with --landed to draw what is there.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import xarray as xr

from jaxkkt import engine, plotting
from jaxkkt.datasets import DATASETS
from jaxkkt.engine import Run
from jaxkkt.losses import LOSSES
from jaxkkt.measurements import certificates, flips
from jaxkkt.networks import INITIALIZATIONS
from jaxkkt.protocols import PROTOCOLS
from sweeps.vardi_claims import claims_table

ALPHAS = (0.5, 0.8, 1.0, 1.2, 1.5)
WIDTH = 1000

EXAMPLES = """examples:
  python -m sweeps.vardi_figures --preset quick
  python -m sweeps.vardi_figures --preset paper --dry-run
  python -m sweeps.vardi_figures --d 50 100 --alpha 0.5 1.0 --width 1000 --seeds 5 --out DIR
  python -m sweeps.vardi_figures --d 100 --alpha 1.0 --width 100 1000 8000 --protocol paper
"""


def preset(name: str) -> list[Run]:
    """The runs of a preset.

    quick: every alpha at d to 100, four widths at alpha = 1, the other loss and data at d = 100.
    paper: the grid of the paper, d to 1,000, widths to 8,000, 5 seeds.
    """
    if name == "quick":
        seeds, d = range(3), range(20, 101, 20)
        variants: dict[str, Any] = {"d": (100,), "width": (WIDTH,), "seed": seeds}
        return [
            *engine.grid(d=d, alpha=ALPHAS, width=(WIDTH,), seed=seeds),
            *engine.grid(d=d, alpha=(1.0,), width=(100, 300, 2000), seed=seeds),
            *engine.grid(**variants, alpha=ALPHAS[:4], loss=("logistic",)),
            # Gaussian data of more samples take several times the steps: see docs/protocols.md.
            *engine.grid(**variants, alpha=ALPHAS[:2], data=("gaussian",)),
        ]
    seeds, d = range(5), range(100, 1001, 100)
    return [
        *engine.grid(d=d, alpha=ALPHAS, width=(WIDTH,), seed=seeds),
        *engine.grid(d=d, alpha=(1.0,), width=(100, 250, 500, 2000, 4000, 8000), seed=seeds),
    ]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.vardi_figures",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--preset",
        choices=("quick", "paper"),
        default="quick",
        help="quick: about 150 networks, d to 100; paper: about 550, d to 1,000 (default: quick)",
    )
    axes = parser.add_argument_group(
        "axes", "Any of these replaces the preset by every combination of the values given."
    )
    axes.add_argument("--d", type=int, nargs="+", help="input dimensions (default: 100)")
    axes.add_argument("--alpha", type=float, nargs="+", help="m = round(d^alpha) (default: all 5)")
    axes.add_argument("--width", type=int, nargs="+", help="hidden neurons (default: 1000)")
    axes.add_argument("--seeds", type=int, help="number of seeds, from 0 on (default: 3)")
    axes.add_argument("--loss", choices=sorted(LOSSES), nargs="+", help="(default: exponential)")
    axes.add_argument("--data", choices=sorted(DATASETS), nargs="+", help="(default: sphere)")
    axes.add_argument(
        "--init", choices=sorted(INITIALIZATIONS), nargs="+", help="weights (default: torch)"
    )
    axes.add_argument("--init-scale", type=float, nargs="+", help="times the weights (default: 1)")
    parser.add_argument(
        "--protocol",
        choices=sorted(PROTOCOLS),
        default="flow",
        help="flow: gradient flow in log-loss time, about 600 steps a run; paper: batches of "
        "5,000, lr 1e-5 times 1.1 every 100 steps, about 72,000 steps (default: flow)",
    )
    parser.add_argument(
        "--slack", type=float, default=1.1, help="on the margin: q <= slack min q (default: 1.1)"
    )
    parser.add_argument(
        "--certify",
        action="store_true",
        help="record how close every network is to a KKT point, too: twice the time",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: results/vardi-PRESET)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print buckets, cost and memory, and stop"
    )
    parser.add_argument(
        "--landed",
        action="store_true",
        help="train nothing: draw and tabulate the rows that are in the output folder so far",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def chosen_runs(options: argparse.Namespace) -> list[Run]:
    """The preset's runs, or the product of the axes where any is given."""
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
        return preset(options.preset)
    return engine.grid(**{"d": (100,), "alpha": ALPHAS, "seed": range(3), **given})


def panels(results: xr.Dataset, out: Path) -> list[Path]:
    """Draws the panels that the results have data for; returns the files written."""
    paths: list[Path] = []
    for name, value in (("loss", "exponential"), ("data", "sphere")):
        if name in results.dims:
            results = results.sel({name: value if value in results[name] else results[name][0]})
    by_alpha = results.sel(width=WIDTH if WIDTH in results.width else results.width[0])
    drawn = [
        (
            "1a",
            by_alpha,
            "flip_size_exact",
            "alpha",
            r"$\alpha$",
            "smallest flip size $c$",
        ),
        ("2a", by_alpha, "on_margin_share", "alpha", r"$\alpha$", "share of samples on the margin"),
        ("2b", by_alpha, "off_margin_count", "alpha", r"$\alpha$", "samples not on the margin"),
    ]
    if 1.0 in results.alpha:
        at_one = results.sel(alpha=1.0)
        drawn.append(("1b", at_one, "flip_size_exact", "width", "width", "smallest flip size $c$"))
    for panel, data, variable, by, symbol, label in sorted(drawn, key=lambda item: item[0]):
        with plt.style.context(plotting.STYLE):
            figure, ax = plt.subplots()
            plotting.families(ax, data, variable, by, symbol=symbol)
            if panel.startswith("1"):
                plotting.sqrt_d(ax, results.d.values)
            ax.set_xlabel("input dimension $d$")
            ax.set_ylabel(label)
            paths += plotting.save(figure, out / f"figure{panel}")
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        runs = chosen_runs(options)
        protocol = PROTOCOLS[options.protocol]()
        out = options.out or Path("results") / f"vardi-{options.preset}"
        measurements = [flips(options.slack), *([certificates()] if options.certify else [])]
        if options.landed:
            results = engine.landed(runs, protocol, measurements, store=out)
        else:
            plan = engine.plan_sweep(runs, protocol)
            print(plan.describe(), file=sys.stderr)
            print(f"about {plan.minutes():.1f} minutes of training here", file=sys.stderr)
            if options.dry_run:
                return 0
            results = engine.sweep(runs, protocol, measurements, out, not options.quiet)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on with the rows in {out}", file=sys.stderr)
        return 130
    paths = [*panels(results, out), out / "claims.md"]
    if not options.landed:
        paths.append(out / "results.nc")
    table = claims_table(results, planned=len(set(runs)))
    (out / "claims.md").write_text(table)
    print(table)
    print("wrote", ", ".join(map(str, paths)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
