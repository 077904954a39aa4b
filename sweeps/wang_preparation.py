"""How images are prepared, and what that does to Figure 2 of Wang, Ullah, Mianjy, Arora (2022).

The paper says neither how it shrinks images nor how it scales pixels. Trains the lazy networks of
Figure 2 on zeros against ones, by its descent, on images prepared in several ways: shrunk by linear
or cubic interpolation or to the nearest pixels, with pixels from 0 to 1 as they are, from -1 to 1,
standardized by the mean and deviation of all of MNIST's pixels, or scaled to |x| = 1. Leaves a
table, exponents.md, of what a gradient step needs then, and every run in results.nc. Run the same
command again to go on after an interruption.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import xarray as xr

import jaxkkt as jk
from jaxkkt import images, studies
from jaxkkt.training import SUCCEEDED

from .wang_fits import fit

# Mean and deviation of the pixels of MNIST's 60,000 training images, from 0 to 1.
PIXEL_MEAN, PIXEL_DEVIATION = 0.1307, 0.3081


class Way(NamedTuple):
    """How images are shrunk, and what is made of their pixels, which are from 0 to 1."""

    shrunk: Literal["linear", "cubic", "nearest"] = "linear"
    scaled: Callable[[np.ndarray], np.ndarray] = lambda x: x


def unit(x: np.ndarray) -> np.ndarray:
    """Every image scaled to |x| = 1."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


WAYS = {
    "as in Figure 2": Way(),
    "cubic": Way("cubic"),
    "nearest pixels": Way("nearest"),
    "from -1 to 1": Way(scaled=lambda x: 2 * x - 1),
    "standardized": Way(scaled=lambda x: (x - PIXEL_MEAN) / PIXEL_DEVIATION),
    "|x| = 1": Way(scaled=unit),
}
COLUMNS = {
    "step_gradient_norm": "the gradient ~ d^",
    "step_eta": "eta ~ d^",
    "step_relative_size": "delta over the norm of x ~ d^",
}
PRESETS = {
    "quick": studies.Preset("scikit-learn's digits, d to 64"),
    "mnist": studies.Preset(
        "MNIST from the folder that JAXKKT_MNIST names, d to 784",
        source="mnist",
        d=(25, 100, 784),
        samples=12_665,
        max_steps=200_000,
    ),
}


@dataclass(frozen=True)
class Options(studies.Options):
    source: Literal["digits", "mnist"] = "digits"
    """images"""
    d: tuple[int, ...] = (16, 36, 64)
    """input dimensions, squares up to the images' own"""
    samples: int = 288
    """training images"""
    width: int = 1000
    """hidden neurons"""
    seeds: int = 2
    """number of seeds, from 0 on"""
    biases: bool = True
    """train biases, too"""
    max_steps: int = 20_000
    """after which a network that is still in its ball is given up"""


class Prepared(jk.data.Mnist):
    """The zeros and ones of `source`, prepared in one of the `WAYS`."""

    way: str = "as in Figure 2"
    source: str = "mnist"

    def images(self) -> images.Images:
        return _prepared(self.way, self.source, self.d)


@cache
def _prepared(name: str, source: str, d: int) -> images.Images:
    found = images.digits(64) if source == "digits" else images.mnist(images.mnist_folder())
    way, side = WAYS[name], isqrt(d)
    parts = []
    for x, y in found:
        own = isqrt(x.shape[1])
        if side * side != d or side > own:
            raise ValueError(f"d must be a square up to {own * own}, got {d}")
        shapes = (len(x), own, own), (len(x), side, side)
        shrunk = np.asarray(jax.image.resize(np.reshape(x, shapes[0]), shapes[1], way.shrunk))
        scaled: Any = way.scaled(shrunk.reshape(-1, d))
        parts.append(jk.Dataset(scaled, y))
    return images.Images(*parts)


class Lengths(jk.Measurement):
    """The median length of a test image."""

    def measure(self, params: jk.Params, test: jk.Dataset) -> dict[str, jax.Array]:
        return {"length": jax.numpy.median(jax.numpy.linalg.norm(test.x, axis=1))}


def table(results: xr.Dataset) -> str:
    """By way of preparation: exponents with intervals, and what it is at the largest d."""
    far = results.d.values.max()
    heads = ["images", *COLUMNS.values(), f"length of x, d = {far}", "gradient", "eta"]
    lines = [_row([*heads, "test error, largest"]), "| --- " * (len(heads) + 1) + "|"]
    good = results.where(results.status.isin(SUCCEEDED))
    for name in WAYS:
        own = good.sel(way=name)
        laws = [fit(own.d.broadcast_like(own[v]).values, own[v].values) for v in COLUMNS]
        last = own.sel(d=far).mean()
        numbers = [f"{float(last[v]):.3g}" for v in ("length", "step_gradient_norm", "step_eta")]
        exponents = [
            "too few points" if law is None else str(law).removeprefix("exponent ") for law in laws
        ]
        error = f"{1 - float(own.step_needed_share.min()):.2%}"
        lines.append(_row([name.replace("|", "\\|"), *exponents, *numbers, error]))
    return "\n".join([*lines, "", f"{studies.endings(results)}."])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def parts(options: Options) -> list[studies.Part]:
    runs = jk.grid(
        data=[
            Prepared(d=d, samples=options.samples, way=way, source=options.source)
            for way in WAYS
            for d in options.d
        ],
        width=options.width,
        seed=range(options.seeds),
        initialization=jk.initializations.Lazy(biases=options.biases),
        protocol=jk.protocols.lazy_sgd(biases=options.biases, max_steps=options.max_steps),
        measure=[jk.StepFlips(), Lengths()],
    )
    name = "biases" if options.biases else "no-biases"
    return [studies.Part(runs, name=name, texts=[studies.Text("exponents", table)])]


STUDY = studies.Study("wang-preparation", __doc__, Options, parts, PRESETS)

if __name__ == "__main__":
    sys.exit(studies.run_module(__spec__))
