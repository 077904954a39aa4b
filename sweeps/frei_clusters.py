"""Clustered data of Frei, Vardi, Bartlett, Srebro (2023): what generalizes, and what is flipped.

Three parts. "generalization": test error, with its confidence interval, against the samples a
cluster, with 1-nearest-neighbour and the max-margin linear classifier beside it. "flips": the size
at which the one direction of the means, sum_q y_q mu_q, flips half and 99% of fresh points, against
d, the number of clusters and the scale of the initial weights, with the paper's robust network and
linear predictor, 1-nearest-neighbour and the paper's sizes beside it. "limit": what becomes of it
as sigma -> 0, where the samples are the means and the theorem that of Vardi et al. (2022). The
paper proves these and ran no experiment. Its Assumption 2.2 asks for d beyond a million at
sigma = 1: the first two parts are outside it, the smallest sigma of the third inside.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.measurements.clusters import of_share
from jaxkkt.theory import constructions, frei

from . import frei_claims
from .frei_claims import along_axis, mean, middle, promised

# Fresh points of 1-nearest-neighbour.
NEIGHBOUR_POINTS = 500
# Beside the trained networks in the figures: variable, name, style.
BESIDE = (
    ("robust_flip_half", "robust network", "C2-"),
    ("neighbour_flip_half", "1-nearest-neighbour", "C3-"),
    ("means_flip_half", "linear predictor", "C4-"),
)


class Classifiers(jk.Measurement):
    """Test error of 1-nearest-neighbour and of the max-margin linear classifier (scikit-learn)."""

    on_host = True

    def measure(self, data: jk.Dataset, test: jk.Dataset) -> dict[str, float]:
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC

        kinds = {"neighbour": KNeighborsClassifier(1), "linear": SVC(kernel="linear", C=1e6)}
        x, y, points, labels = (np.asarray(a) for a in (*data, *test))
        return {
            f"{name}_error": float(np.mean(one.fit(x, y).predict(points) != labels))
            for name, one in kinds.items()
        }


class Others(jk.Measurement):
    """What else the same direction flips, at half of the fresh points, and the size of F8's z.

    The paper's robust network and linear predictor, and 1-nearest-neighbour. `promised` is |z| of
    Theorem 4.2, NaN where Assumption 2.2 does not hold.
    """

    on_host = True

    def measure(self, data: jk.Dataset, test: jk.Dataset, truth: jk.mixtures.Truth) -> Any:
        clusters = frei.clusters(truth.means, truth.labels, truth.sigma, truth.d)
        networks = {"robust": frei.robust_network(clusters), "means": frei.linear_network(clusters)}
        found = {}
        for name, network in networks.items():
            flips = jk.ClusterFlips().measure(network, test, truth)
            found[f"{name}_flip_half"] = flips["cluster_flip_half"]
        few, labels = (a[:NEIGHBOUR_POINTS] for a in test)
        flipped = constructions.neighbour_attacks(few, labels, data.x, data.y, clusters.u)
        sizes = np.sort(flipped.along)
        found["neighbour_flip_half"] = of_share(sizes[sizes > 0], 0.5)
        size = frei.size(clusters)
        found["promised"] = float(jnp.where(size.assumed, size.measured, jnp.nan))
        return found


class MeansAsSamples(jk.Measurement):
    """The setting of Vardi et al. (2022) that sigma -> 0 leads to: the means are the samples.

    `means_flip`: the size along sum_q y_q mu_q that flips all means, for the network as it is.
    `trained_on_means`: c of a network trained on the means, from the same start.
    `promised` and `promised_vardi`: |z| of the two Theorems, NaN where they do not apply.
    """

    on_host = True

    def measure(
        self,
        params: jk.Params,
        start: jk.Params,
        protocol: jk.Protocol,
        truth: jk.mixtures.Truth,
    ) -> dict[str, Any]:
        means, y = (jnp.asarray(a) for a in (truth.means, truth.labels))
        everyone = jnp.ones(len(y), bool)
        unit = jk.perturbations.universal_direction(means, y, everyone)
        flips = jk.perturbations.flip_sizes_exact
        now = flips(params, means, y, unit, everyone).size
        trained = jk.train(start, means, y, protocol).params
        # `jk.Flips`, which would compile anew for every network here.
        chosen = jk.perturbations.on_margin(jk.networks.margins(trained, means, y))
        own = jk.perturbations.universal_direction(means, y, chosen)
        c = flips(trained, means, y, own, chosen).size
        sizes = promised(frei.clusters(means, y, truth.sigma, truth.d))
        return {"means_flip": now, "trained_on_means": c, **sizes}


@dataclass(frozen=True)
class Options(studies.Options):
    part: Literal["all", "generalization", "flips", "limit"] = "all"
    """which part to run"""
    d: tuple[int, ...] = (100, 300, 1000)
    """input dimensions of the flips; the second is that of the generalization, the largest that of
    the limit"""
    clusters: tuple[int, ...] = (4, 10, 30)
    """numbers of clusters; the second is that of the generalization and of the limit"""
    width: tuple[int, ...] = (50, 300)
    """hidden neurons"""
    sigma: tuple[float, ...] = (1.0, 2.0, 3.0)
    """noise of the generalization; flips have 1"""
    per_cluster: tuple[int, ...] = (1, 2, 4, 8, 40)
    """samples a cluster of the generalization; flips have 10 for the most clusters"""
    init_scale: tuple[float, ...] = (0.1, 1.0, 10.0)
    """factors of the initial weights of the flips, at the second d and number of clusters; the
    middle one is that of all else"""
    limit_sigma: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
    """noise of the limit, which has 8 samples a cluster"""
    means: Literal["sphere", "orthogonal"] = "sphere"
    """how the means lie; orthogonal in the limit"""
    seeds: int = 2
    """number of seeds, from 0 on"""


PRESETS = {
    "quick": studies.Preset("92 networks, d to 1,000", per_cluster=(1, 4, 40)),
    "page": studies.Preset("116 networks, d to 1,000: what docs/clusters.md shows"),
    "full": studies.Preset(
        "d to 10,000, 100 clusters, 5 seeds",
        d=(100, 300, 1000, 3000, 10_000),
        clusters=(4, 10, 30, 100),
        seeds=5,
    ),
}


def parts(options: Options) -> list[studies.Part]:
    several_of = ("d", "clusters", "width", "init_scale")  # of which one is chosen
    empty = [name for name in several_of if not getattr(options, name)]
    if empty:
        raise ValueError(f"the grid is empty: no values for {', '.join(empty)}")
    made = {"generalization": generalization, "flips": flips, "limit": limit}
    return [part(options) for name, part in made.items() if options.part in ("all", name)]


def chosen(options: Options) -> tuple[int, int, float]:
    """The one d, number of clusters and initial scale where these do not vary."""
    return middle(options.d), middle(options.clusters), middle(options.init_scale)


def common(options: Options) -> dict[str, Any]:
    return {"data": "clusters", "width": options.width, "seed": range(options.seeds)}


def generalization(options: Options) -> studies.Part:
    d, k, scale = chosen(options)
    runs = jk.grid(
        **common(options),
        means=options.means,
        d=d,
        clusters=k,
        sigma=options.sigma,
        samples=[per * k for per in options.per_cluster],
        init_scale=scale,
        measure=[jk.ClusterFlips, Classifiers],
    )
    return studies.Part(
        runs,
        "generalization",
        claims=frei_claims.generalization,
        panels=[studies.Panel("errors", errors_drawn)],
    )


def flips(options: Options) -> studies.Part:
    d, k, scale = chosen(options)
    flipped: dict[str, Any] = {
        **common(options),
        "means": options.means,
        "samples": 10 * max(options.clusters),
        "measure": [jk.ClusterFlips, Others],
    }
    scaled = jk.grid(**flipped, d=d, clusters=k, init_scale=options.init_scale)
    sized = jk.grid(**flipped, d=options.d, clusters=options.clusters, init_scale=scale)
    return studies.Part(
        list(dict.fromkeys([*sized, *scaled])),
        "flips",
        claims=frei_claims.flips,
        notes=frei_claims.flips_notes,
        panels=[studies.Panel("flips", flips_drawn)],
    )


def limit(options: Options) -> studies.Part:
    _, k, scale = chosen(options)
    runs = jk.grid(
        **{**common(options), "width": max(options.width)},
        means="orthogonal",
        d=max(options.d),
        clusters=k,
        sigma=options.limit_sigma,
        samples=8 * k,
        init_scale=scale,
        measure=[jk.ClusterFlips, jk.Flips, MeansAsSamples],
    )
    return studies.Part(
        runs,
        "limit",
        claims=frei_claims.limit,
        notes=lambda _: frei_claims.closed_forms(k),
        panels=[studies.Panel("limit", limit_drawn)],
    )


def errors_drawn(figure: Figure, results: xr.Dataset) -> None:
    results = along_axis(results.isel(d=0), "sigma")
    k = int(results.clusters)
    axes = figure.subplots(1, results.sigma.size, sharey=True, squeeze=False)[0]
    figure.set_size_inches(3.2 * len(axes), 3.0)
    for ax, sigma in zip(axes, results.sigma.values, strict=True):
        shown = results.sel(sigma=sigma)
        per = shown.samples.values / k
        for i, width in enumerate(shown.width.values):
            one = shown.sel(width=width)
            error, low, high = (
                mean(one, f"test_error{end}").values for end in ("", "_low", "_high")
            )
            bars = np.abs(np.stack([low, high]) - error)
            at = per * 1.05 ** (i - (shown.width.size - 1) / 2)
            ax.errorbar(at, error, bars, marker="o", capsize=2, label=f"trained, width {width}")
        for name, style in (("neighbour", ":"), ("linear", "--")):
            beside = shown[f"{name}_error"].mean(("seed", "width"))
            named = {"neighbour": "1-nearest-neighbour", "linear": "linear max-margin"}[name]
            plotting.line(ax, per, beside, style, color="black", label=named)
        ax.axvline(np.log(float(shown.d)) ** 2, color="grey", linewidth=0.8, label=r"$\ln(d)^2$")
        ax.set_xscale("log")
        ax.set_xticks(per, [f"{value:g}" for value in per], minor=False)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel(r"samples a cluster $n/k$")
        ax.set_title(rf"$\sigma$ = {sigma:g}")
    axes[0].set_ylabel("test error, 95% interval")
    axes[0].legend()


def flips_drawn(figure: Figure, results: xr.Dataset) -> None:
    """Against d, the clusters, and the initial scale, the others at their middle values."""
    shown = along_axis(results.isel(samples=0), "clusters", "init_scale")
    at = {name: middle(shown[name].values) for name in ("d", "clusters", "init_scale")}
    figure.set_size_inches(9, 4.1)
    axes = figure.subplots(1, 3, sharey=True)
    labels = {
        "d": f"input dimension $d$, {at['clusters']} clusters",
        "clusters": f"clusters $k$, $d$ = {at['d']}",
        "init_scale": f"initial scale, $d$ = {at['d']}, {at['clusters']} clusters",
    }
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        one = shown.sel({other: value for other, value in at.items() if other != name})
        _sizes_drawn(ax, one, name)
        plotting.logarithmic(ax, one[name].values)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xlabel(label)
    axes[0].set_ylabel("size that flips half, or 99%, of fresh points")
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=4)


def _sizes_drawn(ax: Axes, one: xr.Dataset, along: str) -> None:
    for i, width in enumerate(one.width.values):
        part, color = one.sel(width=width), ("C0", "C1", "C5", "C6")[i % 4]
        for share, marker in (("half", "o-"), ("99", "^:")):
            size = mean(part, f"cluster_flip_{share}")
            what = f"trained, width {width}" + ("" if share == "half" else ", 99%")
            ax.plot(part[along], size, marker, color=color, label=what)
    for name, what, style in BESIDE:
        ax.plot(one[along], one[name].mean(("seed", "width")), style, marker="s", label=what)
    d, k = (xr.broadcast(one[along], one[name])[1] for name in ("d", "clusters"))
    lines = {
        r"$\sqrt{d}$": (np.sqrt(d), "--"),
        r"$\sqrt{d/k}$": (np.sqrt(d / k), "-"),
        r"$\sqrt{d}/8$, robust network, large $d$": (np.sqrt(d) / 8, ":"),
    }
    for what, (line, style) in lines.items():
        plotting.line(ax, one[along], line, style, color="black", linewidth=0.9, label=what)
    bound = one.promised.mean(("seed", "width"))
    if np.isfinite(bound).any():
        ax.plot(one[along], bound, "k*", label="$|z|$ of Theorem 4.2")


def limit_drawn(figure: Figure, results: xr.Dataset) -> None:
    results = along_axis(results.isel(d=0, samples=0), "sigma")
    axes = figure.subplots(1, 2)
    figure.set_size_inches(7, 3.0)
    few = results.isel(width=-1)
    for name, what, style in (
        ("cluster_flip_99", "99% of fresh points flipped", "C0^:"),
        ("flip_size_exact", "$c$ at the training samples", "C1s-"),
        ("trained_on_means", "$c$, trained on the means", "C4o-"),
    ):
        axes[0].plot(few.sigma, mean(few, name) / mean(few, "means_flip"), style, label=what)
    axes[0].axhline(1, color="black", linewidth=0.8)
    axes[0].set_ylabel("size over that which flips all means")
    k, d = int(few.clusters), float(few.d)
    for name, what, style in (
        ("promised_vardi", "$|z|$, Vardi et al., on the means", "C2s-"),
        ("promised", "$|z|$, Theorem 4.2, where it applies", "C3*-"),
        ("trained_on_means", "$c$, trained on the means", "C4o-"),
        ("cluster_flip_99", "99% of fresh points flipped", "C0^:"),
    ):
        axes[1].plot(few.sigma, few[name].mean("seed"), style, label=what)
    axes[1].axhline(np.sqrt(d), color="black", linestyle="--", linewidth=0.8, label=r"$\sqrt{d}$")
    axes[1].axhline(np.sqrt(d / k), color="black", linewidth=0.8, label=r"$\sqrt{d/k}$")
    axes[1].set_yscale("log")
    axes[1].set_ylim(top=axes[1].get_ylim()[1] * 4)
    axes[1].set_ylabel("size")
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xlabel(r"noise $\sigma$")
        ax.legend()


STUDY = studies.Study("frei-clusters", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
