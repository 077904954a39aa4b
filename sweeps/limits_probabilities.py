"""How often the lemmas' events happen in random draws, beside what the papers promise."""

from collections.abc import Callable
from functools import partial
from textwrap import fill
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.numerics.requirements import require_whole
from jaxkkt.theory import frei, vardi

CONFIDENCE = 0.95
SAMPLES = 10  # points of the sphere whose pairs Lemma 3.1 is about; means of Lemma 2.1
CLUSTERS = 2  # of the training sample of P1 to P6
CHEAP = 20  # draws of what needs no vectors of dimension d, for each of the others
PAIRS = 20_000  # that the density is compared at
# The size of the Kolmogorov-Smirnov test of the density.
LEVEL = 0.01

Rng = np.random.Generator


class Event(NamedTuple):
    """What is said to happen: `hits(rng, d, draws)` counts how often, `failing(d)` is at most how
    often it may not. `more` draws are taken for each that is asked for."""

    text: str
    hits: Callable[[Rng, int, int], int]
    failing: Callable[[int], float]
    more: int = 1


def interval(hits: int, draws: int) -> tuple[float, float]:
    """The 95% Clopper-Pearson interval of a probability; ValueError unless 0 <= hits <= draws."""
    from scipy.stats import binomtest  # here: it takes as long to import as all of jaxkkt

    if not 0 <= hits <= draws or draws < 1:
        raise ValueError(f"hits are 0 to the number of draws, got {hits} of {draws}")
    found = binomtest(hits, draws).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def bartlett(rng: Rng, draws: int, n: int, d: int) -> np.ndarray:
    """Lower triangles L (draws, n, n) so that L L^T is the Gram matrix of n normal vectors of R^d.

    L_ii^2 is chi-squared with d - i degrees of freedom, i from 0, and L_ij standard normal below
    (Bartlett's decomposition): products of d-dimensional vectors without drawing them. Raises
    ValueError for n > d.
    """
    if n > d:
        raise ValueError(f"{n} vectors of dimension {d} are dependent: n must be at most d")
    found = np.tril(rng.normal(size=(draws, n, n)), -1)
    found[:, range(n), range(n)] = np.sqrt(rng.chisquare(d - np.arange(n), size=(draws, n)))
    return found


def largest_products(rng: Rng, draws: int, m: int, d: int) -> np.ndarray:
    """max |<x_i, x_l>| over pairs of m points uniform on the unit sphere of R^d, draw by draw."""
    rows = bartlett(rng, draws, m, d)
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    products = np.abs(rows @ rows.transpose(0, 2, 1))
    products[:, range(m), range(m)] = 0
    return products.max(axis=(1, 2))


def uncorrelated(half: bool) -> Callable[[Rng, int, int], int]:
    """Lemma 3.1: how often all pairs of the points are below 1/2, or ln(d)/sqrt(d)."""

    def hits(rng: Rng, d: int, draws: int) -> int:
        bound = 0.5 if half else np.log(d) / d**0.5
        return int(np.sum(largest_products(rng, draws, SAMPLES, d) <= bound))

    return hits


def separated(means: int, sigma: Callable[[int], float]) -> Callable[[Rng, int, int], int]:
    """Lemma 2.1 with means uniform on the sphere: how often u . x has the sign of y.

    Means and point are drawn anew each time. <u, xi> is normal with deviation sigma |u|.
    """

    def hits(rng: Rng, d: int, draws: int) -> int:
        rows = bartlett(rng, draws, means, d)
        rows *= d**0.5 / np.linalg.norm(rows, axis=2, keepdims=True)
        y = np.where(np.arange(means) % 2 == 0, 1.0, -1.0)
        u = np.einsum("q,nqj->nj", y, rows)
        cluster = rng.integers(0, means, draws)
        signal = np.einsum("nj,nj->n", u, rows[np.arange(draws), cluster])
        noise = sigma(d) * rng.normal(size=draws) * np.linalg.norm(u, axis=1)
        return int(np.sum(y[cluster] * (signal + noise) > 0))

    return hits


def sample_size(d: int) -> int:
    """The least n that the theorems on clusters allow: n >= k ln(d)^2."""
    return int(np.ceil(CLUSTERS * np.log(d) ** 2))


def nice(sigma: Callable[[int], float]) -> Callable[[Rng, int, int], int]:
    """Proposition A.1 with orthogonal means: how often P1 to P6 all hold."""

    def hits(rng: Rng, d: int, draws: int) -> int:
        means = d**0.5 * jnp.eye(CLUSTERS, d)
        clusters = frei.clusters(means, jnp.array([1.0, -1.0]), sigma(d))
        key = jax.random.key(int(rng.integers(2**31)))
        return int(_count_nice(clusters, key, sample_size(d), draws))

    return hits


def _count_nice(clusters: frei.Clusters, key: Any, n: int, draws: int) -> int:
    return int(np.sum([_is_nice(clusters, k, n) for k in jax.random.split(key, draws)]))


@partial(jax.jit, static_argnames="n")
def _is_nice(clusters: frei.Clusters, key: Any, n: int) -> Any:
    # Not `mixtures.sample`: that draws again until both labels occur, which P6 is to count.
    of, noise = jax.random.split(key)
    cluster = jax.random.randint(of, (n,), 0, len(clusters.labels))
    xi = clusters.sigma * jax.random.normal(noise, (n, clusters.means.shape[1]))
    checks = frei.properties(clusters, frei.Sample(clusters.means[cluster] + xi, cluster))
    return jnp.all(jnp.stack([check.holds for check in checks.values()]))


EVENTS = {
    "half": Event(
        f"V, Lemma 3.1: all pairs of {SAMPLES} points have products <= 1/2",
        uncorrelated(True),
        lambda d: 1 - vardi.uncorrelated(SAMPLES, d, half=True),
        CHEAP,
    ),
    "log": Event(
        f"V, Lemma 3.1: all pairs of {SAMPLES} points have products <= ln(d)/sqrt(d)",
        uncorrelated(False),
        lambda d: 1 - vardi.uncorrelated(SAMPLES, d, half=False),
        CHEAP,
    ),
    "separated_wide": Event(
        f"F, Lemma 2.1: u separates, {SAMPLES} random means, sigma = 1, outside its assumption",
        separated(SAMPLES, lambda d: 1.0),
        lambda d: 1 - frei.separated(d),
        CHEAP,
    ),
    "separated_tight": Event(
        "F, Lemma 2.1: u separates, 2 random means, sigma = 1/sqrt(d)",
        separated(2, lambda d: d**-0.5),
        lambda d: 1 - frei.separated(d),
        CHEAP,
    ),
    "nice_wide": Event(
        f"F, Proposition A.1: P1 to P6, {CLUSTERS} orthogonal means, sigma = 1",
        nice(lambda d: 1.0),
        lambda d: 1 - frei.nice_sample(sample_size(d), d),
    ),
    "nice_tight": Event(
        f"F, Proposition A.1: P1 to P6, {CLUSTERS} orthogonal means, sigma = 1/sqrt(d)",
        nice(lambda d: d**-0.5),
        lambda d: 1 - frei.nice_sample(sample_size(d), d),
    ),
}


def density_p_value(rng: Rng, d: int) -> float:
    """The Kolmogorov-Smirnov test of drawn |<x, x'>| against the density of Appendix B.

    By rotation <x, x'> is a coordinate of one uniform point, g / sqrt(g^2 + chi^2_{d-1}).
    """
    from scipy.integrate import cumulative_trapezoid
    from scipy.stats import kstest

    g = rng.normal(size=PAIRS)
    drawn = np.abs(g) / np.sqrt(g**2 + rng.chisquare(d - 1, PAIRS))
    t = np.linspace(0, 1, 20_001) ** 2  # finer where the mass is
    mass = cumulative_trapezoid(vardi.correlation_density(t, d), t, initial=0)
    return float(kstest(drawn, lambda at: np.interp(at, t, mass)).pvalue)


class Odds(jk.Measurement):
    """How often every event happens in `draws` random draws, or in 20 times as many where they need
    no vectors of dimension d, at the run's d; the run gives d alone.

    The draws depend on d, the event, and nothing else.
    """

    on_host = True
    draws: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("draws", self.draws, 1)

    def measure(self, params: jk.Params) -> dict[str, float]:
        d = params.w.shape[1]
        values = {"density_p": density_p_value(np.random.default_rng([d, 0]), d)}
        for i, (name, event) in enumerate(EVENTS.items(), 1):
            draws = event.more * self.draws
            hits = event.hits(np.random.default_rng([d, i]), d, draws)
            low, high = interval(hits, draws)
            # Failures, for what is as near to 1 as this would round to it.
            values |= {
                f"{name}_failing": 1 - hits / draws,
                f"{name}_failing_low": 1 - high,
                f"{name}_failing_high": 1 - low,
                f"{name}_promised": event.failing(d),
            }
        return values


def measured(results: xr.Dataset) -> xr.Dataset:
    """Without the dimensions whose run failed: of them it is not known that nothing is promised."""
    return results.isel(d=results.density_p.notnull().values)


def claims(results: xr.Dataset) -> list[studies.Claim]:
    """A promise holds where the probability of failing that it allows reaches into the interval."""
    found = []
    results = measured(results)
    for name, event in EVENTS.items():
        promised, low, failing = (
            results[f"{name}_{key}"] for key in ("promised", "failing_low", "failing")
        )
        if not promised.size:
            found.append(studies.Claim(event.text, "no d was measured"))
            continue
        speaks = (promised < 1).values
        broken = speaks & (low > promised).values
        d = results.d.values
        told = f"obeyed at {int(speaks.sum() - broken.sum())} of {int(speaks.sum())} d"
        if (~speaks).any():
            told += f"; says nothing at d = {', '.join(map(str, d[~speaks]))}"
        told += f"; fails in {float(failing[0]):.1%} of the draws at d = {d[0]}, in "
        told += f"{float(failing[-1]):.1%} at d = {d[-1]}"
        found.append(studies.Claim(event.text, told, not broken.any() if speaks.any() else None))
    p = results.density_p.values
    # The least p-value of several tests is smaller: Bonferroni's correction.
    text = "V, Appendix B: the density of |<x, x'>|"
    if not p.size:
        return [*found, studies.Claim(text, "no d was measured")]
    told = f"Kolmogorov-Smirnov p-values {p.min():.2g} to {p.max():.2g}, {PAIRS} pairs each"
    return [*found, studies.Claim(text, told, bool(p.min() >= LEVEL / p.size))]


def table(results: xr.Dataset) -> str:
    lines = [
        "| event | d | fails at most | failed | 95% interval |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for name, event in EVENTS.items():
        for d in measured(results).d.values:
            promised, failing, low, high = (
                float(results[f"{name}_{key}"].sel(d=d))
                for key in ("promised", "failing", "failing_low", "failing_high")
            )
            told = f"{promised:.2g}" if promised < 1 else "says nothing"
            lines.append(
                f"| {event.text} | {d} | {told} | {failing:.2%} | {low:.2%} to {high:.2%} |"
            )
    return "\n".join(lines)


def drawn(figure: Figure, results: xr.Dataset) -> None:
    """Probability of failing with intervals against d, and what the papers allow."""
    figure.set_size_inches(10, 6)
    d = results.d.values
    axes = figure.subplots(2, len(EVENTS) // 2, sharey=True, sharex=True)
    for ax, (name, event) in zip(axes.flat, EVENTS.items(), strict=True):
        failing, low, high, promised = (
            results[f"{name}_{key}"].values
            for key in ("failing", "failing_low", "failing_high", "promised")
        )
        ax.vlines(d, np.maximum(low, FLOOR), high, color="C0", lw=2, label="95% interval")
        ax.plot(d, np.where(failing > 0, failing, np.nan), "o", color="C0", label="failed")
        ax.plot(d, np.maximum(promised, FLOOR), "s--", color="black", label="paper: at most")
        ax.axhspan(1, CEILING, color="grey", alpha=0.2, linewidth=0, label="says nothing")
        plotting.logarithmic(ax, d)
        ax.set_ylim(FLOOR, CEILING)
        ax.set_title(fill(event.text, 42), fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("input dimension $d$")
    for ax in axes[:, 0]:
        ax.set_ylabel("probability of failing")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)


FLOOR, CEILING = 1e-6, 1e3


def part(d: tuple[int, ...], draws: int) -> studies.Part:
    """Runs that give d alone: two samples, one neuron, and a loss at which training is over."""
    if d and min(d) < SAMPLES:
        raise ValueError(
            f"--drawn-d must be at least {SAMPLES}, for so many vectors are drawn, got {min(d)}"
        )
    runs = jk.grid(d=d, samples=2, width=1, seed=0, target_log_loss=20.0, measure=Odds(draws=draws))

    def flat(results: xr.Dataset) -> xr.Dataset:
        return results.squeeze(["samples", "width", "seed"], drop=True)

    return studies.Part(
        runs,
        "probabilities",
        claims=lambda results: claims(flat(results)),
        panels=[studies.Panel("probabilities", lambda f, results: drawn(f, flat(results)))],
        texts=[studies.Text("probabilities", lambda results: table(flat(results)))],
    )
