"""The least dimension at which the assumptions of the papers can hold, from closed forms."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.theory import frei, vardi, wang

LARGEST = 2**50


class Limit(NamedTuple):
    """A condition on d, whether it is met at d, and the paper's name for where it stands."""

    text: str
    met: Callable[[int], bool]
    source: str


def typical_product(m: int, d: int) -> float:
    """The median of max |<x_i, x_l>| over the pairs of m points uniform on the unit sphere of R^d.

    Pairs are taken as independent, which they are two by two: exact for m = 2. |<x, x'>|^2 has the
    Beta(1/2, (d-1)/2) distribution, whose density is `vardi.correlation_density`. Raises ValueError
    unless m and d are at least 2.
    """
    from scipy.stats import beta  # here: it takes as long to import as all of jaxkkt

    if m < 2 or d < 2:
        raise ValueError(f"pairs of at least 2 points in dimension 2, got m = {m}, d = {d}")
    above = -np.expm1(-np.log(2) / (m * (m - 1) / 2))
    return float(np.sqrt(beta.isf(above, 0.5, (d - 1) / 2)))


def smallest(met: Callable[[int], bool], first: int = 2) -> int | None:
    """The least d >= `first` from which on `met` holds, by doubling and bisection.

    `met` may turn true once, and stays so. None where it does not up to 2^50.
    """
    high = first
    while not met(high):
        high *= 2
        if high > LARGEST:
            return None
    if high == first:
        return first
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def few_enough(m: int, d: int, *, orthogonal: bool = False) -> bool:
    """Theorem 4.1 of Vardi et al. on m random or orthogonal points: m <= (d+1) / (3 (p+1))."""
    p = 0.0 if orthogonal else d * typical_product(m, d)
    return d >= m and m <= (d + 1) / (3 * (p + 1))


def perturbation_size(m: int, d: int, *, orthogonal: bool = False) -> float:
    """|z| = (eta1 + eta2) |u| of Theorem 4.1 for m random or orthogonal points, half of each label.

    |u|^2 is m d, of random points on average; inf where d <= m p.
    """
    p, c = 0.0 if orthogonal else d * typical_product(m, d), 0.5
    room = d - m * p
    if room <= 0:
        return np.inf
    c_prime = m * (p + 1) / (d + 1)
    etas = (p + 1) / room + 2 * (c * c_prime + 1) * (d + 1) / (m * c * room)
    return float(etas * (m * d) ** 0.5)


def least_that_says_something(orthogonal: bool) -> tuple[int, int]:
    """The least d, over even m up to 100, at which Theorem 4.1 applies and its |z| is below
    sqrt(d), the size at which any point becomes one of the other label; and that m."""

    def met(m: int, d: int) -> bool:
        asked = few_enough(m, d, orthogonal=orthogonal)
        return asked and perturbation_size(m, d, orthogonal=orthogonal) < d**0.5

    # Where |z| is not below sqrt(d) at a huge d, it is nowhere: m is too small.
    fit = [m for m in range(2, 101, 2) if met(m, LARGEST)]
    return min((smallest(partial(met, m)) or LARGEST, m) for m in fit)


def clustered(k: int, d: int, *, tight: bool = False, random: bool = False) -> bool:
    """Assumption 2.2 of Frei et al.: k (p + Delta + 1) <= (d - Delta + 1)/10.

    sigma is 1, or 1/sqrt(d) where `tight`; the means are orthogonal or uniform on the sphere.
    """
    p = d * typical_product(k, d) if random else 0.0
    delta = 4 * np.log(d) * (1 if tight else d**0.5)
    return bool(d > k and k * (p + delta + 1) <= (d - delta + 1) / 10)


def fewest(k: int, d: int) -> int:
    """n = k ln(d)^2, the fewest samples that the theorems on k clusters allow."""
    return int(np.ceil(k * np.log(d) ** 2))


def limits() -> list[Limit]:
    """Every condition, by paper."""
    bounds = ((True, "1/2"), (False, "ln(d)/sqrt(d)"))
    arranged = ((False, "orthogonal"), (True, "random"))
    return [
        *(
            Limit(f"Theorem 4.1, {m} random samples", partial(few_enough, m), "V")
            for m in (2, 4, 10, 100)
        ),
        *(
            Limit(f"Lemma 3.1 above 0, {m} samples, {bound}", partial(_uncorrelated, m, half), "V")
            for m in (10, 100)
            for half, bound in bounds
        ),
        *(
            Limit(
                f"Assumption 2.2, {k} {means} means, sigma = 1",
                partial(clustered, k, random=random),
                "F",
            )
            for random, means in arranged
            for k in (2, 4, 10)
        ),
        *(
            Limit(
                f"Assumption 2.2, {k} orthogonal means, sigma = 1/sqrt(d)",
                partial(clustered, k, tight=True),
                "F",
            )
            for k in (2, 4, 10)
        ),
        Limit("Lemma 2.1 above 0", lambda d: frei.separated(d) > 0, "F"),
        Limit("P1 to P6 above 0, 2 clusters", lambda d: frei.nice_sample(fewest(2, d), d) > 0, "F"),
        Limit(
            "test error below 1, 2 clusters", lambda d: frei.test_error(fewest(2, d), d) < 1, "F"
        ),
        Limit("Theorem 3.1, a width with C3 = C4 = 1", _has_width, "W"),
    ]


def _uncorrelated(m: int, half: bool, d: int) -> bool:
    return vardi.uncorrelated(m, d, half=half) > 0


def _has_width(d: int) -> bool:
    least, most = wang.width_window(d)
    return least <= most


def computed(_: xr.Dataset, __: studies.Context) -> xr.Dataset:
    """The least d of every limit, -1 where there is none."""
    every = limits()
    found = [smallest(limit.met) for limit in every]
    for orthogonal, samples in ((False, "random"), (True, "orthogonal")):
        least, m = least_that_says_something(orthogonal)
        every.append(Limit(f"Theorem 4.1 with |z| < sqrt(d), {m} {samples} samples", bool, "V"))
        found.append(least)
    names, sources = [limit.text for limit in every], [limit.source for limit in every]
    values = np.array([-1 if d is None else d for d in found], dtype=np.int64)
    order = np.argsort(["VFW".index(source) for source in sources], kind="stable")
    table = xr.Dataset(
        {"least_d": ("limit", values[order]), "source": ("limit", np.array(sources)[order])},
        coords={"limit": np.array(names)[order]},
    )
    table.least_d.attrs = {"long_name": "least d at which the condition holds", "units": "1"}
    return table


PAPERS = {
    "V": "Vardi, Yehudai, Shamir (2022)",
    "F": "Frei et al. (2023)",
    "W": "Wang et al. (2022)",
}


def table(results: xr.Dataset) -> str:
    lines = ["| condition | least d |", "| --- | ---: |"]
    for name, paper, least in zip(
        results.limit.values, results.source.values, results.least_d.values, strict=True
    ):
        told = f"{int(least):,}" if least > 0 else "none"
        condition = f"{PAPERS[str(paper)]}: {name}".replace("|", "\\|")
        lines.append(f"| {condition} | {told} |")
    return "\n".join(lines)


def drawn(figure: Figure, results: xr.Dataset) -> None:
    """Bars on a logarithmic axis, a colour for each paper."""
    figure.set_size_inches(8, 6)
    ax = figure.subplots()
    shown = results.where(results.least_d > 0, drop=True)
    names = [str(name) for name in shown.limit.values][::-1]
    least = shown.least_d.values[::-1].astype(float)
    papers = [str(paper) for paper in shown.source.values][::-1]
    for i, paper in enumerate(PAPERS):
        mine = [j for j, source in enumerate(papers) if source == paper]
        ax.barh(mine, least[mine], color=f"C{i}", label=PAPERS[paper])
    for j, value in enumerate(least):
        ax.text(value * 1.3, j, f"{value:,.0f}", va="center", fontsize=7)
    ax.set_xscale("log")
    ax.set_xlim(1, least.max() * 100)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_xlabel("least dimension $d$")
    ax.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3)


def part() -> studies.Part:
    """One run that gives nothing: the engine wants a row, and the closed forms need none."""
    runs = jk.grid(d=2, samples=2, width=1, seed=0, target_log_loss=20.0, measure=())
    return studies.Part(
        runs,
        "smallest-d",
        derived=studies.Derived("smallest_d", computed),
        panels=[studies.Panel("smallest_d", drawn)],
        texts=[studies.Text("table", table)],
    )
