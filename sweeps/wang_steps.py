"""Figures 2, 3, 5, 6 and 7 of Wang, Ullah, Mianjy, Arora (2022): one gradient step, lazy networks.

Trains lazy networks on zeros against ones, or random labels on the sphere, up to the edge of the
lazy ball, and finds for every test point the smallest gradient step that flips it: |delta|/|x|,
|grad f| and |eta| against the dimension d, for several widths (Figures 2 and 5) or balls C0 (3 and
6); 2 and 3 with pixels as they are and biases, 5 and 6 with |x| = 1 and none; 7 their histograms.
Leaves a folder for each figure: its panels (PNG and PDF), every run in results.nc, and the fitted
exponents beside the paper's claims in claims.md; names end in "-sgd" or "-published" under those
options. Run the same command again to go on after an interruption.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.perturbations import StepStatus, gradient_steps

from .wang_claims import claims, notes, on_axes, step_of_figure_7, varied

BALLS = (10.0, 20.0, 30.0, 40.0)
WIDTHS = (1_000, 10_000, 100_000)
DIGITS_PIXELS = 64


class Shown(NamedTuple):
    """What a figure of the paper varies beside d, and the setting it is measured in."""

    lines: Literal["width", "ball"]
    normalized: bool


FIGURES = {
    "2": Shown("width", normalized=False),
    "3": Shown("ball", normalized=False),
    "5": Shown("width", normalized=True),
    "6": Shown("ball", normalized=True),
    "7": Shown("width", normalized=False),
}
PRESETS = {
    "quick": studies.Preset("100 of scikit-learn's digits, 2 seeds"),
    "sphere": studies.Preset(
        "100 random points and labels, d to 784, 3 seeds",
        source="sphere",
        d=(25, 49, 100, 196, 400, 784),
        seeds=3,
    ),
    "mnist": studies.Preset(
        "MNIST from the folder that JAXKKT_MNIST names, by the paper's descent, 2 seeds; "
        "for figures 3 and 6 add --protocol flow: descent hardly gets to larger balls",
        source="mnist",
        d=(25, 49, 100, 196, 400, 625, 784),
        width=(1_000, 10_000),
        ball_width=1_000,
        samples=12_665,
        protocol="sgd",
        max_steps=200_000,
    ),
    "paper": studies.Preset(
        "the same at widths to 100,000, 5 seeds",
        source="mnist",
        d=(25, 49, 100, 196, 400, 625, 784),
        ball_width=100_000,
        samples=12_665,
        seeds=5,
        protocol="sgd",
        max_steps=200_000,
    ),
}
PANELS = (
    ("step_relative_size", r"$|\delta| / |x|$", -0.5),
    ("step_gradient_norm", r"$|\nabla f|$", 0.5),
    ("step_eta", r"$|\eta|$", -1.0),
)


@dataclass(frozen=True)
class Options(studies.Options):
    figure: tuple[Literal["2", "3", "5", "6", "7"], ...] = ("2",)
    """figures of the paper"""
    source: Literal["digits", "digits upsampled", "mnist", "sphere"] = "digits upsampled"
    """images; sphere: random points and labels"""
    d: tuple[int, ...] = (25, 49, 100, 196)
    """input dimensions, squares for images"""
    width: tuple[int, ...] = WIDTHS
    """hidden neurons of figures 2, 5, 7"""
    ball_width: int = 10_000
    """hidden neurons of figures 3 and 6"""
    samples: int = 100
    """training samples"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    ball: tuple[float, ...] | None = None
    """C0; 10, and in figures 3 and 6 also 20, 30, 40"""
    protocol: Literal["flow", "sgd"] = "flow"
    """flow: gradient flow in log-loss time; sgd: lr 0.1 in batches of 64"""
    delta: float = 0.02
    """by how much the flow's first step lowers log L; sgd has none"""
    max_steps: int = 20_000
    """after which a network that is still in its ball is given up"""
    published: bool = False
    """eta in steps of 0.001 up to 5, and 0 for misclassified images, which count in the means, as
    in the paper's published code"""

    def bracket(self) -> float:
        """Largest |delta| / |x|: the published code searches up to |eta| = 5, however far."""
        return 1e4 if self.published else 1.0


def runs(options: Options, figure: str, **chosen: Any) -> list[jk.Run]:
    """The networks of a figure; `chosen` replaces axes of it."""
    if options.source == "digits" and max(options.d, default=0) > DIGITS_PIXELS:
        raise ValueError(
            f"the digits have {DIGITS_PIXELS} pixels, got --d {max(options.d)}: take "
            "--source 'digits upsampled' if interpolated pixels are meant"
        )
    shown = FIGURES[figure]
    biases = not shown.normalized
    settings: dict[str, Any] = {"biases": biases, "max_steps": options.max_steps}
    if options.protocol == "flow":
        protocol = jk.protocols.lazy_flow(delta=options.delta, **settings)
    else:
        protocol = jk.protocols.lazy_sgd(**settings)
    data: dict[str, Any] = {"data": "unit sphere" if shown.normalized else "sphere"}
    if options.source != "sphere":
        kind, *upsampled = options.source.split()
        data = {"data": kind, "upsample": bool(upsampled), "normalized": shown.normalized}
    by_width = shown.lines == "width"
    axes: dict[str, Any] = {
        "d": options.d,
        "width": options.width if by_width else options.ball_width,
        "ball": options.ball or (BALLS[0] if by_width else BALLS),
        "seed": range(options.seeds),
        "measure": jk.StepFlips(bracket=options.bracket(), published=options.published),
    }
    return jk.grid(
        **{**axes, **chosen},
        **data,
        samples=options.samples,
        initialization=jk.initializations.Lazy(biases=biases),
        protocol=protocol,
    )


def drawn(figure: Figure, results: xr.Dataset) -> None:
    """The three panels, means and standard deviations over seeds, with the claimed slopes."""
    by = varied(results)
    shown = on_axes(results, by)
    symbol = {"width": "k", "ball": "$C_0$"}[by]
    figure.set_size_inches(9.5, 3.2)
    for ax, (variable, label, slope) in zip(figure.subplots(1, 3), PANELS, strict=True):
        plotting.families(ax, shown, variable, by, symbol=symbol)
        plotting.power_law(ax, results.d.values, shown[variable], slope)
        plotting.logarithmic(ax, results.d.values)
        ax.set_xlabel("input dimension $d$")
        ax.set_ylabel(label)


class Points(jk.Measurement):
    """The steps of all test points, one by one; NaN for those that do not count."""

    bracket: jk.Number = 1.0
    published: bool = False

    def measure(self, params: jk.Params, test: jk.Dataset) -> dict[str, Array]:
        x, y = test
        found = gradient_steps(params, x, self.bracket)
        counted, eta = found.needs_step(y) & (found.status == StepStatus.FLIPPED), found.eta
        if self.published:
            counted, eta = jnp.ones_like(counted), found.published_eta(y)
        norm = found.gradient_norm
        values = {
            "point_relative_size": eta * norm / jnp.linalg.norm(x, axis=1),
            "point_gradient_norm": norm,
            "point_eta": eta,
        }
        return {name: jnp.where(counted, value, jnp.nan) for name, value in values.items()}


def histograms(figure: Figure, results: xr.Dataset) -> None:
    """Figure 7: the test points of one network, at the largest dimension and width.

    Those that are classified correctly and flip; as in the published code all.
    """
    figure.set_size_inches(9.5, 2.8)
    axes = figure.subplots(1, 3)
    for ax, (variable, label, _) in zip(axes, PANELS, strict=True):
        values = results[variable.replace("step", "point")].values.ravel()
        counted = values[np.isfinite(values)]
        ax.hist(counted, bins=20)
        ax.set_xlabel(label)
    axes[0].set_ylabel("test points")
    figure.suptitle(
        f"d = {results.d.item()}, k = {results.width.item()}, $C_0$ = {results.ball.item():g}: "
        f"{counted.size} of {values.size} test points"
    )


def part(options: Options, figure: str) -> studies.Part:
    suffix = "" if options.protocol == "flow" else f"-{options.protocol}"
    name = f"figure{figure}{suffix}" + ("-published" if options.published else "")
    if figure == "7":
        points = Points(bracket=options.bracket(), published=options.published)
        ball = (options.ball or BALLS)[0]
        one = {"d": max(options.d), "width": max(options.width), "seed": 0, "ball": ball}
        found = runs(options, figure, **one, measure=points)
        panel = studies.Panel(name, histograms)
        return studies.Part(found, name=name, claims=step_of_figure_7, panels=[panel])
    panels = [studies.Panel(name, drawn)]
    return studies.Part(runs(options, figure), name=name, claims=claims, notes=notes, panels=panels)


def parts(options: Options) -> list[studies.Part]:
    return [part(options, figure) for figure in options.figure]


STUDY = studies.Study("wang-steps", __doc__, Options, parts, PRESETS, folder="wang")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
