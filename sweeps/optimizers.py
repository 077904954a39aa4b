"""What the optimizer does to the limit: an open question of Vardi, Yehudai, Shamir (2022).

Networks by flow, descent on L and on log L ("sgd"), momentum, normalized descent, Adam, signs.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
import xarray as xr
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies

PANELS = ("flip_size_exact", "on_margin_share", "normalized_margin", "residual_clarke")


def momentum(learning_rate: float) -> optax.GradientTransformation:
    return optax.sgd(learning_rate, 0.9)


def normalized(learning_rate: float) -> optax.GradientTransformation:
    return optax.chain(optax.normalize_by_update_norm(), optax.sgd(10 * learning_rate))


@dataclass(frozen=True)
class Options(studies.Options):
    d: tuple[int, ...] = (50, 100)
    """input dimensions; the figure shows the largest"""


def parts(options: Options) -> list[studies.Part]:
    made = [jk.optimizer(f, learning_rate=0.001) for f in (normalized, optax.adam, optax.sign_sgd)]
    sgd, heavy = (jk.optimizer(f, linear=True, learning_rate=0.001) for f in (optax.sgd, momentum))
    axes: dict[str, Any] = {"d": options.d, "alpha": [0.5, 0.8, 1.0], "width": 300}
    axes |= {"seed": range(3), "max_steps": 10_000, "measure": [jk.Flips, jk.Certificates]}
    runs = jk.grid(**axes, optimizer=sgd, learning_rate=[0.001, 0.01, 0.1])
    runs += jk.grid(**axes, optimizer=["flow", jk.Descent(learning_rate=0.001), heavy, *made])
    return [studies.Part(runs, claims=claims, panels=[studies.Panel("optimizers", drawn)])]


def by_rule(results: xr.Dataset) -> xr.Dataset:
    """Over rules, each an optimizer at a rate."""
    return jk.combinations(results.isel(width=0), ["optimizer", "learning_rate"], "rule")


def drawn(figure: Figure, results: xr.Dataset) -> None:
    figure.set_size_inches(10, 6)
    shown = by_rule(results).sel(d=results.d.max())
    figure.suptitle(f"d = {shown.d.item()}; a gap where no run of a rule reaches 1e-30, or flips")
    for ax, variable in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        plotting.families(ax, shown, variable, "alpha", along="rule", symbol=r"$\alpha$")
        ax.tick_params("x", rotation=40)


def claims(results: xr.Dataset) -> list[studies.Claim]:
    """For every rule: c against sqrt(d), means of runs that converged and flipped, and medians of
    all that converged. One that did not flip within its bracket, 4 sqrt(d), speaks against it."""
    good = by_rule(results).pipe(lambda flat: flat.where(flat.status == jk.Status.CONVERGED))
    found = []
    for rule, one in good.groupby("rule"):
        c = one.flip_size_exact.where(np.isfinite(one.flip_size_exact))
        ended, flipped = int(one.steps.count()), int(c.count())
        largest = float((c / np.sqrt(one.d)).mean("seed").max())
        over = [float((one[v] / good[v].sel(rule="flow")).median()) for v in PANELS]
        medians = ", ".join(f"{v} {m:.3f}" for v, m in zip(PANELS, over, strict=True))
        left_out = f", {ended - flipped} of them not flipped" if flipped < ended else ""
        told = f"{ended} of {one.steps.size} at 1e-30{left_out}; c/sqrt(d) {largest:.2f} at most, "
        told += f"means; medians over the flow's: {medians}"
        holds = flipped == ended and largest < 1 if ended else None
        found.append(studies.Claim(f"c stays below sqrt(d): {rule}", told, holds))
    return found


STUDY = studies.Study("optimizers", __doc__, Options, parts)
if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
