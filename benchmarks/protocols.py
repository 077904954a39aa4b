"""How closely the flow protocol follows the paper's schedule, run by run.

Trains every run of a mixed grid (all alphas, several widths, both losses, d to 100) by gradient
flow in log-loss time, by the flow three times as fine, and by the paper's schedule. Controls are
the flow in steps so fine, late ones too, that it takes an eleventh of the schedule's gradients, and
the schedule again: in rotated coordinates, which changes nothing but the rounding, and at half its
rate, which is the same flow followed twice as finely. They say how far the schedule reproduces
itself, and so how close another protocol can be asked to come. The flip size jumps where a sample
enters or leaves the margin; the normalized margin does not. Without the controls 25 minutes on 2
cores; these are three times as many steps. Resumable.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmarks.timing import markdown, write
from jaxkkt import engine
from jaxkkt.optimizers import log_loss_time
from jaxkkt.protocols import Protocol, flow_protocol, paper_protocol
from jaxkkt.runs.grid import grid
from jaxkkt.specs.optimizers import PaperSchedule
from jaxkkt.training import Status

ALPHAS = (0.5, 0.8, 1.0, 1.2, 1.5)
CONTENDERS = {
    "flow": flow_protocol(),
    "flow, finer": flow_protocol(delta=0.003),
    "paper": paper_protocol(),
}
CONTROLS = {
    "flow, finest": Protocol(log_loss_time(0.0005, largest=0.02, proportion=2e-4)),
    "paper, rotated": paper_protocol(representation="span"),
    "paper, half the rate": paper_protocol(max_steps=400_000).replace(
        optimizer=PaperSchedule(learning_rate=0.5e-5, every=200)
    ),
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.protocols",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--d", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--alpha", type=float, nargs="+", default=ALPHAS)
    parser.add_argument("--width", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--init-scale", type=float, default=1.0, help="of the initial weights (default: PyTorch's)"
    )
    parser.add_argument("--out", type=Path, default=Path("results/protocols"))
    parser.add_argument("--name", default="protocols", help="of the JSON in benchmarks/results")
    parser.add_argument("--no-control", action="store_true", help="leave out the controls")
    return parser


def compare(results: dict[str, xr.Dataset], first: str, second: str) -> list[dict[str, Any]]:
    """One record an alpha: how far `first` is from `second` in c, share on the margin and steps."""
    a, b = results[first], results[second]
    both = (a.status == Status.CONVERGED) & (b.status == Status.CONVERGED)
    ran = a.status != -1
    error = abs(a.flip_size_exact / b.flip_size_exact - 1).where(both)
    share = abs(a.on_margin_share - b.on_margin_share).where(both)
    margin = abs(a.normalized_margin / b.normalized_margin - 1).where(both)
    steps, ratio = a.steps.where(both), (b.steps / a.steps).where(both)
    records = []
    for alpha in a.alpha.values:
        columns = [v.sel(alpha=alpha).values.ravel() for v in (error, share, margin, steps, ratio)]
        e, s, n, taken, r = (column[np.isfinite(column)] for column in columns)
        limit = 0.001 if alpha <= 1 else 0.01
        records.append(
            {
                "alpha": float(alpha),
                "runs": int(ran.sel(alpha=alpha).sum()),
                "compared": int(e.size),
                "c_median_error": float(np.median(e)),
                "c_largest_error": float(e.max()),
                "c_limit": limit,
                "within_limit": int((e <= limit).sum()),
                "share_largest_error": float(s.max()),
                "normalized_margin_largest_error": float(n.max()),
                "mean_steps": float(taken.mean()),
                "least_steps_ratio": float(r.min()),
            }
        )
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    return markdown(
        [
            {
                "alpha": r["alpha"],
                "runs": f"{r['compared']} of {r['runs']}",
                "median error of c": f"{r['c_median_error']:.3%}",
                "largest": f"{r['c_largest_error']:.3%}",
                "within the limit": f"{r['within_limit']} within {r['c_limit']:.1%}",
                "share on the margin, largest change": f"{r['share_largest_error']:.4f}",
                "normalized margin, largest": f"{r['normalized_margin_largest_error']:.2%}",
                "steps, mean": f"{r['mean_steps']:.0f}",
                "of the schedule's, at most": f"1/{r['least_steps_ratio']:.0f}",
            }
            for r in records
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    axes = {
        "d": options.d,
        "alpha": options.alpha,
        "width": options.width,
        "seed": range(options.seeds),
        "loss": ("exponential", "logistic"),
        "init_scale": (options.init_scale,),
    }
    results = {}
    contenders = CONTENDERS if options.no_control else CONTENDERS | CONTROLS
    for name, protocol in contenders.items():
        folder = options.out / name.replace(", ", "-").replace(" ", "-")
        results[name] = engine.sweep(grid(**axes, protocol=protocol), store=folder)
    compared = {
        f"{name} against paper": compare(results, name, "paper")
        for name in contenders
        if name != "paper"
    }
    print("\n\n".join(f"{title}:\n\n{table(rows)}" for title, rows in compared.items()))
    write(options.name, {"grid": {k: list(v) for k, v in axes.items()}, "comparison": compared})
    return 0


if __name__ == "__main__":
    sys.exit(main())
