"""Transfer, after Vardi, Yehudai, Shamir (2022): one direction for every network on a dataset.

The universal direction of a network is a sum of the training points, so it should flip any other
network trained on them. Trains networks of several widths, initializations and seeds on one
dataset for each alpha, and tries the direction of each on all. Leaves every flip size in
transfer.nc (direction a, network b) and prints, for each alpha, the flip size by a network's own
direction and how much larger it is by the others'.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import jaxkkt as jk
from jaxkkt.datasets import Dataset
from jaxkkt.engine.results import save
from jaxkkt.networks import INITIALIZATIONS, Params
from jaxkkt.perturbations import FlipStatus, transfer_matrix

# Initializations of networks whose layers are all trained.
TRAINED_IN_WHOLE = ("gaussian", "torch")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.vardi_transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--d", type=int, default=100, help="input dimension (default: 100)")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.5, 0.8, 1.0, 1.2])
    parser.add_argument("--width", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=2, help="weights a width (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("results/vardi-transfer"))
    return parser


def train_on(data: Dataset, widths: Sequence[int], seeds: int) -> tuple[list[str], Params]:
    """Networks of all widths, initializations and seeds on one dataset, padded to one width."""
    names, trained = [], []
    for width, initialization in product(widths, TRAINED_IN_WHOLE):
        draw = INITIALIZATIONS[initialization]
        keys = jax.random.split(jax.random.key(width), seeds)
        starts = jax.vmap(lambda key, draw=draw, width=width: draw(key, width, data.x.shape[1]))(
            keys
        )
        result = jax.vmap(jk.train, in_axes=(0, None, None))(starts, *data)
        if not (result.status == jk.Status.CONVERGED).all():
            raise ValueError(f"a network of width {width} did not converge: {result.status}")
        pad = jax.vmap(lambda params: jk.networks.pad(params, max(widths), data.x.shape[1]))
        trained.append(pad(result.params))
        names += [f"{initialization}, width {width}, seed {seed}" for seed in range(seeds)]
    return names, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trained)


def summary(alpha: float, matrix: xr.DataArray) -> str:
    """A row of the table."""
    own = np.diag(matrix)
    others = (matrix.values / own)[~np.eye(own.size, dtype=bool)]
    flipped = np.isfinite(others)
    ratios = others[flipped] if flipped.any() else np.array([np.nan])
    return (
        f"| {alpha:g} | {own.size} | {own.mean():.3f} | {flipped.sum()} of {others.size} "
        f"| {np.median(ratios):.3f} | {ratios.max():.3f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.seeds < 1:
        parser().error(f"--seeds must be at least 1, got {options.seeds}")
    matrices = []
    print("| alpha | networks | c, own direction | flipped by others' | ratio, median | largest |")
    print("| --- | --- | --- | --- | --- | --- |")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for alpha in options.alpha:
            samples = round(options.d**alpha)
            data = jk.datasets.sphere(jax.random.key(0), samples, options.d)
            names, networks = train_on(data, options.width, options.seeds)
            flips = transfer_matrix(networks, *data)
            sizes = np.where(flips.status == FlipStatus.FLIPPED, flips.size, np.nan)
            matrices.append(
                xr.DataArray(
                    sizes,
                    dims=("direction", "network"),
                    coords={"direction": names, "network": names},
                )
            )
            print(summary(alpha, matrices[-1]))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = xr.concat(matrices, xr.Variable("alpha", options.alpha))
    table.attrs = {
        "long_name": "smallest perturbation along the direction of `direction` that flips all "
        "samples on the margin of `network`; NaN where none within the bracket does",
        "units": "units of the input (|x| = sqrt(d))",
    }
    save(table.to_dataset(name="flip_size"), options.out / "transfer.nc")
    return 0


if __name__ == "__main__":
    sys.exit(main())
