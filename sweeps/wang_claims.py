"""The claims of Wang et al. (2022), Section 5, beside what a sweep measured.

The words of the claims are the paper's, the threshold that makes exponents testable is ours:
`wang_fits.TOLERANCE`. What was varied and how it was measured is read from the results.
"""

import numpy as np
import xarray as xr

from jaxkkt.engine import summarize
from jaxkkt.studies import Claim
from jaxkkt.training import SUCCEEDED

from .wang_fits import TOLERANCE, fit

# Exponents of d.
EXPONENTS = {
    "step_gradient_norm": ("the gradient ~ d^(1/2)", 0.5),
    "step_eta": ("the step eta ~ d^(-1)", -1.0),
    "step_relative_size": ("delta over the norm of x ~ d^(-1/2)", -0.5),
}
# Exponents are fitted from here on, too, where there are so many d: constants fade as d grows.
FAR, FEWEST = 100, 3
# Figure 7's, and where: eta concentrates around it.
ETA, ETA_AT = 0.045, {"d": 784, "width": 100_000, "ball": 10.0, "data": "mnist"}
# Images have labels that can be learned; those of the other sources are random.
LEARNABLE = ("digits", "mnist")


def claims(results: xr.Dataset) -> list[Claim]:
    """Exponents of d, for every width or ball; growth with the ball; test errors."""
    lines = varied(results)
    shown = on_axes(results, lines)
    found = []
    for variable, (text, claimed) in EXPONENTS.items():
        for value in shown[lines].values:
            part = shown.sel({lines: value})
            good = part[variable].where(part.status.isin(SUCCEEDED))
            claim = f"{text}, {'k' if lines == 'width' else 'C0'} = {value:g}"
            law = fit(good.d.broadcast_like(good).values, good.values)
            if law is None:
                counted = int(good.notnull().any("seed").sum())
                found.append(Claim(claim, f"too few d with runs that count: {counted}"))
                continue
            holds = abs(law.exponent - claimed) <= TOLERANCE
            asked = f"; asked to be within {TOLERANCE:g} of {claimed:g}"
            found.append(Claim(claim, f"{law}{_far(good)}{asked}", holds))
    if lines == "ball" and shown.ball.size > 1:
        found += [_grows(shown, variable) for variable in EXPONENTS]
    if results.data.item() in LEARNABLE:
        found.append(_errors(shown))
    return found


def _far(values: xr.DataArray) -> str:
    """The exponent over large d alone, where there are smaller ones, too."""
    far = values.sel(d=values.d[values.d >= FAR])
    law = fit(far.d.broadcast_like(far).values, far.values)
    if law is None or not FEWEST <= far.d.size < values.d.size:
        return ""
    return f"; over d >= {FAR} {law}"


def step_of_figure_7(results: xr.Dataset) -> list[Claim]:
    """Around which eta the steps of all test points concentrate: it holds where the paper's lies
    within the middle half of them."""
    at = {name: results[name].item() for name in ETA_AT}
    where = f"(d = {at['d']}, k = {at['width']}, C0 = {at['ball']:g})"
    text = f"eta concentrates around {ETA}"
    eta = results.point_eta.where(results.status.isin(SUCCEEDED)).values
    eta = eta[np.isfinite(eta)]
    if not eta.size:
        return [Claim(text, f"no test point counts {where}")]
    least, low, middle, high, most = np.quantile(eta, [0.05, 0.25, 0.5, 0.75, 0.95])
    told = (
        f"median {middle:.3f}, half from {low:.3f} to {high:.3f}, nine tenths from {least:.3f} to "
        f"{most:.3f} {where}"
    )
    return [Claim(text, told, bool(low <= ETA <= high) if at == ETA_AT else None)]


def notes(results: xr.Dataset) -> str:
    """What the means are over."""
    flipped = results.step_flipped_share.where(results.status.isin(SUCCEEDED))
    if not flipped.notnull().any():
        return "No run converged or came to the edge of its ball: there is no mean."
    least = f"{float(flipped.min()):.1%}"
    counted = (
        "all test points as in the published code, with eta = 0 for misclassified ones and at "
        f"most 5 for the others, of which a step flips {least} at least"
        if results.published.item()
        else "test points classified correctly that a step with |delta| <= |x| flips: "
        f"{least} of them at least"
    )
    return (
        f"Means are over runs that converged or came to the edge of their ball, and over {counted}."
    )


def varied(results: xr.Dataset) -> str:
    """What is varied beside d: "ball" where there are several, else "width"."""
    return "ball" if "ball" in results.dims else "width"


def on_axes(results: xr.Dataset, lines: str) -> xr.Dataset:
    """The results over d, width or ball, and seed: the first value of all else."""
    kept = {"d", lines, "seed"}
    return results.isel({str(name): 0 for name in results.dims if name not in kept})


def _grows(results: xr.Dataset, variable: str) -> Claim:
    mean = summarize(results, variable).mean
    text = f"{EXPONENTS[variable][0].split(' ~')[0]} grows with C0"
    # From each ball to the next that has a mean at the same d.
    lines = mean.transpose(..., "ball").values.reshape(-1, mean.ball.size)
    steps = np.concatenate([np.diff(line[np.isfinite(line)]) for line in lines])
    if not steps.size:
        return Claim(text, "no two balls with runs that count")
    falling = int((steps <= 0).sum())
    ratio = (mean.isel(ball=-1) / mean.isel(ball=0)).values
    shown = ", ".join(f"{r:.2f}" for r in np.ravel(ratio))
    return Claim(
        text,
        f"{float(mean.ball[-1]):g} against {float(mean.ball[0]):g}, by d: {shown} times; "
        f"{falling} of {steps.size} steps fall",
        falling == 0,
    )


def _errors(results: xr.Dataset) -> Claim:
    needed = results.step_needed_share.where(results.status.isin(SUCCEEDED))
    text = "test error below 1%"
    if not needed.notnull().any():
        return Claim(text, "no run counts")
    worst = float(1 - needed.min())
    measured = f"largest {worst:.2%}, mean {float(1 - needed.mean()):.2%}"
    return Claim(text, measured, worst < 0.01)
