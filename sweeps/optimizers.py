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


def parts(options: Options) -> list[studies.Part]:
    made = [jk.optimizer(f, learning_rate=0.001) for f in (normalized, optax.adam, optax.sign_sgd)]
    sgd, heavy = (jk.optimizer(f, linear=True, learning_rate=0.001) for f in (optax.sgd, momentum))
    axes: dict[str, Any] = {"d": options.d, "alpha": [0.5, 0.8, 1.0], "width": 300}
    measure = [jk.Flips, jk.Certificates(kink_tolerance=1e-3)]
    axes |= {"seed": range(3), "max_steps": 10_000, "measure": measure}
    runs = jk.grid(**axes, optimizer=sgd, learning_rate=[0.001, 0.01, 0.1])
    runs += jk.grid(**axes, optimizer=["flow", jk.Descent(learning_rate=0.001), heavy, *made])
    return [studies.Part(runs, claims=claims, panels=[studies.Panel("optimizers", drawn)])]


def by_rule(results: xr.Dataset) -> xr.Dataset:
    """Over rules, each an optimizer at a rate."""
    flat = jk.combinations(results, ("optimizer", "learning_rate"), "rule")
    return flat.squeeze("width", drop=True)


def drawn(figure: Figure, results: xr.Dataset) -> None:
    figure.set_size_inches(10, 6)
    for ax, variable in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        shown = by_rule(results).sel(d=results.d.max())
        plotting.families(ax, shown, variable, "alpha", along="rule", symbol=r"$\alpha$")
        ax.tick_params("x", rotation=40)
        ax.set_ylabel(f"{variable}, d = {shown.d.item()}".replace("_", " "))


def claims(results: xr.Dataset) -> list[studies.Claim]:
    """For every rule: how many runs got there, c against sqrt(d), and medians over the flow's."""
    good = by_rule(results).pipe(lambda flat: flat.where(flat.status == jk.Status.CONVERGED))
    found = []
    for rule, one in good.groupby("rule"):
        largest = float((one.flip_size_exact / np.sqrt(one.d)).mean("seed").max())
        over = [float((one[v] / good[v].sel(rule="flow")).median()) for v in PANELS]
        medians = ", ".join(f"{v} {m:.3f}" for v, m in zip(PANELS, over, strict=True))
        told = f"{int(one.steps.notnull().sum())} of {one.steps.size} at 1e-30; c/sqrt(d) "
        told += f"{largest:.2f} at most, means; medians over the flow's: {medians}"
        holds = None if np.isnan(largest) else largest < 1
        found.append(studies.Claim(f"c stays below sqrt(d): {rule}", told, holds))
    return found


STUDY = studies.Study("optimizers", __doc__, Options, parts)
if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
