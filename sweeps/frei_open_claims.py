"""Claims, tables and figures of `frei_open`, with confidence intervals."""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.measurements.clusters import error_interval

from .frei_claims import along_axis

# Fresh points of a network.
TESTS = 2000
LARGEST_RATIO, CONFIDENCE = 2.0, 0.95


def by_clusters(results: xr.Dataset) -> xr.Dataset:
    """Over clusters, sigma, width and seed: each number of clusters has its number of samples."""
    results = along_axis(results, "clusters", "samples", "sigma", "width", "seed")
    places = xr.DataArray(np.arange(results.clusters.size), dims="clusters")
    found = results.isel(d=0).drop_vars("clusters").isel(clusters=places, samples=places)
    return found.assign_coords(clusters=results.clusters.values)


def pooled(one: xr.Dataset) -> tuple[float, float, float]:
    """Test error over the fresh points of all seeds that converged, and its 95% interval."""
    errors = one.test_error.where(one.status == jk.Status.CONVERGED).values
    errors = np.round(errors[np.isfinite(errors)] * TESTS)
    if not errors.size:
        return np.nan, np.nan, np.nan
    count, points = int(errors.sum()), TESTS * errors.size
    return count / points, *error_interval(count, points)


def many(results: xr.Dataset) -> list[studies.Claim]:
    results = by_clusters(results)
    converged = results.status == jk.Status.CONVERGED
    found = []
    for sigma in results.sigma.values:
        widest = results.sel(sigma=sigma).isel(width=-1)
        for k in results.clusters.values:
            one = widest.sel(clusters=k)
            error, low, high = pooled(one)
            # On the same points.
            beside = one.where(one.status == jk.Status.CONVERGED)
            others = [f"{n} {float(beside[f'{n}_error'].mean()):.4f}" for n in KINDS]
            told = f"{error:.4f} ({low:.4f} to {high:.4f}); {', '.join(others)}; "
            told += f"{int(one.separable.sum())} of {one.seed.size} draws separable; trained "
            told += f"{int(converged.sel(sigma=sigma, clusters=k).sum())} of "
            told += f"{results.width.size * one.seed.size}"
            near = bool(low <= beside.neighbour_error.mean()) if np.isfinite(error) else None
            text = f"k = {k}, sigma = {sigma:g}: no worse than 1-nearest-neighbour"
            found.append(studies.Claim(text, told, near))
    unit = np.sqrt(results.d / results.clusters)
    for name, share in (("half", "half"), ("99", "99%")):
        ratio = (results[f"cluster_flip_{name}"] / unit).where(converged).mean(("width", "seed"))
        each = ratio.mean("sigma")
        told = ", ".join(f"{float(r):.2f} (k = {k})" for k, r in each.to_series().items())
        text = f"one direction flips {share} of fresh points at O(sqrt(d/k))"
        told, largest = f"in units of sqrt(d/k): {told}", ratio.max()
        found.append(studies.judged(text, told, largest <= LARGEST_RATIO, largest))
    return found


# Classifiers beside the networks, with the style of their lines.
KINDS = {"neighbour": "k:", "linear": "k--", "best": "C2-"}


def many_drawn(figure: Figure, results: xr.Dataset) -> None:
    results = by_clusters(results)
    axes = figure.subplots(1, results.sigma.size + 1, squeeze=False)[0]
    figure.set_size_inches(3.8 * len(axes), 3.6)
    unit = np.sqrt(results.d / results.clusters)
    for i, (ax, sigma) in enumerate(zip(axes, results.sigma.values, strict=False)):
        shown = results.sel(sigma=sigma)
        for width in shown.width.values:
            ends = [pooled(shown.sel(width=width, clusters=k)) for k in shown.clusters.values]
            error, low, high = np.asarray(ends).T
            bars = np.clip([error - low, high - error], 0, None)
            ax.errorbar(shown.clusters, error, bars, marker="o", capsize=2, label=f"width {width}")
        for name, style in KINDS.items():
            error = shown[f"{name}_error"].mean(("seed", "width"))
            plotting.line(ax, shown.clusters, error, style, label=name)
        ax.set(xscale="log", xlabel="clusters $k$", title=rf"$\sigma$ = {sigma:g}")
        size = (shown.cluster_flip_half / unit).mean(("seed", "width"))
        axes[-1].plot(shown.clusters, size, "o-", color=f"C{i}", label=rf"$\sigma$ = {sigma:g}")
    axes[0].set_ylabel("test error")
    axes[0].legend()
    axes[-1].set(xscale="log", xlabel="clusters $k$", title="flips", ylim=(0, None))
    axes[-1].set_ylabel(r"half flipped at, in $\sqrt{d/k}$")
    axes[-1].legend()


def differences(results: xr.Dataset, name: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the seeds of an error less the linear classifier's, and half its 95% interval.

    Student's t over the seeds that converged.
    """
    from scipy.stats import t

    gap = (results[name] - results.linear_error).where(results.status == jk.Status.CONVERGED)
    count = gap.count("seed")
    half = gap.std("seed", ddof=1) / np.sqrt(count)
    return gap.mean("seed"), half * t.ppf((1 + CONFIDENCE) / 2, np.maximum(count - 1, 1))


def settings(results: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    results = along_axis(results, "surface", "gap", "samples", "width", "seed").isel(d=0)
    for surface in results.surface.values:
        for gap in results.gap.values:
            yield f"{surface}, gap {gap:g}", results.sel(surface=surface, gap=gap)


def compared(results: xr.Dataset) -> list[studies.Claim]:
    found = []
    for at, one in settings(results):
        for name, who in (("test_error", "networks"), ("polished_error", "polished KKT points")):
            mean, half = differences(one, name)
            worse, better = int((mean - half > 0).sum()), int((mean + half < 0).sum())
            told = f"mean difference {float(mean.min()):+.4f} to {float(mean.max()):+.4f}; of "
            told += f"{int(half.count())} intervals {better} below 0, {worse} above 0"
            holds = False if worse else True if better else None
            text = f"{who} err no more than the linear max-margin classifier: {at}"
            found.append(studies.Claim(text, told, holds))
    return found


def table(results: xr.Dataset) -> str:
    """Mean errors and paired differences, a line for each setting, count and width."""
    lines = [
        "| data | n | width | linear | 1-nn | network | less linear | KKT point | less linear |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for at, one in settings(results):
        good = one.where(one.status == jk.Status.CONVERGED).mean("seed")
        gaps = {name: differences(one, name) for name in ("test_error", "polished_error")}
        for n in one.samples.values:
            for width in one.width.values:
                place = {"samples": n, "width": width}
                cells = [float(good[f"{k}_error"].sel(place)) for k in ("linear", "neighbour")]
                told = [f"{cell:.4f}" for cell in cells]
                for name, ends in gaps.items():
                    mean, half = (float(a.sel(place)) for a in ends)
                    there = np.isfinite(mean)
                    told += [f"{float(good[name].sel(place)):.4f}" if there else ""]
                    told += [f"{mean:+.4f} ± {half:.4f}" if there else ""]
                lines.append(f"| {at} | {n} | {width} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def compared_drawn(figure: Figure, results: xr.Dataset) -> None:
    shown = list(settings(results))
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    figure.set_size_inches(3 * len(axes) + 0.5, 3.6)
    for ax, (at, one) in zip(axes, shown, strict=True):
        place = np.arange(one.samples.size)
        for i, width in enumerate(one.width.values):
            for j, (name, kind) in enumerate((("test_error", ""), ("polished_error", ", KKT"))):
                mean, half = (a.sel(width=width) for a in differences(one, name))
                beside = place + 0.1 * (2 * i + j - one.width.size + 0.5)
                style = f"C{i}{'ox'[j]}"
                ax.errorbar(beside, mean, half, fmt=style, capsize=2, label=f"width {width}{kind}")
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(xticks=place, xticklabels=one.samples.values, xlabel="samples $n$", title=at)
    axes[0].set_ylabel("test error less the linear one's")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
