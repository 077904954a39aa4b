"""What Wang, Ullah, Mianjy, Arora (2022) leave open: stronger attacks, and larger balls.

Trains lazy networks on zeros against ones, |x| = 1, to the edges of balls C0 from small to large.
For every test image: the smallest gradient step that flips it, and the smallest radius at which an
attack of 100 normalized steps does; and robust test error at radii in units of 1/sqrt(d) against
C0, the distance from the initialization. Means are over networks that came to the edge of their
ball. Leaves a folder, "open" or by descent "open-sgd", with a figure (PNG and PDF), a table, and
every run in results.nc. Run the same command again to go on after an interruption.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.perturbations import gradient_steps, robust_accuracy, smallest_radii
from jaxkkt.training import SUCCEEDED

# |delta|, in units of 1/sqrt(d); the paper sees the drop of adversarial training at 5.
RADII = (0.5, 1.0, 2.0, 3.0, 5.0)
# Largest |delta| that is searched, for |x| = 1.
BRACKET = 4.0
# What the table says of a network, by how many digits.
COLUMNS = {
    "step_size": ("gradient step, median", 3),
    "attack_size": ("attack, median", 3),
    "ratio": ("attack / step, median", 2),
    "least_ratio": ("least", 2),
    "test_error": ("test error", 3),
}


@dataclass(frozen=True)
class Options(studies.Options):
    source: Literal["digits", "mnist"] = "digits"
    """images: scikit-learn's, resampled to any d, or MNIST's"""
    d: tuple[int, ...] = (25, 49, 100, 196)
    """input dimensions"""
    width: int = 1000
    """hidden neurons"""
    samples: int = 100
    """training images"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    ball: tuple[float, ...] = (1, 3, 10, 30, 100, 300)
    """C0"""
    protocol: Literal["flow", "sgd"] = "flow"
    """flow: gradient flow in log-loss time; sgd: lr 0.1 in batches of 64, the paper's"""
    max_steps: int = 20_000
    """after which a network that is still in its ball is given up"""


def attacked(params: jk.Params, test: jk.Dataset) -> dict[str, Array]:
    """Both attacks on every test image, medians over those that are correct and flip, and robust
    error."""
    x, y = test
    steps = gradient_steps(params, x, bracket=BRACKET)
    bracket = jnp.where(steps.size < BRACKET, 1.1 * steps.size, BRACKET)
    radii = smallest_radii(params, x, y, bracket)
    good = steps.needs_step(y) & jnp.isfinite(steps.size)

    def over_good(values: Array) -> Array:
        return jnp.where(good, values, jnp.nan)

    at = jnp.asarray(RADII, x.dtype) / jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))
    return {
        "test_error": jnp.mean(~steps.needs_step(y)),
        "robust_error": 1 - robust_accuracy(params, x, y, at, normalized=True),
        "step_size": jnp.nanmedian(over_good(steps.size)),
        "attack_size": jnp.nanmedian(over_good(radii)),
        "ratio": jnp.nanmedian(over_good(radii / steps.size)),
        "least_ratio": jnp.nanmin(over_good(radii / steps.size)),
    }


def means(results: xr.Dataset) -> xr.Dataset:
    """Over the seeds whose networks came to the edge of their ball, by ball, d and radius."""
    results = results.squeeze(("samples", "width"), drop=True)
    return results.where(results.status.isin(SUCCEEDED)).mean("seed")


def table(results: xr.Dataset) -> str:
    """Means as in `means`, and over how many networks, by ball and dimension."""
    heads = ["C0", "d", "networks", *(head for head, _ in COLUMNS.values())]
    heads += [f"robust error at {r:g}/sqrt(d)" for r in RADII]
    lines = [_row(heads), "| ---: " * len(heads) + "|"]
    mean, good = means(results), results.status.isin(SUCCEEDED)
    for ball in np.atleast_1d(mean.ball.values):
        for d in mean.d.values:
            at = {"d": d, **({"ball": ball} if "ball" in mean.dims else {})}
            here, number = mean.sel(at), int(good.sel(at).sum())
            cells = [f"{float(here[name]):.{digits}f}" for name, (_, digits) in COLUMNS.items()]
            cells += [f"{float(error):.2f}" for error in here.robust_error]
            lines.append(_row([f"{ball:g}", d, number, *(cells if number else [""] * len(cells))]))
    lines += ["", f"{int(good.sum())} of {good.size} networks at the edge of their ball."]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def figure(canvas: Figure, results: xr.Dataset) -> None:
    """Both attacks against d at one ball, and robust error against C0 at the largest d."""
    mean = means(results)
    if "ball" not in mean.dims:
        mean = mean.expand_dims("ball")
    ball = mean.ball.values[np.argmin(np.abs(np.log(mean.ball.values / 10)))]
    canvas.set_size_inches(8, 3.4)
    left, right = canvas.subplots(1, 2)
    for name, label in (("step_size", "one gradient step"), ("attack_size", "100 steps")):
        left.plot(mean.d, mean[name].sel(ball=ball), marker="o", label=label)
    plotting.power_law(left, mean.d.values, mean.attack_size.sel(ball=ball), -0.5)
    plotting.logarithmic(left, mean.d.values)
    left.set_xlabel("input dimension $d$")
    left.set_ylabel(rf"median smallest $|\delta|$, $C_0$ = {ball:g}")
    left.legend()
    for i, radius in enumerate(RADII):
        part = mean.robust_error.isel(d=-1, robust_error_0=i)
        right.plot(mean.ball, part, marker="o", label=rf"$|\delta| = {radius:g}/\sqrt{{d}}$")
    right.set(xscale="log", xlabel=r"$C_0$", ylim=(-0.03, 1.03))
    right.set_ylabel(f"robust test error, d = {mean.d.values[-1]}")
    right.legend()


def parts(options: Options) -> list[studies.Part]:
    flow = options.protocol == "flow"
    name = "open" if flow else f"open-{options.protocol}"
    runs = jk.grid(
        data=options.source,
        upsample=options.source == "digits",
        normalized=True,
        d=options.d,
        samples=options.samples,
        width=options.width,
        seed=range(options.seeds),
        initialization="lazy",
        protocol=(jk.protocols.lazy_flow if flow else jk.protocols.lazy_sgd)(
            max_steps=options.max_steps
        ),
        ball=options.ball,
        measure=attacked,
    )
    texts, panels = [studies.Text(name, table)], [studies.Panel(name, figure)]
    return [studies.Part(runs, name=name, texts=texts, panels=panels)]


STUDY = studies.Study("wang-open", __doc__, Options, parts, folder="wang-open")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
