"""Claims, table and figure of `vardi_bounds`: what is promised beside what was measured."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies


def converged(results: xr.Dataset) -> xr.Dataset:
    """Over d, the counts (samples or alpha) and seed; only of runs that converged."""
    for name in ("d", "seed"):
        results = results if name in results.dims else results.expand_dims(name)
    by = "alpha" if "alpha" in results.dims else "samples"
    results = results if by in results.dims else results.expand_dims(by)
    results = results.isel({name: 0 for name in results.dims if name not in ("d", "seed", by)})
    return results.where(results.status == jk.Status.CONVERGED).rename({by: "count"})


def counted(results: xr.Dataset) -> xr.Dataset:
    """Those that flipped as well."""
    results = converged(results)
    return results.where(np.isfinite(results.flip_size_exact))


def _named(results: xr.Dataset) -> str:
    return "alpha" if "alpha" in results.dims else "m"


def claims(results: xr.Dataset) -> list[studies.Claim]:
    by, one, trained = _named(results), counted(results), converged(results)
    c = one.flip_size_exact
    found = []
    for prefix, measured, text in (
        ("", c, "every sample is in the assumptions of Theorem 4.1"),
        ("margin_", c, "the samples on the margin are in those of Corollary 4.1"),
        ("polished_", one.polished_flip, "the polished KKT point is in those of Corollary 4.1"),
    ):
        applies = one[f"{prefix}applies"]
        each = [
            f"{int((applies.sel(count=n) == 1).sum())} of {int(applies.sel(count=n).count())} "
            f"({by} = {n:g})"
            for n in one["count"].values
        ]
        everywhere = bool((applies == 1).sum() == applies.count()) if applies.count() else None
        found.append(studies.Claim(text, ", ".join(each), everywhere))
        z = one[f"{prefix}z_norm"]
        ratio = (measured / z).where(applies == 1)
        told = f"c/|z| {float(ratio.min()):.3f} to {float(ratio.max()):.3f}; |z|/sqrt(d) "
        told += (
            f"{float((z / np.sqrt(one.d)).min()):.2f} to {float((z / np.sqrt(one.d)).max()):.2f}"
        )
        few = int(ratio.count())
        text, told = f"there c <= |z|: {few} runs", told if few else "none"
        inside = trained.where(trained[f"{prefix}applies"] == 1)
        # The polished point's own c is among what is compared.
        none = 0 if prefix == "polished_" else studies.unflipped(inside, "flip_size_exact")
        found.append(studies.judged(text, told, ratio.max() <= 1, ratio.max(), unflipped=none))
    inside = one.bound / np.sqrt(one.d)
    if inside.count():
        told = f"{float(inside.min()):.1f} sqrt(d) at the least"
        holds = bool(inside.min() < 1)
        found.append(studies.Claim("Lemma C.9 is below sqrt(d) somewhere", told, holds))
    gap = one.robust_first / one.radius
    told = f"first sample flipped at {float(gap.min()):.2f} to {float(gap.max()):.2f} of the radius"
    text = "the robust network is not flipped within its radius, along the same direction"
    found.append(studies.judged(text, told, gap.min() >= 1, gap.min()))
    for n in one["count"].values:
        none = studies.unflipped(trained.sel(count=n).isel(d=-1), "flip_size_exact")
        found.append(_robust_claim(one.sel(count=n), f"{by} = {n:g}", none))
    return found


def _robust_claim(one: xr.Dataset, at: str, unflipped: int) -> studies.Claim:
    """From which dimension on the robust network's radius is above the mean c."""
    c, radius = (one[name].mean("seed") for name in ("flip_size_exact", "radius"))
    more = (radius > c).values
    after = int(np.argmin(more[::-1])) if not more.all() else len(more)
    told = f"c {float(c[0]):.2f} to {float(c[-1]):.2f}, radius {float(radius[0]):.2f} to "
    told += f"{float(radius[-1]):.2f}, d = {int(one.d[0])} to {int(one.d[-1])}; larger "
    told += f"from d = {int(one.d[len(more) - after])} on" if after else "not at the largest"
    text = f"the robust radius is larger than c, {at}"
    return studies.judged(text, told, bool(after), c[-1], radius[-1], unflipped=unflipped)


def table(results: xr.Dataset) -> str:
    """Means over the seeds; |z| and bounds over those where the assumptions hold."""
    by, one = _named(results), counted(results)
    sizes = ("flip_size_exact", "polished_flip", "z_norm", "polished_z_norm", "bound")
    names = (*sizes, "radius", "robust_first", "robust_flip")
    lines = [
        f"| {by} | d | inside | c | c, polished | \\|z\\| | \\|z\\|, polished | Lemma C.9 | robust "
        "radius | robust, first flip | robust, all flipped |",
        "| ---: " * 11 + "|",
    ]
    for n in one["count"].values:
        for d in one.d.values:
            here = one.sel(count=n, d=d)
            inside = f"{int((here.applies == 1).sum())} of {int(here.applies.count())}"
            cells = [float(here[name].mean()) for name in names]
            told = " | ".join("" if np.isnan(cell) else f"{cell:.2f}" for cell in cells)
            lines.append(f"| {n:g} | {d} | {inside} | {told} |")
    return "\n".join(lines) + "\n"


# Variable, name and style of what is drawn.
LINES = (
    ("flip_size_exact", "$c$, trained", "C0o-"),
    ("polished_flip", "$c$, KKT point", "C0x:"),
    ("z_norm", "$|z|$, Theorem 4.1", "C3s-"),
    ("bound", "Lemma C.9", "C3v--"),
    ("radius", "robust radius, Theorem 3.1", "C2-"),
    ("robust_first", "robust network, first flip", "C2^:"),
)


def drawn(figure: Figure, results: xr.Dataset) -> None:
    """c against d with everything over it, a panel for each sample count."""
    by, one = _named(results), counted(results)
    panels = one["count"].size
    figure.set_size_inches(2.9 * panels + 0.4, 4.2 if panels > 1 else 4.5)
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    for ax, n in zip(axes, one["count"].values, strict=True):
        _drawn_at(ax, one.sel(count=n))
        ax.set_title(rf"$\alpha$ = {n:g}" if by == "alpha" else f"m = {n:g}")
    axes[0].set_ylabel("size of a perturbation")
    columns = min(4, 2 * panels)
    figure.legend(handles=axes[0].get_lines(), loc="outside upper center", ncols=columns)


def _drawn_at(ax: Axes, one: xr.Dataset) -> None:
    for name, label, style in LINES:
        plotting.line(ax, one.d, one[name].mean("seed"), style, markersize=4, label=label)
    plotting.line(ax, one.d, np.sqrt(one.d), "k--", label=r"$\sqrt{d}$")
    plotting.logarithmic(ax, one.d.values)
    ax.set_xlabel("input dimension $d$")
