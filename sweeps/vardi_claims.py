"""The claims of Vardi et al. (2022), Section 6, beside what a sweep measured."""

from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxkkt.engine import summarize
from jaxkkt.kkt import CertificateStatus
from jaxkkt.measurements import NOT_CERTIFIED
from jaxkkt.training import Status

PAPER_WIDTH = 1000
PAPER_LEAST_D = 100  # the paper's dimensions are 100 to 1,000


class Claim(NamedTuple):
    """A claim of the paper, what was measured, and whether the one supports the other."""

    text: str
    measured: str
    holds: bool


def claims(results: xr.Dataset) -> list[Claim]:
    """Every claim that the results have data for.

    The words are the paper's; the thresholds that make them testable are ours: "much smaller" is a
    mean below half of sqrt(d) at the largest dimension, "no significant effect" and "similar" a
    mean within 10% (shares within 0.05).
    """
    base = _select(results, loss="exponential", data="sphere")
    found: list[Claim] = []
    if base is not None:
        found += _flip_sizes(base) + _on_margin(base) + _widths(base)
    for axis, other in (("loss", "logistic"), ("data", "gaussian")):
        variant = _select(results, **{"loss": "exponential", "data": "sphere", axis: other})
        if base is not None and variant is not None:
            found.append(_alike(base, variant, other))
    return found


def claims_table(results: xr.Dataset, planned: int | None = None) -> str:
    """The claims as a Markdown table, and how many runs were left out of the means.

    Says so where fewer runs have landed than were `planned`.
    """
    lines = ["| claim of the paper | measured | |", "| --- | --- | --- |"]
    lines += [
        f"| {c.text} | {c.measured} | {'holds' if c.holds else 'does not hold'} |"
        for c in claims(results)
    ]
    ended = {
        status.name.lower(): int((results.status == status).sum())
        for status in Status
        if (results.status == status).any()
    }
    ran = sum(ended.values())
    unflipped = int(
        ((results.status == Status.CONVERGED) & ~np.isfinite(results.flip_size_exact)).sum()
    )
    part = "" if planned in (None, ran) else f" of {planned}"
    lines += [
        "",
        f"{ran}{part} runs: {', '.join(f'{n} {name}' for name, n in ended.items())}; "
        f"{unflipped} converged without a flip in the bracket. Means are over runs that converged "
        f"and flipped.",
    ]
    if "certificate_status" in results:
        lines += ["", _certified(results)]
    return "\n".join(lines) + "\n"


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


def _select(results: xr.Dataset, **wanted: str) -> xr.Dataset | None:
    """The part of one loss and data distribution, or None where it was not run."""
    settings = {"loss": "exponential", "data": "sphere"}
    for axis, value in wanted.items():
        if axis in results.dims:
            if value not in results[axis]:
                return None
            results = results.sel({axis: value})
        elif value != results.attrs.get(axis, settings[axis]):
            return None
    return results


def _at_paper_width(results: xr.Dataset) -> xr.Dataset:
    return results.sel(width=PAPER_WIDTH if PAPER_WIDTH in results.width else results.width[0])


def _by_alpha(results: xr.Dataset, variable: str) -> dict[float, xr.DataArray]:
    """Means over the seeds against d, for each alpha that was run."""
    means = summarize(_at_paper_width(results), variable).mean
    found = {float(a): means.sel(alpha=a).dropna("d") for a in means.alpha}
    return {alpha: mean for alpha, mean in found.items() if mean.size}


def _flip_sizes(results: xr.Dataset) -> list[Claim]:
    ratios = {a: c / np.sqrt(c.d) for a, c in _by_alpha(results, "flip_size_exact").items()}
    largest = {a: float(r[-1]) for a, r in ratios.items()}
    everywhere = max(float(r.max()) for r in ratios.values())
    listed = ", ".join(
        f"{r:.3f} (alpha = {a:g}, d = {int(ratios[a].d[-1])})" for a, r in largest.items()
    )
    return [
        Claim("c stays below sqrt(d)", f"largest mean c/sqrt(d): {everywhere:.2f}", everywhere < 1),
        Claim(
            "c is much smaller than sqrt(d)",
            f"mean c/sqrt(d) at the largest d: {listed}",
            max(largest.values()) < 0.5,
        ),
    ]


def _on_margin(results: xr.Dataset) -> list[Claim]:
    shares = _by_alpha(results, "on_margin_share")
    found = []
    if 0.5 in shares:
        least = float(shares[0.5].min())
        found.append(
            Claim(
                "m = d^0.5: every sample is on the margin", f"least share {least:.3f}", least == 1
            )
        )
    for alpha, share in shares.items():
        if alpha == 0.5:
            continue
        text = f"m = d^{alpha:g}: at least 92% of the samples are on the margin"
        for part, where in (
            (share.where(share.d >= PAPER_LEAST_D).dropna("d"), ""),
            (share.where(share.d < PAPER_LEAST_D).dropna("d"), f" (d < {PAPER_LEAST_D}: ours)"),
        ):
            if part.size:
                at = int(part.d[int(part.values.argmin())])
                least = float(part.min())
                measured = f"least mean share {least:.3f} (d = {at})"
                found.append(Claim(text + where, measured, least >= 0.92))
    return found


def _widths(results: xr.Dataset) -> list[Claim]:
    if 1.0 not in results.alpha or results.width.size < 2:
        return []
    summary = summarize(results.sel(alpha=1.0), "flip_size_exact")
    means = summary.mean.dropna("d")  # dimensions with every width
    if not means.d.size:
        return []
    at = means.isel(d=-1)
    spread = float((at.max() - at.min()) / at.mean())
    noise = float((summary.std.isel(d=-1) / at).mean())
    listed = ", ".join(f"{float(c):.2f} (k = {int(c.width)})" for c in at)
    return [
        Claim(
            "the width has no significant effect on c",
            f"d = m = {int(at.d)}: {listed}; spread {spread:.1%}, std over seeds {noise:.1%}",
            spread <= 0.1,
        )
    ]


def _alike(base: xr.Dataset, variant: xr.Dataset, other: str) -> Claim:
    """Compares c/|x| and the share on the margin where both were run, seed by seed.

    |x| is sqrt(d) on the sphere and about 1 for Gaussian data.
    """
    both = (base.status == Status.CONVERGED) & (variant.status == Status.CONVERGED)
    unit = np.sqrt(base.d) if other == "gaussian" else 1.0
    ratio = (variant.flip_size_exact * unit / base.flip_size_exact).where(both)
    share = abs(variant.on_margin_share - base.on_margin_share).where(both)
    change, largest = float(ratio.mean()) - 1, float(abs(ratio - 1).max())
    name = {"logistic": "the logistic loss", "gaussian": "Gaussian data, x of variance 1/d,"}[other]
    return Claim(
        f"{name} gives similar results",
        f"c over the norm of x changes by {change:+.1%} on average, at most by {largest:.1%}; the "
        f"share on the margin by at most {float(share.max()):.3f}; {int(both.sum())} pairs of runs",
        abs(change) <= 0.1 and float(share.max()) <= 0.05,
    )
