"""The claims of Vardi et al. (2022), Section 6, beside what a sweep measured."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxkkt.engine import summarize
from jaxkkt.kkt import CertificateStatus
from jaxkkt.measurements import NOT_CERTIFIED
from jaxkkt.studies import Claim, judged, unflipped
from jaxkkt.training import SUCCEEDED

PAPER_WIDTH = 1000
PAPER_LEAST_D = 100  # the paper's dimensions are 100 to 1,000
# The paper's main setting. Settings that a sweep varies are compared with it.
PAPER: dict[str, str | float] = {
    "loss": "exponential",
    "data": "sphere",
    "initialization": "torch",
    "init_scale": 1.0,
}
AXES = ("d", "alpha", "width", "seed")
# The paper's words for what it varies.
NAMES = {
    ("loss", "logistic"): "the logistic loss",
    ("data", "gaussian"): "Gaussian data, x of variance 1/d,",
}
# Other measures of the flip size than c, and what they are.
OTHER_SIZES = {
    "flip_size_99": "99% flipped",
    "flip_size_90": "90% flipped",
    "flip_size_half": "half flipped",
    "flip_size_least": "least c over slacks",
}


class Setting(NamedTuple):
    """The part of the results in one setting, over d, alpha, width and seed."""

    results: xr.Dataset
    # What each setting that the paper fixes is here.
    values: dict[str, str | float]

    @property
    def norm(self) -> xr.DataArray:
        """|x| by d: sqrt(d) on the sphere, about 1 for Gaussian data; NaN where it is not known."""
        d = self.results.d
        norms = {"sphere": np.sqrt(d), "unit sphere": d * 0.0 + 1, "gaussian": d * 0.0 + 1}
        return norms.get(str(self.values["data"]), d * np.nan)

    @property
    def trivial(self) -> str:
        """|x| in words: a perturbation of this size flips any label."""
        exact = {
            "sphere": "sqrt(d)",
            "unit sphere": "the norm of x, 1",
            "gaussian": "the norm of x, about 1",
        }
        return exact.get(str(self.values["data"]), "the norm of x")

    @property
    def named(self) -> str:
        """What differs from the paper's setting, for the end of a claim."""
        other = [f"{name} = {v}" for name, v in self.values.items() if v != PAPER[name]]
        return f" ({', '.join(other)})" if other else ""


def setting(results: xr.Dataset, **wanted: str | float) -> Setting:
    """The part with these values, and elsewhere the paper's, or the first where those were not run.

    What the runs have in common is read from the dataset's coordinates.
    """
    values: dict[str, str | float] = {}
    for name, papers in PAPER.items():
        there = np.atleast_1d(results[name].values).tolist()
        value = wanted.get(name, papers if papers in there else there[0])
        if name in results.dims:
            results = results.sel({name: value})
        values[name] = value
    # Settings of single initializations or data follow these along their dimensions.
    return Setting(results.isel({n: 0 for n in results.status.dims if n not in AXES}), values)


def main_setting(results: xr.Dataset) -> Setting:
    """The setting that the paper's figures are of, or what was run in its place."""
    return setting(results)


def claims(results: xr.Dataset) -> list[Claim]:
    """Every claim that the results have data for.

    The words are the paper's; the thresholds that make them testable are ours: "much smaller" is a
    mean below half of |x| at the largest dimension, "no significant effect" and "similar" a mean
    within 10% (shares within 0.05). |x| is sqrt(d) on the sphere.
    """
    base = main_setting(results)
    found = [*_flip_sizes(base), *_on_margin(base), *_widths(base)]
    for name in PAPER:
        for value in results[name].values.tolist() if name in results.dims else ():
            if value != base.values[name]:
                found += _alike(base, setting(results, **{**base.values, name: value}), name)
    return found


def notes(results: xr.Dataset) -> str:
    """What c is, the other measures of it at the largest d, and the certificates."""
    base = main_setting(results)
    slack = ", ".join(f"{s:g}" for s in np.atleast_1d(results.slack.values))
    ended = results.status.isin(SUCCEEDED)
    failed = int(((results.status >= 0) & ~ended).sum())
    found = [
        f"{unflipped(results, 'flip_size_exact')} converged without a flip in the bracket, "
        f"{failed} failed. Means are over runs that converged and flipped.",
        f"All networks have {width_against_d(results)} neurons, except where widths are compared.",
        "All claims on c rest on `flip_size_exact`: the size at which every sample with q <= slack "
        f"min q, slack = {slack}, has flipped. It jumps where one sample crosses the slack. Other "
        f"measures beside it, at the largest d, over {base.trivial}{base.named}:",
        _other_sizes(base),
    ]
    if "certificate_status" in results:
        found.append(_certified(results))
    return "\n\n".join(found)


def width_against_d(results: xr.Dataset) -> int:
    """That of the networks that are shown against d: the paper's, or the first where it was not
    run."""
    return PAPER_WIDTH if PAPER_WIDTH in results.width else int(results.width[0])


def at_paper_width(results: xr.Dataset) -> xr.Dataset:
    return results.sel(width=width_against_d(results))


def _by_alpha(base: Setting, variable: str) -> dict[float, xr.DataArray]:
    """Means over the seeds against d, for each alpha that was run."""
    means = summarize(at_paper_width(base.results), variable).mean
    found = {float(a): means.sel(alpha=a).dropna("d") for a in means.alpha}
    return {alpha: mean for alpha, mean in found.items() if mean.size}


def _flip_sizes(base: Setting) -> Iterator[Claim]:
    ratios = {a: c / base.norm.sel(d=c.d) for a, c in _by_alpha(base, "flip_size_exact").items()}
    ratios = {a: ratio for a, ratio in ratios.items() if ratio.notnull().any()}
    # The bracket is 4 |x|: what is not flipped within it has a larger c.
    shown = at_paper_width(base.results)
    if not ratios and not unflipped(shown, "flip_size_exact"):
        return
    largest = {a: float(r[-1]) for a, r in ratios.items()}
    at_end = shown.sel(d=shown.d >= min((int(r.d[-1]) for r in ratios.values()), default=0))
    everywhere = max((float(r.max()) for r in ratios.values()), default=np.nan)
    listed = ", ".join(
        f"{r:.3f} (alpha = {a:g}, d = {int(ratios[a].d[-1])})" for a, r in largest.items()
    )
    unit = "c/sqrt(d)" if base.values["data"] == "sphere" else "c over the norm of x"
    yield judged(
        f"c stays below {base.trivial}{base.named}",
        f"largest mean {unit}: {everywhere:.2f}",
        everywhere < 1,
        unflipped=unflipped(shown, "flip_size_exact"),
    )
    yield judged(
        f"c is much smaller than {base.trivial}{base.named}",
        f"mean {unit} at the largest d: {listed or 'none'}",
        max(largest.values(), default=np.nan) < 0.5,
        unflipped=unflipped(at_end, "flip_size_exact"),
    )


def _on_margin(base: Setting) -> Iterator[Claim]:
    for alpha, share in _by_alpha(base, "on_margin_share").items():
        if alpha == 0.5:
            text = f"m = d^0.5: every sample is on the margin{base.named}"
            yield Claim(text, f"least share {float(share.min()):.3f}", float(share.min()) == 1)
            continue
        text = f"m = d^{alpha:g}: at least 92% of the samples are on the margin{base.named}"
        for part, where in (
            (share.where(share.d >= PAPER_LEAST_D).dropna("d"), ""),
            (share.where(share.d < PAPER_LEAST_D).dropna("d"), f" (d < {PAPER_LEAST_D}: ours)"),
        ):
            if part.size:
                at = int(part.d[int(part.values.argmin())])
                least = float(part.min())
                measured = f"least mean share {least:.3f} (d = {at})"
                yield Claim(text + where, measured, least >= 0.92)


def _widths(base: Setting) -> Iterator[Claim]:
    if 1.0 not in base.results.alpha or base.results.width.size < 2:
        return
    summary = summarize(base.results.sel(alpha=1.0), "flip_size_exact")
    means = summary.mean.dropna("d")  # dimensions with every width
    text = f"the width has no significant effect on c{base.named}"
    largest = int(means.d[-1]) if means.d.size else 0
    none = unflipped(base.results.sel(alpha=1.0, d=base.results.d >= largest), "flip_size_exact")
    if not means.d.size:
        if none:
            yield judged(text, "no d at which networks of every width flip", False, unflipped=none)
        return
    at = means.isel(d=-1)
    spread = float((at.max() - at.min()) / at.mean())
    noise = float((summary.std.sel(d=at.d) / at).mean())
    listed = ", ".join(f"{float(c):.2f} (k = {int(c.width)})" for c in at)
    yield judged(
        text,
        f"d = m = {largest}: {listed}; spread {spread:.1%}, std over seeds {noise:.1%}",
        spread <= 0.1,
        unflipped=none,
    )


def _alike(base: Setting, variant: Setting, name: str) -> Iterator[Claim]:
    """Compares c/|x| and the share on the margin where both were run, seed by seed."""
    both = base.results.status.isin(SUCCEEDED) & variant.results.status.isin(SUCCEEDED)
    sizes = [s.results.flip_size_exact / s.norm for s in (variant, base)]
    ratio = (sizes[0] / sizes[1]).where(both)
    finite = [np.isfinite(size) for size in sizes]
    ratio = ratio.where(finite[0] & finite[1])
    pairs = int(ratio.notnull().sum())
    apart = int(((finite[0] != finite[1]) & both).sum())
    if not pairs and not apart:
        return
    difference = abs(variant.results.on_margin_share - base.results.on_margin_share).where(both)
    change, largest = float(ratio.mean()) - 1, float(abs(ratio - 1).max())
    share = float(difference.max())
    other = variant.values[name]
    papers = NAMES.get((name, str(other)), f"{name.replace('_', ' ')} = {other}")
    against = "" if base.values[name] == PAPER[name] else f" to {base.values[name]}"
    yield judged(
        f"{papers} gives results similar{against}"
        if against
        else f"{papers} gives similar results",
        f"c over the norm of x changes by {change:+.1%} on average, at most by {largest:.1%}; the "
        f"share on the margin by at most {share:.3f}; {pairs} pairs of runs",
        abs(change) <= 0.1 and share <= 0.05,
        unflipped=apart,
    )


def _other_sizes(base: Setting) -> str:
    names = {"flip_size_exact": "c", **OTHER_SIZES}
    shown = at_paper_width(base.results)
    rows = [
        f"| alpha | d | {' | '.join(names.values())} | runs | left out |",
        "| ---: " * (4 + len(names)) + "|",
    ]
    for alpha, c in _by_alpha(base, "flip_size_exact").items():
        place = {"alpha": alpha, "d": int(c.d[-1])}
        found = {n: summarize(shown.sel(place), n) for n in names if n in shown}
        means = [f"{float(s.mean / base.norm.sel(d=place['d'])):.3f}" for s in found.values()]
        runs = found["flip_size_exact"]
        rows.append(
            f"| {alpha:g} | {place['d']} | {' | '.join(means)} | {int(runs.used)} | "
            f"{int(runs.excluded)} |"
        )
    return "\n".join(rows)


def _certified(results: xr.Dataset) -> str:
    status, residual = results.certificate_status, results.residual_clarke
    count = {name: int((status == name).sum()) for name in CertificateStatus}
    return (
        f"{count[CertificateStatus.CERTIFIED]} runs certified, "
        f"{count[CertificateStatus.STOPPED_EARLY]} stopped early, "
        f"{int((status == NOT_CERTIFIED).sum())} of too many samples not certified; "
        f"residual with Clarke slopes {float(residual.min()):.2f} to {float(residual.max()):.2f}, "
        f"squares at most {float(results.residual_gap.max()):.1e} above the least there is."
    )
