"""The claims of Frei et al. (2023) beside what `frei_clusters` measured."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import jaxkkt as jk
from jaxkkt.studies import Claim, judged, unflipped
from jaxkkt.theory import frei, vardi

# The paper has O(.) and "small"; these make its claims testable.
SMALL_ERROR, LARGEST_RATIO, SAME = 0.01, 2.0, 0.1
# Where the closed forms are compared.
SMALL_SIGMAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)


def middle(values: Any) -> Any:
    """The second of several values, the first of one."""
    return values[min(1, len(values) - 1)]


def mean(results: xr.Dataset, name: str) -> xr.DataArray:
    return jk.summarize(results, name).mean


def along_axis(results: xr.Dataset, *names: str) -> xr.Dataset:
    """The results with these dimensions, also where all runs have one value of them."""
    return results.expand_dims([name for name in names if name not in results.dims])


def generalization(results: xr.Dataset) -> list[Claim]:
    """The paper's sample complexity is n >= k ln(d)^2; ours for a small error is measured."""
    found = []
    results = along_axis(results.isel(d=0), "sigma")
    k, d = int(results.clusters), int(results.d)
    enough = k * np.log(d) ** 2
    for sigma in results.sigma.values:
        one = results.sel(sigma=sigma)
        error = mean(one, "test_error").max("width")
        each = [
            f"{float(error.sel(samples=n)):.3f} ({n // k})" for n in error.samples.values.tolist()
        ]
        many = one.where(one.samples >= enough)
        largest, low, high = (
            float(_converged(many, f"test_error{end}").max()) for end in ("", "_low", "_high")
        )
        told = f"largest test error {largest:.4f}, 95% intervals up to {high:.4f}; mean by samples "
        told += f"a cluster: {', '.join(each)}"
        text = f"n >= k ln(d)^2 = {enough:.0f} samples generalize, sigma = {sigma:g}"
        text += "" if sigma <= 1 else " (beyond the paper's)"
        # Decided where all intervals are on one side, or one of them is on the other.
        holds = True if high <= SMALL_ERROR else False if low > SMALL_ERROR else None
        found.append(Claim(text, told, holds))
    for other, name in (("neighbour", "1-nearest-neighbour"), ("linear", "the linear max-margin")):
        gap = _converged(results, "test_error") - results[f"{other}_error"]
        told = f"mean difference {float(gap.mean()):+.4f}, from {float(gap.min()):+.4f} to "
        told += f"{float(gap.max()):+.4f}"
        text = f"networks generalize at least as well as {name} (an open question)"
        within = gap.mean().round(9) <= SMALL_ERROR  # errors are counts: their difference may be it
        found.append(judged(text, told, within, gap.mean()))
    return found


def flips(results: xr.Dataset) -> list[Claim]:
    results = along_axis(results.isel(samples=0), "clusters", "init_scale")
    main = results.sel(init_scale=middle(results.init_scale.values))
    unit = np.sqrt(main.d / main.clusters)
    found = []
    for name, share in (("half", "half"), ("99", "99%")):
        ratio = mean(main, f"cluster_flip_{name}") / unit
        told = f"{_range(ratio)} sqrt(d/k)"
        text = f"one direction flips {share} of fresh points at O(sqrt(d/k))"
        none = unflipped(main, f"cluster_flip_{name}")
        found.append(judged(text, told, ratio.max() <= LARGEST_RATIO, ratio.max(), unflipped=none))
    many = main.isel(clusters=-1)
    shares = [mean(many, f"cluster_flip_{name}") / np.sqrt(many.d) for name in ("half", "99")]
    told = f"half at {_range(shares[0])}, 99% at {_range(shares[1])} sqrt(d)"
    text = f"with many clusters ({int(many.clusters)}) that is well below sqrt(d)"
    largest, none = shares[1].max(), unflipped(many, "cluster_flip_99")
    found.append(judged(text, told, largest <= 0.5, largest, unflipped=none))
    size, none = mean(main, "cluster_flip_half"), unflipped(main, "cluster_flip_half")
    found += _independence(results)
    for name, text, than in _BESIDE:
        # One that nothing flips, inf, is the hardest to flip.
        ratio = _succeeded(main, f"{name}_flip_half").mean("seed") / size
        told = f"half flipped at {_range(ratio)} of the size"
        holds = abs(ratio - 1).max() < 0.5 if name == "means" else ratio.min() > 1
        text = f"{text} is {than} (along this direction)"
        found.append(judged(text, told, holds, ratio.min(), unflipped=none))
    return found


_BESIDE = (
    ("robust", "the robust network", "harder to flip than trained ones"),
    ("neighbour", "1-nearest-neighbour", "harder to flip than trained ones"),
    ("means", "the linear predictor", "flipped as easily"),
)


def _independence(results: xr.Dataset) -> list[Claim]:
    """Widths and initial scales, and one z for all networks trained on the same data."""
    found = []
    size, none = mean(results, "cluster_flip_half"), unflipped(results, "cluster_flip_half")
    axes = {"width": ("the width", "widths"), "init_scale": ("the initial scale", "scales")}
    for name, (text, plural) in axes.items():
        shown = size.dropna("init_scale", how="all")
        whole = shown.where(shown.notnull().all(name))
        text = f"{text} does not matter"
        if shown.sizes[name] < 2 or not whole.notnull().any():
            found.append(Claim(text, f"no sizes at several {plural} to compare"))
            continue
        largest = float(abs(whole / whole.mean(name) - 1).max())
        told = f"sizes are within {largest:.1%} of their mean over {plural}"
        found.append(judged(text, told, largest <= SAME, unflipped=none))
    # Data depend on d, the clusters and the seed: these networks share their means and samples.
    sizes = _converged(results, "cluster_flip_99")
    over = tuple(axes)
    spread = sizes.max(over) / sizes.min(over)
    at = sizes.max(over) / np.sqrt(results.d / results.clusters)
    several, none = sizes.count(over).max(), unflipped(results, "cluster_flip_99")
    told = (
        f"among up to {int(several)} networks of one dataset the largest size is {_range(spread)} "
    )
    told += f"of the smallest; with the largest one z flips 99% of each: {_range(at)} sqrt(d/k)"
    text = "one and the same z flips 99% of the fresh points of all networks"
    largest = at.max() if several > 1 else np.nan
    found.append(judged(text, told, largest <= LARGEST_RATIO, largest, unflipped=none))
    return found


def flips_notes(results: xr.Dataset) -> str:
    """Where the sizes that the paper guarantees say something."""
    results = along_axis(results.isel(samples=0), "clusters", "init_scale")
    applies = int(np.isfinite(results.promised).any(("width", "seed", "init_scale")).sum())
    places = results.d.size * results.clusters.size
    least, most = (int(f(results.clusters)) for f in (np.min, np.max))
    said = [f"|z| of Theorem 4.2 does not apply at {places - applies} of {places} sizes."]
    if most < 64:
        said.append(
            f"With {least} to {most} clusters sqrt(d)/8, which is guaranteed to the robust network "
            "for d large enough, is below sqrt(d/k): the guarantee tells no networks apart with "
            "fewer than 64."
        )
    return " ".join(said)


def limit(results: xr.Dataset) -> list[Claim]:
    results = along_axis(results.isel(d=0, samples=0), "sigma").sortby("sigma", ascending=False)
    last = results.isel(sigma=-1)
    found = []
    for name, text in (
        ("cluster_flip_99", "99% of the fresh points are flipped at the size that flips all means"),
        ("flip_size_exact", "c at the training samples (their own direction) is that size"),
        ("trained_on_means", "c of a network trained on the means is that size"),
    ):
        ratio = mean(results, name) / mean(results, "means_flip")
        away, told = abs(ratio.isel(sigma=-1) - 1).max(), _by_sigma(ratio.mean("width"))
        none = unflipped(last, name) + unflipped(last, "means_flip")
        found.append(judged(f"sigma -> 0: {text}", told, away <= SAME, away, unflipped=none))
    k, d = int(results.clusters), int(results.d)
    for name, text in (("_eta1", "eta1"), ("", "|z|")):
        ratios = {sigma: _closed(k, d, sigma)[name] for sigma in SMALL_SIGMAS}
        told = ", ".join(f"{_told(r)} (sigma = {sigma:g})" for sigma, r in ratios.items())
        end = ratios[SMALL_SIGMAS[-1]]
        same = None if np.isnan(end) else abs(end - 1) <= SAME
        text = f"sigma -> 0: {text} of Theorem 4.2 is that of Vardi et al. (2022) on the means"
        found.append(Claim(text, f"d = {d}, {told}", same))
    bound, measured = float(last.promised.mean()), float(mean(last, "cluster_flip_99").max())
    none = unflipped(last, "cluster_flip_99") if np.isfinite(bound) else 0
    told = f"99% flipped at {measured:.1f}, |z| = {bound:.0f}, sqrt(d) = {float(last.d) ** 0.5:.1f}"
    text = f"z of Theorem 4.2 flips fresh points, sigma = {float(last.sigma):g}"
    told = told if np.isfinite(bound) else f"does not apply; {told}"
    found.append(judged(text, told, measured <= bound, measured, bound, unflipped=none))
    return found


def promised(c: frei.Clusters) -> dict[str, float]:
    """|z| of Theorem 4.2 and of Vardi et al. (2022), Theorem 4.1, on the means; their eta1, eta2.

    NaN where the assumptions of the one or the other do not hold.
    """
    samples = vardi.summary(c.means, c.labels, d=c.d)
    found = {}
    for name, theirs in (("promised", c), ("promised_vardi", samples)):
        applies = all(bool(one.holds) for one in theirs.assumptions().values())
        etas = [float(eta) if applies else np.nan for eta in theirs.etas]
        found[name] = sum(etas) * float(jnp.linalg.norm(c.u))
        found |= {f"{name}_eta{i}": eta for i, eta in enumerate(etas, 1)}
    return found


def closed_forms(k: int, dims: tuple[int, ...] = (1000, 10_000)) -> str:
    """|z| of both theorems for k orthogonal means, where both apply, as sigma -> 0."""
    rows = ["| d | sigma | eta1 | eta2 | size of z |", "| ---: " * 5 + "|"]
    for d in dims:
        for sigma in SMALL_SIGMAS:
            ratios = _closed(k, d, sigma).values()
            rows.append(f"| {d} | {sigma:g} | {' | '.join(map(_told, ratios))} |")
    head = f"Theorem 4.2 over the first paper's Theorem 4.1 on {k} orthogonal means:"
    return f"{head}\n\n" + "\n".join(rows)


def _closed(k: int, d: int, sigma: float) -> dict[str, float]:
    """eta1, eta2 and |z| of Theorem 4.2 over those of Vardi et al., for k orthogonal means."""
    means = jnp.sqrt(float(d)) * jnp.eye(k, d)
    found = promised(frei.clusters(means, jk.mixtures.labels(k), sigma))
    return {
        name: found[f"promised{name}"] / found[f"promised_vardi{name}"]
        for name in ("_eta1", "_eta2", "")
    }


def _told(ratio: float) -> str:
    return f"{ratio:.3f}" if np.isfinite(ratio) else "does not apply"


def _succeeded(results: xr.Dataset, name: str) -> xr.DataArray:
    """A variable of the runs that ended as their protocol meant; sizes may be inf."""
    return results[name].where(results.status.isin(jk.training.SUCCEEDED))


def _converged(results: xr.Dataset, name: str) -> xr.DataArray:
    return _succeeded(results, name).where(np.isfinite(results[name]))


def _by_sigma(ratio: xr.DataArray) -> str:
    pairs = zip(ratio.sigma.values.tolist(), ratio.values.tolist(), strict=True)
    return ", ".join(f"{r:.3f} (sigma = {s:g})" for s, r in pairs)


def _range(ratio: xr.DataArray) -> str:
    return f"{float(ratio.min()):.2f} to {float(ratio.max()):.2f}"
