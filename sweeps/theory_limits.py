"""Where the theorems begin to speak: what is guaranteed and found, promised and drawn.

Three parts, all on the host and without a long training. "constructions": for the networks that the
papers construct, for 1-nearest-neighbour, and for a trained network beside them, the size below
which no perturbation flips a point and the smallest that a search finds, against d.
"probabilities": how often the lemmas' events happen in random draws, with 95% intervals, beside
what they promise. "smallest-d": the least dimension at which each assumption can hold at all. The
rows of the last two are networks of two samples and one neuron that are not trained.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.numerics.arithmetic import round_up
from jaxkkt.theory import constructions, frei, vardi

from . import limits_probabilities, limits_smallest

# A guarantee and an attack may differ by this share in float32 where they are equal in exact
# arithmetic, as for the linear predictor.
ROUNDING = 1e-4
POINTS = 32


class Axes(jk.data.Distribution):
    """Section 5.1 of Vardi et al. (2022): x_i = sqrt(d) e_i, half of each label."""

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        x, y = constructions.axis_data(dim)
        return x[:samples], y[:samples]

    def draw_test(self, key: PRNGKeyArray, data_key: PRNGKeyArray, dim: int) -> tuple[Array, Array]:
        return self.draw(key, dim, dim)


def framed(
    networks: dict[str, jk.Params], data: jk.Dataset, points: jk.Dataset, u: Any, paper: Any
) -> dict[str, float]:
    """Guarantee and attack of every network, and of 1-nearest-neighbour, at the first points.

    Arrays are padded to few round sizes, so that runs of all dimensions share a program.
    """
    d = round_up(data.x.shape[1])
    k = round_up(max(len(params.v) for params in networks.values()))
    samples, asked = (
        _padded(a, n, d) for a, n in ((data, round_up(len(data.y))), (points, POINTS))
    )
    u = np.pad(np.asarray(u), (0, d - len(u)))
    found = {
        "neighbour": (
            constructions.neighbour_guarantees(*asked, *samples),
            constructions.neighbour_attacks(*asked, *samples, u),
        )
    }
    for name, params in networks.items():
        wide = jk.networks.pad(params, k, d)
        found[name] = (
            constructions.guaranteed_sizes(wide, *asked),
            constructions.attacks(wide, *asked, *samples, u),
        )
    values = {}
    for name, (guarantee, attack) in found.items():
        safe, size, along = (np.asarray(a, float) for a in (guarantee, attack.size, attack.along))
        right = size > 0  # neither padding nor misclassified
        values[f"{name}_points"] = float(np.sum(~np.isnan(size)))
        values[f"{name}_violations"] = float(np.sum(safe > size * (1 + ROUNDING)))
        for key, sizes in (("guarantee", safe), ("attack", size), ("along", along)):
            values[f"{name}_{key}"] = float(np.median(sizes[right])) if right.any() else np.nan
        values[f"{name}_least_guarantee"] = float(safe[right].min()) if right.any() else np.nan
        kept = np.mean((safe >= paper * (1 - ROUNDING))[~np.isnan(size)])
        values[f"{name}_kept"] = float(kept)
    return values | {"paper": float(paper)}


def _padded(data: jk.Dataset, n: int, d: int) -> jk.Dataset:
    """n rows spread evenly over the data, and zeros with the label 0 where there are fewer."""
    y = np.asarray(data.y)
    chosen = np.unique(np.linspace(0, len(y) - 1, min(n, len(y))).astype(int))
    x = np.asarray(data.x)[chosen]
    rows = n - len(chosen)
    wide = np.pad(x, ((0, rows), (0, d - x.shape[1])))
    return jk.Dataset(jnp.asarray(wide), jnp.asarray(np.pad(y[chosen], (0, rows))))


class OnSamples(jk.Measurement):
    """Theorem 3.1's network on its samples, and the two networks of Section 5.1 on the axes."""

    on_host = True

    def measure(self, params: jk.Params, data: jk.Dataset) -> dict[str, float]:
        x, y = map(jnp.asarray, data)
        summary = vardi.summary(x, y)
        d = x.shape[1]
        share = float(summary.p) / d
        networks = {"robust": vardi.robust_network(x, y, share), "trained": params}
        paper = float(vardi.robust_radius(summary))
        if share == 0:
            networks["larger_margin"] = constructions.larger_margin_network(x, y)
            paper = d**0.5 / 2
        everyone = np.ones(len(y), bool)
        u = jk.perturbations.universal_direction(x, y, everyone)
        return framed(networks, data, data, u, paper)


class OnClusters(jk.Measurement):
    """Theorem 4.1's network and the linear predictor at fresh points of the clusters."""

    on_host = True

    def measure(
        self, params: jk.Params, data: jk.Dataset, test: jk.Dataset, truth: jk.mixtures.Truth
    ) -> dict[str, float]:
        clusters = frei.clusters(truth.means, truth.labels, truth.sigma)
        networks = {
            "robust": frei.robust_network(clusters),
            "linear": frei.linear_network(clusters),
            "trained": params,
        }
        u = clusters.u / jnp.linalg.norm(clusters.u)
        return framed(networks, data, test, u, data.x.shape[1] ** 0.5 / 8)


@dataclass(frozen=True)
class Options(studies.Options):
    part: Literal["all", "constructions", "probabilities", "smallest-d"] = "all"
    """which part to run"""
    d: tuple[int, ...] = (24, 50, 100, 200)
    """input dimensions of the constructions, even; as many samples"""
    clusters: int = 4
    """clusters, with sigma = 1"""
    width: int = 50
    """neurons of the trained network"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    drawn_d: tuple[int, ...] = (10, 30, 100, 300, 1000)
    """input dimensions of the probabilities, at least 10"""
    draws: int = 500
    """random draws of P1 to P6; of all other events 20 times as many"""


PRESETS = {
    "quick": studies.Preset("24 small networks, d to 200; 500 draws"),
    "full": studies.Preset(
        "d to 800, 5 seeds; 10,000 draws",
        d=(24, 50, 100, 200, 400, 800),
        seeds=5,
        drawn_d=(10, 30, 100, 300, 1000, 3000),
        draws=10_000,
    ),
}


def parts(options: Options) -> list[studies.Part]:
    made = {
        "constructions": constructed,
        "probabilities": lambda asked: limits_probabilities.part(asked.drawn_d, asked.draws),
        "smallest-d": lambda _: limits_smallest.part(),
    }
    return [part(options) for name, part in made.items() if options.part in ("all", name)]


def constructed(options: Options) -> studies.Part:
    common: dict[str, Any] = {"alpha": 1.0, "d": options.d, "width": options.width}
    common["seed"] = range(options.seeds)
    clustered: dict[str, Any] = {
        "data": "clusters",
        "clusters": options.clusters,
        "sigma": 1.0,
        "tests": POINTS,
    }
    trained = [
        *jk.grid(data=["sphere", Axes], measure=OnSamples, **common),
        *jk.grid(**clustered, measure=OnClusters, **common),
    ]
    return studies.Part(
        trained,
        "constructions",
        claims=claims,
        panels=[studies.Panel("constructions", drawn)],
        texts=[studies.Text("sizes", table)],
    )


def classifiers(results: xr.Dataset) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Data, classifier, and the sizes of that classifier over d and seed under plain names."""
    for data in ("sphere", "axes", "clusters"):
        here = results.sel(data=data)
        single = [name for name in here.dims if name not in ("d", "seed") and here[name].size == 1]
        here = here.squeeze(single, drop=True)
        for name in ("robust", "larger_margin", "linear", "neighbour", "trained"):
            keys = [str(key) for key in here.data_vars if str(key).startswith(f"{name}_")]
            one = here[keys].rename({key: key.removeprefix(f"{name}_") for key in keys})
            if keys and one.points.notnull().any():
                yield data, name, one.assign(paper=here.paper)


def claims(results: xr.Dataset) -> list[studies.Claim]:
    found = []
    points = violations = 0
    every = {(data, name): one for data, name, one in classifiers(results)}
    for one in every.values():
        points += int(one.points.sum())
        violations += int(one.violations.sum())
    text = "no perturbation is found below the guarantee"
    told = f"{violations} violations at {points} points and classifiers"
    found.append(studies.Claim(text, told, violations == 0 if points else None))
    root = np.sqrt(results.d)

    def measured(data: str, name: str, key: str) -> xr.DataArray:
        """Over d and seed; NaN where no run has it."""
        one = every.get((data, name))
        return xr.full_like(root, np.nan) if one is None else one[key]

    for data, text in (
        ("sphere", "V, Theorem 3.1: no flip within (1-c) sqrt(d)/4"),
        ("axes", "V, Section 5.1: the robust network needs more than sqrt(d)/2"),
        ("clusters", "F, Theorem 4.1: nearly no fresh point is flipped within sqrt(d)/8"),
    ):
        kept, attack = measured(data, "robust", "kept"), measured(data, "robust", "attack") / root
        promised = xr.ones_like(kept)
        if data == "clusters":
            # What the proof's union bound leaves for fresh points.
            promised = promised * xr.DataArray(
                [max(frei.separated(int(d)), 0) for d in kept.d.values], dims="d"
            )
        told = f"guaranteed at {float(kept.min()):.1%} to {float(kept.max()):.1%} of the points; "
        told += f"median attack {float(attack.min()):.2f} to {float(attack.max()):.2f} sqrt(d)"
        found.append(studies.judged(text, told, ~(kept < promised).any(), kept.max()))
    larger = measured("axes", "larger_margin", "attack")
    told = f"flipped by {float(larger.min()):.2f} to {float(larger.max()):.2f}"
    text = "V, Section 5.1: 2 sqrt(2) flips the network of larger margin"
    found.append(studies.judged(text, told, larger.max() <= 8**0.5, larger.max()))
    unit = np.sqrt(results.d / results.clusters.max())
    linear = measured("clusters", "linear", "attack") / unit
    told = f"median attack {float(linear.min()):.2f} to {float(linear.max()):.2f} sqrt(d/k)"
    text = "F: the linear predictor is flipped at about sqrt(d/k)"
    near = linear.min() > 0.5 and linear.max() < 2
    found.append(studies.judged(text, told, near, linear.max()))
    safe, attack = (
        measured("clusters", "neighbour", key) / root for key in ("guarantee", "attack")
    )
    told = f"guaranteed {float(safe.min()):.2f} sqrt(d) at least, attack "
    told += f"{float(attack.max()):.2f} sqrt(d) at most (medians)"
    text = "F: 1-nearest-neighbour needs about sqrt(d)"
    found.append(studies.judged(text, told, ~(safe < 1 / 8).any(), safe.max()))
    return found


def table(results: xr.Dataset) -> str:
    """Medians over the points, means over the seeds."""
    lines = [
        "| data | classifier | d | guarantee | attack | along u | attack / sqrt(d) | guaranteed "
        "the paper's size |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for data, name, one in classifiers(results):
        mean = one.mean("seed") if "seed" in one.dims else one
        for d in mean.d.values:
            at = mean.sel(d=d)
            sizes = [f"{float(at[key]):.3g}" for key in ("guarantee", "attack", "along")]
            sizes.append(f"{float(at.attack) / d**0.5:.3f}")
            told = name == "robust" and not np.isnan(at.kept)
            kept = f"{float(at.kept):.0%} of {float(at.paper):.3g}" if told else ""
            lines.append(f"| {data} | {name} | {d} | {' | '.join(sizes)} | {kept} |")
    return "\n".join(lines)


def drawn(figure: Figure, results: xr.Dataset) -> None:
    """Bands from guarantee to attack, medians over points, against d."""
    figure.set_size_inches(10, 4)
    axes = dict(
        zip(("sphere", "axes", "clusters"), figure.subplots(1, 3, sharey=True), strict=True)
    )
    colors = {"robust": 0, "larger_margin": 1, "linear": 4, "neighbour": 2, "trained": 3}
    d = results.d.values
    for data, name, one in classifiers(results):
        ax, mean = axes[data], one.mean("seed") if "seed" in one.dims else one
        color = f"C{colors[name]}"
        label = name.replace("_", " ").replace("neighbour", "1-nearest-neighbour")
        ax.plot(d, mean.attack, "o-", color=color, label=label)
        ax.plot(d, mean.guarantee.where(mean.guarantee > 0), "^:", color=color)
        if name == "robust":
            plotting.line(ax, d, mean.paper, "k--", label="paper's size, robust")
    shown: dict[str, Any] = {}
    titles = ("sphere, m = d samples", r"$x_i = \sqrt{d}\, e_i$", "clusters, fresh points")
    for ax, title in zip(axes.values(), titles, strict=True):
        plotting.logarithmic(ax, d)
        ax.set_xlabel("input dimension $d$")
        ax.set_title(title)
        handles, labels = ax.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    axes["sphere"].set_ylabel("attack (o), guarantee (triangles)")
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=6)


STUDY = studies.Study("theory-limits", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
