"""Initial weights and data of a run, drawn from its own fields alone, at any padded shape."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from jaxkkt.datasets import DATASETS, Dataset
from jaxkkt.engine.specs import Run
from jaxkkt.networks import INITIALIZATIONS, Params


def draw(run: Run) -> tuple[Params, Dataset]:
    """A run's initial parameters and data, as NumPy arrays."""
    return draw_padded(run, run.samples, run.d, run.width)


def draw_padded(run: Run, samples: int, dim: int, width: int) -> tuple[Params, Dataset]:
    """The same numbers, with zero samples, coordinates and neurons up to the sizes given."""
    rows, neurons, columns = map(round_up, (run.samples, run.width, run.d))
    drawn = _compiled(DATASETS[run.data], (rows, columns))(run.data_key(), run.samples, run.d)
    start = _compiled(INITIALIZATIONS[run.initialization], (neurons, columns))(
        run.init_key(), run.width, run.d, run.init_scale
    )
    drawn, start = jax.tree.map(np.asarray, (drawn, start))
    w, b, v = _fit(start.w, width, dim), _fit(start.b, width), _fit(start.v, width)
    return Params(w, b, v), Dataset(_fit(drawn.x, samples, dim), _fit(drawn.y, samples))


def round_up(size: int) -> int:
    """The size that draws and measurements are compiled for: few, and not much larger."""
    return 256 if size <= 256 else -(-size // 1024) * 1024


def rounded(data: Dataset) -> Dataset:
    """The data with zero rows and columns up to round sizes."""
    m, d = map(round_up, data.x.shape)
    return Dataset(_fit(data.x, m, d), _fit(data.y, m))


@cache
def _compiled(function: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    return jax.jit(partial(function, shape=shape))


def _fit(array: Any, *shape: int) -> Any:
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])
