"""How close gradient flow comes to a KKT point, and where it goes from a loss of 1e-30 on.

Trains networks of several widths and initialization scales through a list of log losses, follows
the flow on to its limit, and certifies every network on the way: the stationarity residual with
relu'(0) = 0 and with Clarke slopes at kinks, slackness, normalized margin, and the size c of the
universal perturbation that flips every sample on the margin. Networks at a loss of 1e-30 and at
the end of the flow are polished to exact KKT points as well. Leaves in the output folder the figure
(PNG and PDF), every network in results.nc, and the tables in tables.md. Run the same command again
to go on after an interruption.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array

import jaxkkt as jk
from jaxkkt import kkt, plotting
from jaxkkt.datasets import Dataset
from jaxkkt.engine.draws import draw
from jaxkkt.engine.parts import compute_parts
from jaxkkt.engine.results import save
from jaxkkt.engine.specs import unique
from jaxkkt.networks import Params

TRAINED = (-10.0, -30.0, jk.protocols.TARGET, -300.0, -1e3, -1e4, -1e5)
# From here on the flow is followed in log s; the levels below are those of its own steps.
HANDED_OVER = -1e3
FOLLOWED = (-1e4, -1e5, -1e7, -1e10, -1e20, -1e50)
# Of log s; halving it moves normalized margins by less than 1e-3.
STEP = 0.05
START, END = jk.protocols.TARGET, FOLLOWED[-1]
POLISHED = {"polished at 1e-30": START, "polished at the end": END}
# Of residual and slackness at a polished network.
TARGET = 1e-6
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"d": 100, "samples": (40,), "width": (50, 200, 1000), "seeds": 2},
    "full": {"d": 100, "samples": (10, 40, 100), "width": (50, 200, 1000), "seeds": 3},
}
SCALES = (1.0, 0.1, 0.01)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.kkt_points",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), default="quick", help="(default: quick, 18 networks)"
    )
    parser.add_argument("--d", type=int, help="input dimension (default: 100)")
    parser.add_argument("--samples", type=int, nargs="+", help="sample counts")
    parser.add_argument("--width", type=int, nargs="+", help="hidden neurons")
    parser.add_argument("--seeds", type=int, help="number of seeds, from 0 on")
    parser.add_argument(
        "--init-scale", type=float, nargs="+", default=SCALES, help="(default: 1 0.1 0.01)"
    )
    parser.add_argument(
        "--kink-tolerance",
        type=float,
        default=1e-3,
        help="of the certificates of trained networks, whose steps meet kinks to no more than "
        "this; polished ones are certified at 1e-6 (default: 1e-3)",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: results/kkt-PRESET)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def measured(
    params: Params, data: Dataset, kink_tolerance: float, budget: tuple[int, int]
) -> dict[str, Array]:
    """Certificate and flip size of one network."""
    flips = jk.flips().function(params, data)
    found = jk.certificates(kink_tolerance, budget).function(params, data)
    kept = ("flip_size_exact", "on_margin_share", "normalized_margin")
    return {name: flips[name] for name in kept} | found


@partial(jax.jit, static_argnames=("kink_tolerance", "budget"))
def measured_all(
    params: Params, data: Dataset, kink_tolerance: float, budget: tuple[int, int]
) -> dict[str, Array]:
    """The same for a stack of networks, one after the other."""
    measure = partial(measured, data=data, kink_tolerance=kink_tolerance, budget=budget)
    return jax.lax.map(measure, params)


def angle(a: Params, b: Params) -> float:
    """Between two networks, in radians, however neurons of one direction share their weight.

    That between the matrices sum_j v_j |u_j| g_j g_j^T of the directions g_j of u_j = (w_j, b_j).
    """

    def matrix(params: Params) -> np.ndarray:
        u = np.concatenate([params.w, params.b[:, None]], axis=1).astype(float)
        length = np.linalg.norm(u, axis=1)
        return (u * (params.v / np.where(length > 0, length, 1))[:, None]).T @ u

    left, right = matrix(a), matrix(b)
    cosine = np.sum(left * right) / (np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.arccos(np.clip(cosine, -1, 1)))


def follow(run: jk.Run, kink_tolerance: float) -> tuple[jk.Status, xr.Dataset | None]:
    """One network through all levels, over way and log s = log(-log L), if it reaches them."""
    start, data = draw(run)
    data = Dataset(jnp.asarray(data.x), jnp.asarray(data.y))
    budget = run.width, min(run.samples, max(24, run.samples * 2 // 3))
    trained = jk.train_through(start, *data, levels=TRAINED)
    status = jk.Status(int(trained.status[-1]))
    if status != jk.Status.CONVERGED:
        return status, None
    handed = jax.tree.map(lambda leaf: leaf[TRAINED.index(HANDED_OVER)], trained.params)
    limit = kkt.follow_flow(handed, *data, start=HANDED_OVER, levels=FOLLOWED, step=STEP)
    stacks = {"trained": trained.params, "followed": limit.params}
    levels = {"trained": np.asarray(TRAINED), "followed": np.asarray(FOLLOWED)}
    parts = []
    for way, stack in stacks.items():
        values = measured_all(stack, data, kink_tolerance, budget)
        parts.append(_part(values, way, levels[way]))
    end = jax.tree.map(lambda leaf: leaf[-1], limit.params)
    at = {START: jax.tree.map(lambda leaf: leaf[TRAINED.index(START)], trained.params), END: end}
    for way, level in POLISHED.items():
        found = kkt.polish(at[level], *data)
        values = measured_all(
            jax.tree.map(lambda leaf: leaf[None], found.params),
            data,
            1e-6,
            (run.width, run.samples),
        )
        extra = {
            "angle_from_start": np.array([angle(found.params, at[level])]),
            "angle_to_end": np.array([angle(found.params, end)]),
            "live": np.array([found.live], float),
            "live_before": np.array([found.live_before], float),
            "polish_status": np.array([found.status], float),
        }
        parts.append(_part({**values, **extra}, way, np.array([level])))
    return status, xr.concat(parts, "way", join="outer")


def _log_s(level: float) -> float:
    """log(-log L), rounded so that it can be looked up."""
    return round(float(np.log(-level)), 6)


def _part(values: dict[str, Any], way: str, levels: np.ndarray) -> xr.Dataset:
    arrays = {name: ("log_s", np.asarray(value, float)) for name, value in values.items()}
    coordinates = {"log_s": [_log_s(level) for level in levels], "way": way}
    return xr.Dataset(arrays, coords=coordinates)


def study(runs: Sequence[jk.Run], kink_tolerance: float, store: Path, progress: bool) -> xr.Dataset:
    """All runs, one a core, over way, log s, samples, width, init_scale and seed.

    Runs that do not reach the levels are NaN; `status` is that of every run's training. Networks
    land in the folder `store`, and the same call goes on from there.
    Raises ValueError where no run reaches them.
    """

    def one(run: jk.Run) -> xr.Dataset:
        status, found = follow(run, kink_tolerance)
        return (xr.Dataset() if found is None else found).assign(status=int(status))

    runs = unique(runs)
    tasks = {run.name: partial(one, run) for run in runs}
    configuration = {
        "kink_tolerance": kink_tolerance,
        "trained": TRAINED,
        "handed_over": HANDED_OVER,
        "followed": FOLLOWED,
        "step": STEP,
        "polished": POLISHED,
    }
    done = compute_parts(tasks, store, configuration, progress=progress)
    reached = [part for part in done if "way" in part.dims]
    if not reached:
        ends = sorted({jk.Status(int(part.status)).name for part in done})
        raise ValueError(f"no network reached a log loss of {TRAINED[-1]:g}: {', '.join(ends)}")
    nothing = xr.full_like(reached[0].drop_vars("status"), np.nan)
    names = ("samples", "width", "init_scale", "seed")
    return xr.combine_by_coords(  # type: ignore[return-value]
        [
            (part if "way" in part.dims else nothing.assign(status=part.status)).expand_dims(
                {name: [getattr(run, name)] for name in names}
            )
            for run, part in zip(runs, done, strict=True)
        ]
    )


def figure(results: xr.Dataset, out: Path) -> list[Path]:
    """Residuals, normalized margin, slackness and c against log s, for each width and scale."""
    samples = results.samples.values[len(results.samples) // 2]
    shown = results.sel(samples=samples).mean("seed")
    panels = (
        ("residual_one_sided", r"residual, $\sigma'(0) = 0$"),
        ("residual_clarke", "residual, Clarke"),
        ("slackness", "slackness"),
        ("normalized_margin", "normalized margin"),
        ("flip_size_exact", "flip size $c$"),
    )
    lines = ("-", "--", ":")
    with plt.style.context(plotting.STYLE):
        drawn, grid = plt.subplots(2, 3, figsize=(9, 5))
        *axes, last = grid.flat
        for ax, (variable, label) in zip(axes, panels, strict=True):
            for (i, width), (j, scale) in product(
                enumerate(shown.width.values), enumerate(shown.init_scale.values)
            ):
                part = shown[variable].sel(width=width, init_scale=scale)
                for way in ("trained", "followed"):
                    line = part.sel(way=way).dropna("log_s")
                    ax.plot(
                        line.log_s / np.log(10),
                        line,
                        color=f"C{i}",
                        linestyle=lines[j % len(lines)],
                        marker="o" if way == "trained" else "x",
                        markersize=3,
                        label=f"k = {width}, scale {scale:g}" if way == "trained" else None,
                    )
                if variable in ("normalized_margin", "flip_size_exact"):
                    end = part.sel(way="polished at the end").dropna("log_s")
                    ax.plot(end.log_s / np.log(10), end, color=f"C{i}", marker="*", markersize=9)
            if variable != "normalized_margin":
                ax.set_yscale("log")
            ax.set_xscale("log")
            ax.set_xlabel(r"$\log_{10}(-\log L)$")
            ax.set_title(label)
        last.axis("off")
        title = f"m = {samples}\no trained, x followed, * polished at the end"
        last.legend(*axes[0].get_legend_handles_labels(), title=title, loc="center")
        return plotting.save(drawn, out / "kkt_points")


def tables(results: xr.Dataset) -> str:
    """Medians over seeds and scales, by samples, width and level; then the findings, of all runs
    and by samples."""
    lines = [
        "| m | k | log L | residual, one-sided | residual, Clarke | slackness | normalized margin "
        "| c |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = ("residual_one_sided", "residual_clarke", "slackness", "normalized_margin")
    for m, k in product(results.samples.values, results.width.values):
        here = results.sel(samples=m, width=k)
        rows = [
            ("trained", START),
            ("trained", -1e3),
            ("trained", -1e5),
            ("followed", -1e10),
            ("followed", -1e50),
            *POLISHED.items(),
        ]
        for way, level in rows:
            part = here.sel(way=way, log_s=_log_s(level))
            means = [float(part[name].median()) for name in names]
            c = part.flip_size_exact.median(("seed", "init_scale"))
            shown = " | ".join(f"{value:.2g}" for value in means[:3])
            name = f"{level:g}" if way in ("trained", "followed") else way
            lines.append(f"| {m} | {k} | {name} | {shown} | {means[3]:.4f} | {float(c):.3f} |")
    lines += ["", *findings(results)]
    if results.samples.size > 1:
        for m in results.samples.values:
            lines += ["", f"m = {m}:", "", *findings(results.sel(samples=[m]))]
    return "\n".join(lines) + "\n"


def findings(results: xr.Dataset) -> list[str]:
    """The study's questions, answered in numbers over all runs: medians, least and largest."""

    def at(way: str, level: float) -> xr.Dataset:
        return results.sel(way=way, log_s=_log_s(level))

    early, late = (at(*place) for place in (("trained", START), ("followed", END)))
    first, second = (at(way, level) for way, level in POLISHED.items())
    polished = results.polish_status
    good = (
        (results.residual_clarke <= TARGET)
        & (results.slackness <= TARGET)
        & (polished == kkt.PolishStatus.POLISHED)
    )
    compared = {
        "the network at a loss of 1e-30 against the end of the flow": (early, late),
        "the network at a loss of 1e-30 against the KKT point polished from it": (early, first),
        "the end of the flow against the KKT point polished from it": (late, second),
        "the KKT point polished at 1e-30 against the end of the flow": (first, late),
    }
    turned = [
        f"- {way}: angle from there {_spread(part.angle_from_start)}, to the end of the flow "
        f"{_spread(part.angle_to_end)} radians (median, largest); live "
        f"neurons {float(part.live_before.median()):g} -> {float(part.live.median()):g} (medians)."
        for way, part in ((way, results.sel(way=way)) for way in POLISHED)
    ]
    return [
        *(
            f"- {name}: c {_change(a, b, 'flip_size_exact')}; normalized margin "
            f"{_change(a, b, 'normalized_margin')}."
            for name, (a, b) in compared.items()
        ),
        *turned,
        f"- polished networks whose residual (kink tolerance 1e-6) and slackness are at most "
        f"{TARGET:g}: {int(good.sum())} of {int(polished.notnull().sum())}.",
        _certified(results),
        *_failed(results.status),
    ]


def _certified(results: xr.Dataset) -> str:
    status, gap = results.certificate_status, results.residual_gap
    good = int((status == kkt.CertificateStatus.CERTIFIED).sum())
    return (
        f"- certified networks: {good} of {int(status.notnull().sum())}, the squared residual at "
        f"most {float(gap.max()):.1e} above the least there is."
    )


def _failed(status: xr.DataArray) -> list[str]:
    """One line for each run that did not reach the levels, of how many."""
    ends = status.stack(run=status.dims).to_series()
    return [
        f"- not trained to {TRAINED[-1]:g}, one of {len(ends)} runs: "
        + ", ".join(f"{n} = {v:g}" for n, v in zip(ends.index.names, place, strict=True))
        + f": {jk.Status(end).name}."
        for place, end in ends[ends != jk.Status.CONVERGED].items()
    ]


def _spread(angles: xr.DataArray) -> str:
    return f"{float(angles.median()):.3f}, {float(angles.max()):.3f}"


def _change(a: xr.Dataset, b: xr.Dataset, name: str) -> str:
    """a / b - 1 over all runs in which both are finite."""
    ratio = np.ravel(a[name] / b[name] - 1)
    ratio = ratio[np.isfinite(ratio)]
    return f"{np.median(ratio):+.1%} ({ratio.min():+.1%} to {ratio.max():+.1%})"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    grid = dict(PRESETS[options.preset])
    grid |= {
        name: value
        for name in ("d", "samples", "width", "seeds")
        if (value := getattr(options, name)) is not None
    }
    out = options.out or Path("results") / f"kkt-{options.preset}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        runs = jk.grid(
            d=(grid["d"],),
            samples=grid["samples"],
            width=grid["width"],
            seed=range(grid["seeds"]),
            init_scale=options.init_scale,
        )
        results = study(runs, options.kink_tolerance, out / "parts", not options.quiet)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results.attrs = {"d": grid["d"], "kink_tolerance": options.kink_tolerance}
    save(results, out / "results.nc")
    (out / "tables.md").write_text(tables(results))
    paths = [*figure(results, out), out / "results.nc", out / "tables.md"]
    print(tables(results))
    print("wrote", ", ".join(map(str, paths)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
