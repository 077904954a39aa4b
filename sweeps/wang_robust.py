"""Figure 4 of Wang, Ullah, Mianjy, Arora (2022): adversarial training inside the lazy ball.

Left: robust test accuracy against the perturbation |delta| and the dimension d, at one width and
one ball V = 10 / sqrt(k). Right: against the width k and the ball V, at one d and |delta|. Every
point is a network trained by Algorithm 1 on zeros against ones with |x| = 1 and attacked with the
same |delta|, once as in the algorithm and once with normalized steps, which large margins do not
stop. Leaves the panel (PNG and PDF), all accuracies in results-4-PANEL.nc, and the fitted
thresholds beside the paper's in claims-4-PANEL.md, with "-published" after the names under that
option. Run the same command again to go on after an interruption.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray
from matplotlib.patheffects import withStroke

import jaxkkt as jk
from jaxkkt import datasets, plotting
from jaxkkt.adversarial import adversarial_training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import LANE_BYTES
from jaxkkt.engine.draws import draw, held_out
from jaxkkt.engine.parts import compute_parts
from jaxkkt.engine.results import save
from jaxkkt.networks import Params
from jaxkkt.perturbations import pgd
from jaxkkt.requirements import require_positive
from sweeps.wang_claims import thresholds_table

C0 = 10.0
# Of the paper: the drop is at 5 / sqrt(d), the change at V ~ 25 / sqrt(k).
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "source": "digits upsampled normalized",
        "samples": 100,
        # An epoch of 100 images in place of 12,665 would hardly move a neuron at 0.01.
        "learning_rate": 0.1,
        "batch_size": 10,
        "seeds": 1,
        "d": (25, 49, 100, 196),
        "radius": tuple(np.geomspace(0.1, 1.2, 8).round(3).tolist()),
        "width": (300, 1000, 3000, 10_000),
        "right_d": 49,
        "ball": tuple(np.geomspace(0.03, 3, 8).round(3).tolist()),
    },
    "paper": {
        "source": "mnist normalized",
        "samples": 12_665,
        "learning_rate": 0.01,
        "batch_size": 64,
        "seeds": 5,
        "d": tuple(side**2 for side in range(5, 29)),
        "radius": tuple(np.linspace(0.05, 1, 20).round(3).tolist()),
        "width": (500, 1000, 2000, 5000, 10_000),
        "right_d": 784,
        "ball": tuple(np.linspace(0.05, 1, 20).round(3).tolist()),
    },
}
WIDTH, RADIUS = 1000, 0.2
# White lines on light and dark.
OUTLINE = [withStroke(linewidth=3, foreground="black")]
# What the panels vary.
AXES = {"left": ("d", "radius"), "right": ("width", "ball")}
# Options that replace a preset's value.
OPTIONS = (
    "d",
    "right_d",
    "radius",
    "width",
    "ball",
    "samples",
    "seeds",
    "learning_rate",
    "batch_size",
)


class Point(NamedTuple):
    """A network of the figure, and its place in it."""

    run: jk.Run
    radius: float
    ball: float

    @property
    def place(self) -> dict[str, Any]:
        return {"radius": self.radius, "ball": self.ball, **self.run.fields()}

    @property
    def name(self) -> str:
        run = self.run
        return f"d{run.d}-k{run.width}-s{run.seed}-R{self.radius!r}-V{self.ball!r}"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.wang_robust",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--panel", choices=("left", "right"), default="left")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="quick")
    parser.add_argument("--d", type=int, nargs="+", help="left: input dimensions")
    parser.add_argument("--right-d", type=int, help="right: the input dimension")
    parser.add_argument("--radius", type=float, nargs="+", help="left: |delta| of the attacks")
    parser.add_argument("--width", type=int, nargs="+", help="right: hidden neurons")
    parser.add_argument("--ball", type=float, nargs="+", help="right: V")
    parser.add_argument("--samples", type=int, help="training images")
    parser.add_argument("--seeds", type=int, help="number of seeds, from 0 on")
    parser.add_argument("--learning-rate", type=float, help="(default: 0.1; paper: 0.01)")
    parser.add_argument("--batch-size", type=int, help="(default: 10; paper: 64)")
    parser.add_argument("--epochs", type=int, default=100, help="at most (default: 100)")
    parser.add_argument(
        "--published",
        action="store_true",
        help="judge networks before their projection, as the paper's published code does",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: results/wang-PRESET)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def points(panel: str, grid: dict[str, Any]) -> list[Point]:
    """The networks of a panel, those that take longest first; ValueError for sizes up to 0."""
    for name in ("radius", "ball"):
        require_positive(**{name: grid.get(name, ())})
    dimensions, widths = (
        (grid["d"], (WIDTH,)) if panel == "left" else ((grid["right_d"],), grid["width"])
    )
    runs = jk.grid(
        d=dimensions,
        samples=(grid["samples"],),
        width=widths,
        seed=range(grid["seeds"]),
        loss=("logistic",),
        data=(grid["source"],),
        initialization=("lazy",),
    )
    runs.sort(key=lambda run: -run.d * run.width)
    found = (
        [Point(run, radius, C0 / WIDTH**0.5) for run in runs for radius in grid["radius"]]
        if panel == "left"
        else [Point(run, RADIUS, ball) for run in runs for ball in grid["ball"]]
    )
    return list(dict.fromkeys(found))


class Lane(NamedTuple):
    """What one network is trained and attacked with; stacked, many of one shape."""

    start: Params
    train: Dataset
    test: Dataset
    radius: Array
    ball: Array
    key: PRNGKeyArray


def lane(point: Point) -> Lane:
    start, train = draw(point.run)
    test = held_out(point.run)
    start, train, test = jax.tree.map(jnp.asarray, (start, train, test))
    radius, ball = (jnp.asarray(size, start.w.dtype) for size in (point.radius, point.ball))
    return Lane(start, train, test, radius, ball, point.run.shuffle_key())


def measured(lane: Lane, **settings: Any) -> dict[str, Array]:
    """Trains, by `adversarial_training` with these settings, and attacks one network."""
    trained = adversarial_training(
        lane.start,
        *lane.train,
        lane.radius,
        lane.ball,
        lane.key,
        **settings,
    )
    attacked = partial(pgd, trained.params, *lane.test, lane.radius)
    return {
        "robust_accuracy": jnp.mean(attacked().margins > 0),
        "robust_accuracy_normalized": jnp.mean(attacked(normalized=True).margins > 0),
        "accuracy": jnp.mean(jk.networks.margins(trained.params, *lane.test) > 0),
        "robust_training_accuracy": trained.best,
        "epochs": trained.epochs,
        "status": trained.status,
    }


def lanes_of(run: jk.Run, platform: str) -> int:
    """How many networks of this shape train as one batch: all that fit an accelerator's memory.

    On a CPU one, in each of as many threads as there are cores. An attack holds some six arrays of
    samples by neurons.
    """
    if platform == "cpu":
        return 1
    bytes_ = 4 * (6 * run.samples * run.width + 4 * run.width * run.d + 4 * run.samples * run.d)
    return max(1, LANE_BYTES[platform] // bytes_)


def study(
    panel: str,
    grid: dict[str, Any],
    epochs: int,
    published: bool,
    store: Path,
    progress: bool = True,
    lanes: int | None = None,
) -> xr.Dataset:
    """All networks of a panel, over its two axes and the seed; `lanes` of one shape at a time.

    Parts land in the folder `store`, and the same call goes on from there.
    """
    platform, axes = jax.default_backend(), [*AXES[panel], "seed"]
    batches = []
    for _, group in groupby(points(panel, grid), lambda point: (point.run.d, point.run.width)):
        same = list(group)
        size = lanes or lanes_of(same[0].run, platform)
        batches += [same[i : i + size] for i in range(0, len(same), size)]
    training: dict[str, Any] = {
        "learning_rate": grid["learning_rate"],
        "batch_size": grid["batch_size"],
        "epochs": epochs,
        "judged_before_projecting": published,
    }

    def train(batch: list[Point]) -> xr.Dataset:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(lane, batch))
        found = jax.tree.map(np.asarray, jax.vmap(lambda one: measured(one, **training))(stacked))
        return xr.Dataset(
            {name: ("point", values.astype(float)) for name, values in found.items()},
            {name: ("point", [point.place[name] for point in batch]) for name in axes},
        )

    configuration = {"source": grid["source"], "samples": grid["samples"], **training}
    parts = compute_parts(
        {_name(batch): partial(train, batch) for batch in batches},
        store,
        configuration,
        workers=None if platform == "cpu" else 1,
        progress=progress,
    )
    results = xr.concat(parts, "point").set_index(point=axes).unstack("point")
    if panel == "left":
        runs = {(p.run.d, p.run.seed): p.run for p in points(panel, grid)}
        reach = [[_half_way(runs[d, s]) for s in results.seed.values] for d in results.d.values]
        results["half_way"] = (("d", "seed"), reach)
    fixed = (
        {"width": WIDTH, "C0": C0} if panel == "left" else {"d": grid["right_d"], "radius": RADIUS}
    )
    configuration["judged_before_projecting"] = int(published)  # netCDF has no booleans
    return results.assign_attrs({**fixed, **configuration})


def _half_way(run: jk.Run) -> float:
    """From a test image to the nearest training image of the other class, median."""
    train, test = draw(run)[1], held_out(run)
    return float(np.median(datasets.half_distances(*test, *train)))


def _name(batch: list[Point]) -> str:
    """Of a part: it stands for all of its networks."""
    first, *others = (point.name for point in batch)
    return f"{first}-with-{crc32(' '.join(others).encode()):08x}" if others else first


def drawn(results: xr.Dataset, panel: str, stem: Path) -> list[Path]:
    """Robust test accuracy as a map, with the paper's threshold.

    Left also half way from a test image to the nearest training image of the other class.
    """
    along, across = AXES[panel]
    constant = 5 if panel == "left" else 25
    with plt.style.context(plotting.STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
        for ax, (name, title) in zip(
            axes,
            (
                ("robust_accuracy", "attack of Algorithm 1"),
                ("robust_accuracy_normalized", "normalized steps"),
            ),
            strict=True,
        ):
            plotting.accuracy_map(ax, results[name].mean("seed"), along, across)
            values = np.asarray(results[along], float)
            claimed = rf"${constant}/\sqrt{{{'d' if panel == 'left' else 'k'}}}$"
            lines = [(constant / np.sqrt(values), "--", claimed)]
            if panel == "left":
                lines.append((results.half_way.mean("seed"), ":", "half way"))
            for line, linestyle, label in lines:
                ax.plot(values, line, linestyle, color="white", label=label, path_effects=OUTLINE)
            ax.set_title(title)
            ax.legend(loc="upper right", labelcolor="white", frameon=True, facecolor="black")
        axes[0].set_ylabel(r"$|\delta|$" if panel == "left" else "$V$")
        return plotting.save(figure, stem)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    grid = dict(PRESETS[options.preset])
    grid |= {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    out = options.out or Path("results") / f"wang-{options.preset}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        name = f"4-{options.panel}" + ("-published" if options.published else "")
        parts = out / f"parts-{name}"
        results = study(
            options.panel, grid, options.epochs, options.published, parts, not options.quiet
        )
        save(results, out / f"results-{name}.nc")
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = thresholds_table(results, options.panel)
    (out / f"claims-{name}.md").write_text(text)
    print(text)
    paths = drawn(results, options.panel, out / f"figure{name}")
    print("wrote", ", ".join(map(str, paths)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
