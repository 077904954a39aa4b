"""Figure 4's claims in Wang et al. (2022): where robust accuracy crosses 1/2, and how that scales.

The paper's words are a sharp drop at |delta| = 5/sqrt(d) and a transition at V ~ 25/sqrt(k). Here
the crossing is fitted as constant * size^exponent. A claim holds for an exponent within `TOLERANCE`
of -1/2 and a constant, at exponent -1/2, within a factor of 2.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from jaxkkt import summarize
from jaxkkt.studies import Claim
from jaxkkt.training import Status

from .wang_fits import TOLERANCE, crossing, fit

# What the panels vary, and the paper's constant over the square root of the first.
AXES = {"left": ("d", "radius", 5), "right": ("width", "weight_radius", 25)}
# Accuracy falls as perturbations grow, and rises with the ball.
RISES = {"left": False, "right": True}
ATTACKS = {
    "robust_accuracy": "attack of Algorithm 1",
    "robust_accuracy_normalized": "normalized steps",
}


def thresholds(results: xr.Dataset, panel: str) -> list[Claim]:
    """Where robust accuracy changes, by both attacks."""
    along, across, claimed = AXES[panel]
    symbol = {"d": "d", "width": "k"}[along]
    what = {"left": "delta", "right": "V"}[panel]
    shown = on_axes(results, panel)
    found = []
    for name, attack in ATTACKS.items():
        mean = summarize(shown, name).mean
        sizes, reach = shown[along].values, mean[across].values
        at = np.array([crossing(reach, mean.sel({along: n}).values, RISES[panel]) for n in sizes])
        listed = crossings(at, [f"({symbol} = {n})" for n in sizes], reach, RISES[panel])
        text = f"robust accuracy changes at {what} = {claimed}/sqrt({symbol}), {attack}"
        law = fit(sizes, at)
        if law is None:
            found.append(Claim(text, f"{listed}; too few to fit"))
            continue
        constant = float(np.exp(np.nanmean(np.log(at * np.sqrt(sizes)))))
        near = abs(law.exponent + 0.5) <= TOLERANCE and 0.5 <= constant / claimed <= 2
        measured = f"{listed}; {law}, {constant:.1f}/sqrt({symbol})"
        found.append(Claim(text, measured, near))
    return found


def crossings(at: np.ndarray, where: Sequence[str], reach: np.ndarray, rises: bool) -> str:
    """Where accuracy crosses 1/2, and where it does not in all that was tried."""
    found = [f"{a:.3f} {there}" for a, there in zip(at, where, strict=True) if np.isfinite(a)]
    none = [there for a, there in zip(at, where, strict=True) if not np.isfinite(a)]
    told = [f"crosses 1/2 at {', '.join(found)}"] if found else []
    if none and len(reach) == 1:
        told.append(f"no crossing can be told from {reach[0]:g} alone {', '.join(none)}")
    elif none:
        tried = f"between {min(reach):g} and {max(reach):g}"
        way = "rise" if rises else "fall"
        told.append(f"does not {way} through 1/2 {tried} {', '.join(none)}")
    return "; ".join(told)


def notes(results: xr.Dataset, panel: str) -> str:
    """How many networks settled, their accuracy, and for the left panel what the images allow."""
    lines = []
    if panel == "left":
        reach = on_axes(results, panel).half_way.mean(("seed", "radius"))
        listed = ", ".join(f"{float(reach.sel(d=d)):.3f} (d = {d})" for d in reach.d.values)
        lines += [
            "Half way from a test image to the nearest training image of the other class, median: "
            f"{listed}. No network is robust at both to a perturbation of that size.",
            "",
        ]
    clean = results.accuracy
    settled = int((results.status == Status.SETTLED).sum())
    rising = int((results.status == Status.LAST_EPOCH).sum())
    lines.append(
        f"{int(clean.notnull().sum())} networks, {settled} trained until robust training accuracy "
        f"had stopped rising; accuracy without attack {float(clean.min()):.1%} at least, "
        f"{float(clean.mean()):.1%} on average."
    )
    if rising:
        lines[-1] += f" {rising} had not settled at the last epoch, and count, too: raise --epochs."
    return "\n".join(lines)


def on_axes(results: xr.Dataset, panel: str) -> xr.Dataset:
    """The results over the panel's two axes and the seed."""
    along, across, _ = AXES[panel]
    others = [str(name) for name in results.dims if name not in (along, across, "seed")]
    shown = results.squeeze(others, drop=True)
    # What all runs have in common is no dimension of a table.
    return shown if across in shown.dims else shown.expand_dims(across)
