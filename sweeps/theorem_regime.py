"""The theorems of Vardi et al. (2022) and Frei et al. (2023) where their assumptions hold.

Theorem 4.1 of the first paper allows sqrt(d)/12 to sqrt(d)/15 samples, Assumption 2.2 of the
second asks for d beyond a million at sigma = 1: held in full, such points take gigabytes. Points of
R^d are drawn in coordinates of their span here (jk.spans), so that d costs nothing. Networks are
trained, polished to KKT points, and every lemma of both papers is held against them (jk.Ledger).
Two parts: "vardi", with as many samples as the theorem allows, and "frei", in two of the paper's
settings: orthogonal means with sigma = 1/sqrt(d), and with sigma = 1.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import measurements, plotting, studies
from jaxkkt.networks import PRECISION
from jaxkkt.theory import vardi


class AtKKTPoint(jk.Measurement):
    """The ledger of the KKT point that a network is polished to, its c, and |z| of Theorem 4.1."""

    on_host: ClassVar[bool] = True

    def measure(
        self,
        params: jk.Params,
        data: jk.Dataset,
        start: jk.Params,
        protocol: Any,
        test: jk.Dataset | None = None,
        truth: Any = None,
    ) -> dict[str, Any]:
        x, y = (jnp.asarray(a) for a in data)
        network = jk.Params(*map(jnp.asarray, params))
        polished = jk.kkt.polish(network, x, y, trained=protocol.trained)
        ledger = jk.Ledger(polish=False).measure(
            polished.params, data, start, protocol, test, truth
        )
        flips = jk.Flips().measure(polished.params, jk.Dataset(x, y))
        s = vardi.summary(x, y, d=jnp.asarray(truth.d))
        z = sum(s.etas) * jnp.linalg.norm(jnp.dot(y, x, precision=PRECISION))
        return {
            **ledger,
            "polished_flip_size": flips["flip_size_exact"],
            "polish_angle": polished.angle,
            "polish_status": polished.status,
            "z_norm": jnp.where(vardi.room(s).assumed, z, jnp.nan),
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return jk.Ledger().attributes()

    def axes(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        return jk.Ledger().axes()


@dataclass(frozen=True)
class Options(studies.Options):
    part: Literal["both", "vardi", "frei"] = "both"
    """which part to run"""
    d: tuple[float, ...] = (1e5, 1e6)
    """dimensions of the first paper's part"""
    orthogonal_d: tuple[float, ...] = (1e4,)
    """dimensions of the second paper's setting with sigma = 1/sqrt(d)"""
    orthogonal_clusters: int = 12
    """clusters there; at d = 1e4 the assumption allows 26"""
    noisy_clusters: tuple[int, ...] = (4,)
    """clusters of its setting with sigma = 1, at d = 1e7; the assumption allows 4"""
    width: int = 60
    """hidden neurons"""
    tests: int = 100
    """fresh points of the second paper's part"""
    seeds: int = 2
    """number of seeds, from 0 on"""


PRESETS = {
    "quick": studies.Preset("d to a million for the first paper, to ten million for the second"),
    "full": studies.Preset(
        "d to ten million for both, 5 seeds",
        d=(1e4, 1e5, 1e6, 1e7),
        orthogonal_clusters=26,
        noisy_clusters=(2, 4),
        seeds=5,
    ),
}


def allowed(d: float) -> int:
    """As many points of the sphere as Theorem 4.1 allows, as a rule: m <= (d+1)/(3 (p+1)) for p as
    large as the largest of m^2/2 products rarely is, 1.1 sqrt(2 d ln(m^2/2))."""
    m = 2
    while 3 * (m + 1) * (1.1 * sqrt(2 * d * log((m + 1) ** 2 / 2)) + 1) <= d + 1:
        m += 1
    return m


def parts(options: Options) -> list[studies.Part]:
    made = {"vardi": first_paper, "frei": second_paper}
    return [part(options) for name, part in made.items() if options.part in ("both", name)]


def common(options: Options) -> dict[str, Any]:
    return {
        "width": options.width,
        "seed": range(options.seeds),
        "initialization": "spanned",
    }


def first_paper(options: Options) -> studies.Part:
    runs = []
    for d in options.d:
        ambient: dict[str, Any] = {"data_ambient": d, "init_ambient": d, "samples": allowed(d)}
        measure = [jk.Flips, AtKKTPoint]
        runs += jk.grid(data="span", **ambient, **common(options), measure=measure)
    return studies.Part(
        runs,
        "vardi",
        claims=claims,
        panels=[studies.Panel("sizes", drawn)],
        texts=[studies.Text("ledger", measurements.ledger_table)],
        forget=True,
    )


def second_paper(options: Options) -> studies.Part:
    runs = []
    quiet = [(d, 1 / sqrt(d), options.orthogonal_clusters) for d in options.orthogonal_d]
    for d, sigma, k in [*quiet, *((1e7, 1.0, k) for k in options.noisy_clusters)]:
        runs += jk.grid(
            data=jk.data.Clusters(
                clusters=k,
                sigma=sigma,
                means="orthogonal",
                samples=max(5 * k, 24),
                tests=options.tests,
                ambient=d,
            ),
            init_ambient=d,
            **common(options),
            measure=[jk.ClusterFlips, jk.Ledger],
        )
    texts = [studies.Text("ledger", measurements.ledger_table)]
    return studies.Part(runs, "frei", claims=frei_claims, texts=texts)


def rows(results: xr.Dataset) -> pd.DataFrame:
    """A row a run that counts: where sizes go together they are few of all combinations."""
    names = [name for name, one in results.data_vars.items() if "claim" not in one.dims]
    names = [n for n in names if set(results[n].dims) == set(results.status.dims)]
    table = results[names].assign(counts=counts(results)).to_dataframe().reset_index()
    return table[table.pop("counts")]


def counts(results: xr.Dataset) -> xr.DataArray:
    """Which runs ended as meant, with a polish to a KKT point where they have one."""
    good = results.status.isin(jk.training.SUCCEEDED)
    polished = results.get("polish_status", jk.kkt.PolishStatus.POLISHED)
    return good & (polished == jk.kkt.PolishStatus.POLISHED)


def lemmas(results: xr.Dataset) -> studies.Claim:
    """The paper's lemmas wherever their assumptions hold; P1 to P6 are events, and assumed. Those
    that were asked of nothing, as of nice points where no point is, do not count."""
    results = results.sel(claim=[c for c in results.claim.values if "Frei P" not in c])
    nothing = (results.ledger_vacuous == 1) & results.ledger_measured.isnull()
    applies = (results.ledger_assumed == 1) & ~nothing & counts(results)
    holds = (results.ledger_holds == 1) & applies
    broken = sorted(set(results.claim.values[np.unique(np.nonzero((applies & ~holds).values)[-1])]))
    told = f"{int(holds.sum())} of {int(applies.sum())}"
    told += f"; broken: {', '.join(broken)}" if broken else ""
    text = "every lemma holds wherever its assumptions do"
    return studies.Claim(text, told, bool((holds == applies).all()) if applies.any() else None)


def claims(results: xr.Dataset) -> list[studies.Claim]:
    table = rows(results)
    inside = table[np.isfinite(table.z_norm)]
    ratio = inside.polished_flip_size / inside.z_norm
    root = np.sqrt(table.data_ambient)
    trained, polished = table.flip_size_exact / root, table.polished_flip_size / root
    by_d = table.assign(ratio=polished).groupby("data_ambient").ratio.mean()
    told = ", ".join(f"{value:.3f} (d = {d:.0e})" for d, value in by_d.items())
    return [
        lemmas(results),
        studies.judged(
            "Theorem 4.1's z flips every sample",
            f"{len(inside)} of {len(table)} networks inside its assumptions; c of the KKT point is "
            f"{ratio.min():.3f} to {ratio.max():.3f} of |z|",
            (ratio <= 1).all(),
            ratio.max(),
        ),
        studies.Claim(
            "c falls below every share of sqrt(d), at as many samples as the theorem allows",
            f"mean c/sqrt(d) of the KKT points: {told or 'none'}",
            bool((by_d.values[1:] < by_d.values[:-1]).all()) if len(by_d) > 1 else None,
        ),
        studies.judged(
            "training already shows it",
            f"c of trained networks is {float((trained / polished).min()):.3f} to "
            f"{float((trained / polished).max()):.3f} of that of their KKT points",
            (abs(trained / polished - 1) < 0.1).all(),
            (trained / polished).max(),
        ),
    ]


def frei_claims(results: xr.Dataset) -> list[studies.Claim]:
    table = rows(results)
    half = table.cluster_flip_half / np.sqrt(table.data_ambient / table.clusters)
    most = table.cluster_flip_99 / np.sqrt(table.data_ambient / table.clusters)
    return [
        lemmas(results),
        studies.judged(
            "KKT points classify fresh points",
            f"largest test error of {len(table)} trained networks {table.test_error.max():.4f}",
            (table.test_error == 0).all(),
            table.test_error.max(),
        ),
        studies.judged(
            "one direction flips 99% of fresh points at O(sqrt(d/k))",
            f"{most.min():.2f} to {most.max():.2f} sqrt(d/k); half at {half.min():.2f} to "
            f"{half.max():.2f}",
            (most <= 2).all(),
            most.max(),
        ),
    ]


def drawn(figure: Figure, results: xr.Dataset) -> None:
    ax = figure.subplots()
    figure.set_size_inches(5.5, 4)
    table = rows(results)
    d = np.sort(table.data_ambient.unique())
    plotting.line(ax, d, np.sqrt(d), "--", color="black", label=r"$\sqrt{d}$")
    kinds = {
        "z_norm": "|z| of Theorem 4.1",
        "flip_size_exact": "c, trained",
        "polished_flip_size": "c, KKT point",
    }
    for name, marker in zip(kinds, "^ox", strict=True):
        ax.plot(table.data_ambient, table[name], marker, label=kinds[name])
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("input dimension $d$")
    ax.set_ylabel("size of the perturbation")
    ax.legend()


STUDY = studies.Study("theorem-regime", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
