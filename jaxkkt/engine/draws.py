"""Initial weights and data of a run, drawn from its own fields alone, at any padded shape."""

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import DATASETS, Dataset
from jaxkkt.engine.specs import Run
from jaxkkt.images import SOURCES
from jaxkkt.networks import INITIALIZATIONS, Params

TEST_SAMPLES = 256


def draw(run: Run) -> tuple[Params, Dataset]:
    """A run's initial parameters and data, as NumPy arrays."""
    return draw_padded(run, run.samples, run.d, run.width)


def draw_padded(run: Run, samples: int, dim: int, width: int) -> tuple[Params, Dataset]:
    """The same numbers, with zero samples, coordinates and neurons up to the sizes given."""
    neurons, columns = map(round_up, (run.width, run.d))
    drawn = _training_data(run)
    start = _compiled(INITIALIZATIONS[run.initialization], (neurons, columns))(
        run.init_key(), run.width, run.d, run.init_scale
    )
    start = jax.tree.map(np.asarray, start)
    w, b, v = _fit(start.w, width, dim), _fit(start.b, width), _fit(start.v, width)
    return Params(w, b, v), Dataset(_fit(drawn.x, samples, dim), _fit(drawn.y, samples))


def held_out(run: Run) -> Dataset:
    """Points of the run's source that it does not train on, the same for all widths and scales.

    Of images those of their own split, in whole; of a distribution `TEST_SAMPLES` draws.
    """
    if run.data in SOURCES:
        return SOURCES[run.data](run.d).test
    shape = (round_up(TEST_SAMPLES), round_up(run.d))
    drawn = _compiled(DATASETS[run.data], shape)(run.test_key(), TEST_SAMPLES, run.d)
    return _cut(drawn, TEST_SAMPLES, run.d)


def _training_data(run: Run) -> Dataset:
    if run.data not in SOURCES:
        shape = (round_up(run.samples), round_up(run.d))
        drawn = _compiled(DATASETS[run.data], shape)(run.data_key(), run.samples, run.d)
        return _cut(drawn, run.samples, run.d)
    x, y = SOURCES[run.data](run.d).train
    if run.samples > len(y):
        raise ValueError(
            f"{run.data} has {len(y)} training images, but a run asks for {run.samples} samples"
        )
    # The first of an order that the seed draws: both classes, and more samples contain fewer.
    order = np.random.default_rng(run.seed).permutation(len(y))
    first = [order[y[order] == label][0] for label in (1, -1)]
    rows = np.array([*first, *(i for i in order if i not in first)])[: run.samples]
    return Dataset(x[rows], y[rows])


def round_up(size: int) -> int:
    """The size that draws and measurements are compiled for: few, and not much larger."""
    return 256 if size <= 256 else -(-size // 1024) * 1024


class Seen(NamedTuple):
    """What measurements may ask for, at the sizes that they are compiled for."""

    data: Dataset
    test: Dataset | None
    start: Params | None


def seen(run: Run, start: Params, data: Dataset, needs: Collection[str], tests: int) -> Seen:
    """The data and what else is needed, with zero rows and columns up to round sizes."""
    k, m, d = map(round_up, (start.v.shape[0], *data.x.shape))
    test = None
    if "test" in needs:
        x, y = held_out(run)
        test = Dataset(_fit(x, tests, d), _fit(y, tests))
    padded = Params(_fit(start.w, k, d), _fit(start.b, k), _fit(start.v, k))
    return Seen(
        Dataset(_fit(data.x, m, d), _fit(data.y, m)), test, padded if "start" in needs else None
    )


@cache
def _compiled(function: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    return jax.jit(partial(function, shape=shape))


def _cut(data: Dataset, samples: int, dim: int) -> Dataset:
    return jax.tree.map(np.asarray, Dataset(data.x[:samples, :dim], data.y[:samples]))


def _fit(array: Any, *shape: int) -> Any:
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])
