"""Transfer, after Vardi, Yehudai, Shamir (2022): one direction for every network on a dataset.

The universal direction of a network is a sum of the training points, so it should flip any other
network trained on them. Trains networks of several widths, initializations and seeds on one
dataset for each alpha, and tries the direction of each on all. Leaves every run in results.nc,
every flip size in transfer.nc (direction a, network b), and in claims.md, for each alpha, the flip
size by a network's own direction and how much larger it is by the others'.
"""

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

import jaxkkt as jk
from jaxkkt import studies
from jaxkkt.perturbations import transfer_matrix
from jaxkkt.training import SUCCEEDED

# Initializations of networks whose layers are all trained.
TRAINED_IN_WHOLE = ("gaussian", "torch")


class OneSphere(jk.data.Distribution):
    """Points of the sphere, the same ones for every seed: a seed draws the weights alone."""

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return jk.datasets.sphere(jax.random.key(0), samples, dim)

    def draw_test(self, key: PRNGKeyArray, data_key: PRNGKeyArray, dim: int) -> tuple[Array, Array]:
        return jk.datasets.sphere(key, jk.specs.data.HELD_OUT, dim)


@dataclass(frozen=True)
class Options(studies.Options):
    d: int = 100
    """input dimension"""
    alpha: tuple[float, ...] = (0.5, 0.8, 1.0, 1.2)
    """m = round(d^alpha) samples"""
    width: tuple[int, ...] = (100, 300, 1000)
    """hidden neurons"""
    seeds: int = 2
    """weights of each width and initialization, from seed 0 on"""


def transfer(results: xr.Dataset, context: studies.Context) -> xr.Dataset:
    """Flip sizes over alpha, direction and network; inf where the direction does not flip it, NaN
    where either did not converge."""
    matrices = []
    for alpha in results.alpha.values:
        runs = [run for run in context.runs if run.fields()["alpha"] == alpha]
        matrices.append(_matrix(results, runs, context))
    table = xr.concat(matrices, xr.Variable("alpha", results.alpha.values))
    table.attrs = {
        "long_name": "smallest perturbation along the direction of `direction` that flips all "
        "samples on the margin of `network`; inf where none within the bracket does",
        "units": "units of the input (|x| = sqrt(d))",
    }
    return table.to_dataset(name="flip_size")


def _matrix(results: xr.Dataset, runs: list[jk.Run], context: studies.Context) -> xr.DataArray:
    names = [f"{r.initialization.label}, width {r.width}, seed {r.seed}" for r in runs]
    sizes = np.full((len(runs), len(runs)), np.nan)
    rows = [context.row(results, run) for run in runs]
    good = [i for i, row in enumerate(rows) if row is not None and int(row.status) in SUCCEEDED]
    if good:
        widest = max(run.width for run in runs)
        trained = context.networks([runs[i] for i in good])
        padded = [jk.networks.pad(params, widest, runs[0].d) for params in trained]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *padded)
        sizes[np.ix_(good, good)] = transfer_matrix(stacked, *runs[0].data.draw_training(0)).size
    coords = {"direction": names, "network": names}
    return xr.DataArray(sizes, dims=("direction", "network"), coords=coords)


def claims(results: xr.Dataset) -> list[studies.Claim]:
    """Whether the directions of others flip a network, for each dataset."""
    found = []
    for alpha, matrix in results.flip_size.groupby("alpha"):
        _, others = _own_and_others(matrix.squeeze("alpha"))
        flipped = int(np.isfinite(others).sum())
        found.append(
            studies.Claim(
                f"m = d^{alpha:g}: a network's direction flips the others trained on the same data",
                f"{flipped} of {others.size} pairs flipped",
                flipped == others.size if others.size else None,
            )
        )
    return found


def notes(results: xr.Dataset) -> str:
    """The table of flip sizes, by alpha."""
    lines = [
        "| alpha | networks | c, own direction | flipped by others' | ratio, median | largest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [summary(float(a), results.flip_size.sel(alpha=a)) for a in results.alpha.values]
    return "\n".join(lines)


def summary(alpha: float, matrix: xr.DataArray) -> str:
    """A row of the table."""
    own, others = _own_and_others(matrix)
    flipped, by_others = np.isfinite(own), np.isfinite(others)
    ratios = (others / own)[by_others & flipped]
    shown = ratios if ratios.size else np.array([np.nan])
    mean = own[flipped].mean() if flipped.any() else np.nan
    return (
        f"| {alpha:g} | {own.size} | {mean:.3f} | {int(by_others.sum())} of {others.size} "
        f"| {np.median(shown):.3f} | {shown.max():.3f} |"
    )


def _own_and_others(matrix: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Flip sizes of the networks that were trained, inf where there is none: (n,) by their own
    direction, (n - 1, n) by those of the others."""
    trained = ~np.isnan(np.diag(matrix))
    sizes = matrix.values[np.ix_(trained, trained)]
    count = len(sizes)
    of_others = sizes.T[~np.eye(count, dtype=bool)].reshape(count, max(count - 1, 0)).T
    return np.diag(sizes), of_others


def parts(options: Options) -> list[studies.Part]:
    runs = jk.grid(
        d=options.d,
        alpha=options.alpha,
        width=options.width,
        initialization=TRAINED_IN_WHOLE,
        seed=range(options.seeds),
        data=OneSphere,
    )
    derived = studies.Derived("transfer", transfer)
    return [studies.Part(runs, claims=claims, notes=notes, derived=derived, keep=True)]


STUDY = studies.Study("vardi-transfer", __doc__, Options, parts)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
