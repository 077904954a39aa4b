"""Figure 4 of Wang, Ullah, Mianjy, Arora (2022): adversarial training inside the lazy ball.

Left: robust test accuracy against the perturbation |delta| and the dimension d, at one width and
one ball V = 10 / sqrt(k). Right: against the width k and the ball V, at one d and |delta|. Every
point is a network trained by Algorithm 1 on zeros against ones with |x| = 1 and attacked with the
same |delta|, once as in the algorithm and once with normalized steps, which large margins do not
stop. Leaves the panel (PNG and PDF), every run in results.nc, and the fitted thresholds beside the
paper's in claims.md. Run the same command again to go on after an interruption.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

import jaxkkt as jk
from jaxkkt import plotting, studies
from jaxkkt.adversarial import AdversarialProtocol
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.perturbations import robust_accuracy

from .wang_thresholds import AXES, notes, on_axes, thresholds

C0, WIDTH, RADIUS = 10.0, 1000, 0.2
EVENLY = tuple(np.linspace(0.05, 1, 20).round(3).tolist())
PRESETS = {
    "quick": studies.Preset(
        "100 of scikit-learn's digits, resampled",
        d=(25, 49, 100, 196),
        radius=tuple(np.geomspace(0.1, 1.2, 8).round(3).tolist()),
        width=(300, 1000, 3000, 10_000),
        right_d=49,
        ball=tuple(np.geomspace(0.03, 3, 8).round(3).tolist()),
    ),
    # At the learning rate of 0.1 an epoch of 1,000 images moves neurons as far as one of 12,665 at
    # the 0.01 of the paper.
    "mnist": studies.Preset(
        "1,000 images of MNIST, from the folder that JAXKKT_MNIST names; radii 1.1 apart",
        source="mnist",
        d=(49, 100, 196, 400, 784),
        radius=tuple(np.geomspace(0.12, 0.55, 17).round(4).tolist()),
        width=(500, 1000, 2000, 4000),
        right_d=196,
        ball=tuple(np.geomspace(0.06, 0.6, 26).round(4).tolist()),
        samples=1000,
        batch_size=64,
    ),
    "paper": studies.Preset(
        "MNIST, from the folder that JAXKKT_MNIST names, and the paper's grid",
        source="mnist",
        d=tuple(side**2 for side in range(5, 29)),
        radius=EVENLY,
        width=(500, 1000, 2000, 5000, 10_000),
        right_d=784,
        ball=EVENLY,
        samples=12_665,
        seeds=5,
        learning_rate=0.01,
        batch_size=64,
    ),
}
# White lines on light and dark.
OUTLINE = [withStroke(linewidth=3, foreground="black")]


@dataclass(frozen=True)
class Options(studies.Options):
    panel: Literal["left", "right"] = "left"
    """which half of the figure"""
    source: Literal["digits", "mnist"] = "digits"
    """images: scikit-learn's, resampled to any d, or MNIST's"""
    d: tuple[int, ...] = ()
    """left: input dimensions"""
    right_d: int = 49
    """right: the input dimension"""
    radius: tuple[float, ...] = ()
    """left: |delta| of the attacks"""
    width: tuple[int, ...] = ()
    """right: hidden neurons"""
    ball: tuple[float, ...] = ()
    """right: V"""
    samples: int = 100
    """training images"""
    seeds: int = 1
    """number of seeds, from 0 on"""
    # An epoch of 100 images in place of 12,665 would hardly move a neuron at 0.01.
    learning_rate: float = 0.1
    """of descent"""
    batch_size: int = 10
    """images of a step"""
    epochs: int = 100
    """at most"""
    published: bool = False
    """judge networks before their projection, as the paper's published code does"""


def robust(params: jk.Params, test: jk.Dataset, protocol: AdversarialProtocol) -> dict[str, Array]:
    """Test accuracy: clean, and under both attacks at the radius of training."""

    margins = jk.networks.margins(params, *test)
    right = jnp.mean(margins > 0, dtype=margins.dtype)
    return {
        "robust_accuracy": robust_accuracy(params, *test, protocol.radius, normalized=False),
        "robust_accuracy_normalized": robust_accuracy(params, *test, protocol.radius),
        "accuracy": jnp.where(jnp.any(jnp.isnan(margins)), jnp.nan, right),
    }


def half_way(data: jk.Dataset, test: jk.Dataset) -> dict[str, Array]:
    """Half way from a test image to the nearest training image of the other class, median."""
    return {"half_way": jnp.median(jk.datasets.half_distances(*test, *data))}


def runs(options: Options) -> list[jk.Run]:
    """The networks of a panel, those that take longest first."""
    require_positive(radius=options.radius)  # thresholds and maps are on logarithms
    protocol = AdversarialProtocol(
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        epochs=options.epochs,
        judged_before_projecting=options.published,
    )
    axes: dict[str, Any] = (
        {"d": options.d, "width": WIDTH, "radius": options.radius}
        | {"weight_radius": C0 / WIDTH**0.5, "measure": [robust, half_way]}
        if options.panel == "left"
        else {"d": options.right_d, "width": options.width, "radius": RADIUS}
        | {"weight_radius": options.ball, "measure": robust}
    )
    found = jk.grid(
        **axes,
        data=options.source,
        upsample=options.source == "digits",
        normalized=True,
        samples=options.samples,
        initialization="lazy",
        protocol=protocol,
        seed=range(options.seeds),
    )
    return sorted(found, key=lambda run: -run.d * run.width)


def drawn(figure: Figure, results: xr.Dataset, panel: str) -> None:
    """Robust test accuracy as a map, with the paper's threshold.

    Left also half way from a test image to the nearest training image of the other class.
    """
    along, across, constant = AXES[panel]
    figure.set_size_inches(9, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    shown = on_axes(results, panel)
    attacks = {"": "attack of Algorithm 1", "_normalized": "normalized steps"}
    for ax, (name, title) in zip(axes, attacks.items(), strict=True):
        # Networks whose accuracy still rose at the last epoch count, too; broken ones do not.
        accuracy = jk.summarize(shown, f"robust_accuracy{name}").mean
        accuracy = accuracy.assign_attrs(long_name="robust test accuracy")
        plotting.accuracy_map(ax, accuracy, along, across)
        values = np.asarray(shown[along], float)
        claimed = rf"${constant}/\sqrt{{{'d' if panel == 'left' else 'k'}}}$"
        lines = [(constant / np.sqrt(values), "--", claimed)]
        if panel == "left":
            reach = shown.half_way.mean(("seed", "radius"))
            lines.append((reach.values, ":", "half way"))
        for line, linestyle, label in lines:
            plotting.line(ax, values, line, f"w{linestyle}", label=label, path_effects=OUTLINE)
        ax.set_title(title)
        ax.legend(loc="upper right", labelcolor="white", frameon=True, facecolor="black")
    axes[0].set_ylabel(r"$|\delta|$" if panel == "left" else "$V$")


def parts(options: Options) -> list[studies.Part]:
    panel = options.panel
    name = f"4-{panel}" + ("-published" if options.published else "")
    return [
        studies.Part(
            runs(options),
            name=f"figure{name}",
            claims=lambda results: thresholds(results, panel),
            notes=lambda results: notes(results, panel),
            panels=[studies.Panel(f"figure{name}", lambda f, results: drawn(f, results, panel))],
        )
    ]


STUDY = studies.Study("wang-robust", __doc__, Options, parts, PRESETS, folder="wang")

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
