"""How close gradient flow comes to a KKT point, and where it goes from a loss of 1e-30 on.

Trains networks of several widths and initialization scales through a list of log losses, follows
the flow on to its limit, and certifies every network on the way: the stationarity residual with
relu'(0) = 0 and with Clarke slopes at kinks, slackness, normalized margin, and the size c of the
universal perturbation that flips every sample on the margin. Networks at a loss of 1e-30 and at
the end of the flow are polished to exact KKT points as well. Leaves in the output folder the figure
(PNG and PDF), every run in results.nc, the same over the way that a network was come by and its
log loss in ways.nc, and the tables in tables.md. Run the same command again to go on after an
interruption.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import kkt, studies
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params

TRAINED = (-10.0, -30.0, jk.protocols.TARGET, -300.0, -1e3, -1e4, -1e5)
# From here on the flow is followed in log s; the levels below are those of its own steps.
HANDED_OVER = -1e3
FOLLOWED = (-1e4, -1e5, -1e7, -1e10, -1e20, -1e50)
# A step of log s; halving it moves normalized margins by less than 1e-3.
STEP = 0.05
START, END = jk.protocols.TARGET, FOLLOWED[-1]
POLISHED = {"polished at 1e-30": START, "polished at the end": END}
# Polished networks are certified at this kink tolerance, and meant to reach this residual and
# slackness.
TARGET = 1e-6
# Of ten, where the figure's axis of -log L has ticks.
POWERS = (1, 2, 3, 5, 10, 20, 50)
# Gradients that lead to the last level: python -m benchmarks.kkt --deep.
EXPECTED_STEPS = 17_000
PRESETS = {
    "quick": studies.Preset("18 networks of 40 samples"),
    "full": studies.Preset("81 networks of 10, 40 and 100 samples", samples=(10, 40, 100), seeds=3),
}


@dataclass(frozen=True)
class Options(studies.Options):
    d: int = 100
    """input dimension"""
    samples: tuple[int, ...] = (40,)
    """sample counts"""
    width: tuple[int, ...] = (50, 200, 1000)
    """hidden neurons"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    init_scale: tuple[float, ...] = (1.0, 0.1, 0.01)
    """factor on the initial weights"""
    kink_tolerance: float = 1e-3
    """of the certificates of trained networks, whose steps meet kinks to no more than this;
    polished ones are certified at 1e-6"""


class Nearness(jk.Measurement):
    """Certificate and flip size of one network, with room for most kinks that networks have."""

    kink_tolerance: float = 1e-3

    def measure(self, params: Params, data: Dataset) -> dict[str, Array]:
        m, k = data.y.size, params.v.size
        kinks = m if self.kink_tolerance <= TARGET else min(m, max(24, m * 2 // 3))
        certificates = jk.Certificates(kink_tolerance=self.kink_tolerance, budget=(k, kinks))
        flips = jk.Flips().measure(params, data)
        kept = ("flip_size_exact", "on_margin_share", "normalized_margin")
        return {name: flips[name] for name in kept} | certificates.measure(
            params, data, jk.Protocol()
        )

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return {**jk.Flips().attributes(), **jk.Certificates().attributes()}


@partial(jax.jit, static_argnames="kink_tolerance")
def nearness(networks: Params, data: Dataset, kink_tolerance: float) -> dict[str, Array]:
    """`Nearness` of a stack of networks, one after the other."""
    here = Nearness(kink_tolerance=kink_tolerance)
    return jax.lax.map(lambda params: here.measure(params, data), networks)


class Limit(jk.Measurement):
    """The flow from `HANDED_OVER` on, at the levels `FOLLOWED`, and the two polished networks.

    Nothing of a run that does not reach the last level of its curve, `TRAINED`.
    """

    kink_tolerance: float = 1e-3
    on_host = True

    def measure(self, data: Dataset, curve: Params | None) -> dict[str, Any]:
        if curve is None or len(curve.v) < len(TRAINED):
            return {}
        data = Dataset(*map(jnp.asarray, data))
        handed = _at(curve, TRAINED.index(HANDED_OVER))
        flow = kkt.follow_flow(handed, *data, log_loss=HANDED_OVER, levels=FOLLOWED, step=STEP)
        end = _at(flow.params, -1)
        found = nearness(flow.params, data, self.kink_tolerance)
        values: dict[str, Any] = {f"followed_{name}": value for name, value in found.items()}
        polishes = []
        for before in (_at(curve, TRAINED.index(START)), end):
            made = kkt.polish(before, *data)
            stacked = jax.tree.map(lambda leaf: leaf[None], made.params)
            near = nearness(stacked, data, TARGET)
            polishes.append(
                {
                    **{name: value[0] for name, value in near.items()},
                    "angle_from_start": angle(made.params, before),
                    "angle_to_end": angle(made.params, end),
                    "live": made.live if int(made.live) >= 0 else np.nan,
                    "live_before": made.live_before if int(made.live) >= 0 else np.nan,
                    "polish_status": made.status,
                }
            )
        for name in polishes[0]:
            values[f"polished_{name}"] = np.array([float(one[name]) for one in polishes])
        return values

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        about = {**Nearness().attributes(), **_POLISH_ATTRIBUTES}
        return {f"{way}_{name}": a for way in ("followed", "polished") for name, a in about.items()}


_POLISH_ATTRIBUTES = {
    "angle_from_start": {"long_name": "angle to the network before", "units": "radians"},
    "angle_to_end": {"long_name": "angle to the end of the flow", "units": "radians"},
    "live": {"long_name": "neurons that are active on a sample", "units": "neurons"},
    "live_before": {"long_name": "the same before the polish", "units": "neurons"},
    "polish_status": {"long_name": "how the polish ended", "units": "1"},
}


def _at(stack: Params, index: int) -> Params:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), stack)


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


def ways(results: xr.Dataset, context: studies.Context) -> xr.Dataset:
    """The results over way and log s = log(-log L), samples, width, init_scale and seed.

    Runs that do not reach the last level are NaN; `status` is that of every run's training.
    Raises ValueError where no run reaches it.
    """
    results = results.squeeze("d")
    if "init_scale" not in results.dims:
        results = results.expand_dims("init_scale")
    reached = results.status == jk.Status.CONVERGED
    if not reached.any():
        ends = sorted({jk.Status(status).name for status in np.unique(results.status)})
        raise ValueError(f"no network reached a log loss of {TRAINED[-1]:g}: {', '.join(ends)}")
    found = results.where(reached)
    parts = [
        _way(found, "curve_", "trained", TRAINED),
        _way(found, "followed_", "followed", FOLLOWED),
        *(
            _way(found, "polished_", way, [level], [place])
            for place, (way, level) in enumerate(POLISHED.items())
        ),
    ]
    return xr.concat(parts, "way", join="outer", data_vars="all").assign(status=results.status)


def _way(
    results: xr.Dataset,
    prefix: str,
    way: str,
    levels: Sequence[float],
    places: Sequence[int] | slice = slice(None),
) -> xr.Dataset:
    """The variables of one way over log s, their last dimension, under their own names."""
    arrays = {}
    for name, array in results.data_vars.items():
        if str(name).startswith(prefix):
            over = array.rename({array.dims[-1]: "log_s"}).isel(log_s=places)
            arrays[str(name).removeprefix(prefix)] = over.drop_vars("level", errors="ignore")
    log_s = [_log_s(level) for level in levels]
    return (
        xr.Dataset(arrays).drop_vars("log_s", errors="ignore").assign_coords(log_s=log_s, way=way)
    )


def _log_s(level: float) -> float:
    """log(-log L), rounded so that it can be looked up."""
    return round(float(np.log(-level)), 6)


def figure(drawn: Figure, results: xr.Dataset) -> None:
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
    drawn.set_size_inches(9, 5)
    *axes, last = drawn.subplots(2, 3).flat
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
        if variable not in ("normalized_margin", "flip_size_exact"):
            ax.set_yscale("log")
        ax.set_xscale("log")
        ax.set_xlabel(r"$-\log L$")
        ax.set_xticks(POWERS, [f"$10^{{{power}}}$" for power in POWERS])
        ax.set_title(label)
    last.axis("off")
    title = f"m = {samples}\no trained, x followed, * polished at the end"
    last.legend(*axes[0].get_legend_handles_labels(), title=title, loc="center")


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
    by_scale = [
        f"- initial weights {scale:g} times the default, at a loss of 1e-30: residual (Clarke) "
        f"{float(a.residual_clarke.median()):.2g} (median); against the end of the flow c "
        f"{_change(a, b, 'flip_size_exact')}; normalized margin "
        f"{_change(a, b, 'normalized_margin')}; angle to its KKT point "
        f"{_spread(near.angle_from_start)} radians (median, largest)."
        for scale in results.init_scale.values
        for a, b, near in [[part.sel(init_scale=scale) for part in (early, late, first)]]
    ]
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
        *by_scale,
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


def parts(options: Options) -> list[studies.Part]:
    runs = jk.grid(
        d=options.d,
        samples=options.samples,
        width=options.width,
        init_scale=options.init_scale,
        seed=range(options.seeds),
        target_log_loss=TRAINED[-1],
        max_steps=100_000,
        expected_steps=EXPECTED_STEPS,
        measure=Limit(kink_tolerance=options.kink_tolerance),
        curve=jk.Curve(log_losses=TRAINED, measure=Nearness(kink_tolerance=options.kink_tolerance)),
    )
    return [
        studies.Part(
            runs,
            derived=studies.Derived("ways", ways),
            panels=[studies.Panel("kkt_points", figure)],
            texts=[studies.Text("tables", tables)],
        )
    ]


STUDY = studies.Study("kkt-points", __doc__, Options, parts, PRESETS, folder="kkt")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
