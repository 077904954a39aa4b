"""The claims of Wang et al. (2022), Section 5, beside what a sweep measured."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy import stats

from jaxkkt.adversarial import AdversarialStatus
from jaxkkt.engine import summarize
from jaxkkt.training import SUCCEEDED, Status

# Exponents of d. A claim "~ d^a" holds where the fitted one is within TOLERANCE of a.
EXPONENTS = {
    "step_gradient_norm": ("the gradient ~ d^(1/2)", 0.5),
    "step_eta": ("the step eta ~ d^(-1)", -1.0),
    "step_relative_size": ("delta over the norm of x ~ d^(-1/2)", -0.5),
}
TOLERANCE = 0.15
CONFIDENCE = 0.95


class Fit(NamedTuple):
    """The exponent of a power law by least squares on logarithms, and its confidence interval."""

    exponent: float
    low: float
    high: float


def fit(d: np.ndarray, values: np.ndarray) -> Fit | None:
    """log value = exponent log d + constant; None with fewer than three points that are positive.

    The interval is Student's, for errors that are independent from point to point.
    """
    d, values = np.broadcast_arrays(np.asarray(d, float), np.asarray(values, float))
    good = np.isfinite(values) & (values > 0)
    if good.sum() < 3 or len(set(d[good])) < 2:
        return None
    line = stats.linregress(np.log(d[good]), np.log(values[good]))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, good.sum() - 2) * line.stderr
    return Fit(line.slope, line.slope - reach, line.slope + reach)


def claims_table(results: xr.Dataset, lines: str, learnable: bool = True) -> str:
    """The claims as a Markdown table, and how many runs were left out of the means.

    `lines` is the dimension beside d: "width" or "ball". The words of the claims are the paper's,
    the thresholds that make them testable ours: `TOLERANCE` for exponents. Unless the labels are
    `learnable` test errors are no claim.
    """
    results = results.isel({name: 0 for name in ("samples",) if name in results.dims})
    rows = ["| claim of the paper | measured | |", "| --- | --- | --- |"]
    for variable, (text, claimed) in EXPONENTS.items():
        for value in results[lines].values:
            part = results.sel({lines: value})
            good = part[variable].where(part.status.isin(SUCCEEDED))
            found = fit(good.d.broadcast_like(good).values, good.values)
            if found is None:
                continue
            holds = abs(found.exponent - claimed) <= TOLERANCE
            where = f"{'k' if lines == 'width' else 'C0'} = {value:g}"
            rows.append(
                f"| {text}, {where} | exponent {found.exponent:.2f} "
                f"({found.low:.2f} to {found.high:.2f}) | {_verdict(holds)} |"
            )
    if lines == "ball" and results.ball.size > 1:
        rows += [_grows(results, variable) for variable in EXPONENTS]
    if learnable:
        rows.append(_errors(results))
    return "\n".join([*rows, "", _counts(results)]) + "\n"


def thresholds_table(results: xr.Dataset, panel: str) -> str:
    """Figure 4's claims: where robust accuracy crosses 1/2, and how that scales.

    The paper's words are a sharp drop at |delta| = 5/sqrt(d) and a transition at V ~ 25/sqrt(k);
    here the crossing is fitted as constant * size^exponent. Holds: an exponent within `TOLERANCE`
    of -1/2 and a constant, at exponent -1/2, within a factor of 2.
    """
    along, across, claimed = ("d", "radius", 5) if panel == "left" else ("width", "ball", 25)
    symbol = {"d": "d", "width": "k"}[along]
    what = {"left": "delta", "right": "V"}[panel]
    rows = ["| claim of the paper | measured | |", "| --- | --- | --- |"]
    for name, attack in (
        ("robust_accuracy", "attack of Algorithm 1"),
        ("robust_accuracy_normalized", "normalized steps"),
    ):
        mean = results[name].mean("seed")
        sizes = results[along].values
        at = np.array([crossing(mean[across].values, mean.sel({along: n}).values) for n in sizes])
        shown = ", ".join(f"{a:.3f} ({symbol} = {n})" for a, n in zip(at, sizes, strict=True))
        text = f"robust accuracy changes at {what} = {claimed}/sqrt({symbol}), {attack}"
        found = fit(sizes, at)
        if found is None:
            rows.append(f"| {text} | crosses 1/2 at {shown}; too few to fit | not decided |")
            continue
        constant = float(np.exp(np.nanmean(np.log(at * np.sqrt(sizes)))))
        near = abs(found.exponent + 0.5) <= TOLERANCE and 0.5 <= constant / claimed <= 2
        rows.append(
            f"| {text} | crosses 1/2 at {shown}; exponent {found.exponent:.2f} ({found.low:.2f} to "
            f"{found.high:.2f}), {constant:.1f}/sqrt({symbol}) | {_verdict(near)} |"
        )
    if panel == "left":
        reach = results.half_way.mean("seed")
        shown = ", ".join(f"{float(reach.sel(d=d)):.3f} (d = {d})" for d in reach.d.values)
        rows += [
            "",
            "Half way from a test image to the nearest training image of the other class, median: "
            f"{shown}. No network is robust at both to a perturbation of that size.",
        ]
    clean = results.accuracy
    settled = int((results.status == AdversarialStatus.SETTLED).sum())
    rows += [
        "",
        f"{int(clean.notnull().sum())} networks, {settled} trained until robust training accuracy "
        f"had stopped rising; accuracy without attack {float(clean.min()):.1%} at least, "
        f"{float(clean.mean()):.1%} on average.",
    ]
    return "\n".join(rows) + "\n"


def crossing(sizes: np.ndarray, accuracy: np.ndarray) -> float:
    """Where accuracy first crosses 1/2, between two sizes on logarithms; NaN where it does not."""
    above = np.asarray(accuracy) > 0.5
    changes = np.flatnonzero(above[1:] != above[:-1])
    if not changes.size:
        return float("nan")
    i = changes[0]
    share = (accuracy[i] - 0.5) / (accuracy[i] - accuracy[i + 1])
    return float(np.exp(np.log(sizes[i]) + share * np.log(sizes[i + 1] / sizes[i])))


def _grows(results: xr.Dataset, variable: str) -> str:
    mean = summarize(results, variable).mean.squeeze(drop=True)
    steps = mean.diff("ball")
    falling = int((steps <= 0).sum())
    ratio = (mean.isel(ball=-1) / mean.isel(ball=0)).values
    text = EXPONENTS[variable][0].split(" ~")[0]
    shown = ", ".join(f"{r:.2f}" for r in np.ravel(ratio))
    return (
        f"| {text} grows with C0 | {float(mean.ball[-1]):g} against {float(mean.ball[0]):g}, by d: "
        f"{shown} times; {falling} of {steps.size} steps fall | {_verdict(falling == 0)} |"
    )


def _errors(results: xr.Dataset) -> str:
    needed = results.step_needed_share.where(results.status.isin(SUCCEEDED))
    worst = float(1 - needed.min())
    return (
        f"| test error below 1% | largest {worst:.2%}, mean {float(1 - needed.mean()):.2%} | "
        f"{_verdict(worst < 0.01)} |"
    )


def _counts(results: xr.Dataset) -> str:
    ended = {
        status.name.lower().replace("_", " "): int((results.status == status).sum())
        for status in Status
        if (results.status == status).any()
    }
    flipped = results.step_flipped_share.where(results.status.isin(SUCCEEDED))
    counted = (
        "test points classified correctly that a step with |delta| <= |x| flips: "
        f"{float(flipped.min()):.1%} of them at least"
    )
    if "published" in results.attrs.get("measurements", ""):
        counted = (
            "all test points as in the published code, with eta = 0 for misclassified ones and at "
            f"most 5 for the others, of which a step flips {float(flipped.min()):.1%} at least"
        )
    return (
        f"{sum(ended.values())} runs: {', '.join(f'{n} {name}' for name, n in ended.items())}. "
        "Means are over runs that converged or came to the edge of their ball, and over "
        f"{counted}."
    )


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"
