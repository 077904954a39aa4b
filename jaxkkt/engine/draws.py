"""Initial weights and data of a run, drawn from its own fields alone, at any padded shape."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.protocols import Training
from jaxkkt.runs.run import Run


def draw(run: Run) -> tuple[Params, Dataset]:
    """A run's initial parameters and data, as NumPy arrays."""
    start = run.initialization.draw_start(run.seed, run.width, run.d)
    return start, run.data.draw_training(run.seed)


def held_out(run: Run) -> Dataset:
    """Points of the run's source that it does not train on, the same for all widths and scales.

    Of images those of their own split, in whole; of a distribution 256 draws; of own arrays the
    points given for it. Raises ValueError where there are none.
    """
    found = run.data.draw_held_out(run.seed)
    if found is None:
        raise ValueError(
            f"a measurement asks for held-out points, and {run.data.label!r} has none: "
            "jk.data.Arrays(x, y, x_test, y_test) takes them"
        )
    return found


def truth(run: Run) -> Any:
    """What the run's points were made of; raises ValueError where its data do not tell."""
    found = run.data.draw_truth(run.seed)
    if found is None:
        raise ValueError(
            f"a measurement asks for the truth behind the points, and {run.data.label!r} has none: "
            "jk.data.Clusters has, and any distribution with a method draw_truth(seed)"
        )
    return found


def pad_params(params: Params, width: int, dim: int) -> Params:
    """The same numbers, with zero neurons and coordinates up to the sizes given."""
    return Params(_fit(params.w, width, dim), _fit(params.b, width), _fit(params.v, width))


def pad_data(data: Dataset, samples: int, dim: int) -> Dataset:
    """The same numbers, with zero samples and coordinates up to the sizes given."""
    return Dataset(_fit(data.x, samples, dim), _fit(data.y, samples))


class Seen(NamedTuple):
    """A network with what measurements may ask for beside it, at a run's own size."""

    params: Params
    data: Dataset
    test: Dataset | None
    start: Params | None
    protocol: Training | None
    truth: Any = None

    def padded(self, samples: int, dim: int, width: int, tests: int) -> "Seen":
        return Seen(
            pad_params(self.params, width, dim),
            pad_data(self.data, samples, dim),
            None if self.test is None else pad_data(self.test, tests, dim),
            None if self.start is None else pad_params(self.start, width, dim),
            self.protocol,
            self.truth,
        )


def seen(run: Run, params: Params, start: Params, data: Dataset, needs: Collection[str]) -> Seen:
    """The network and what `needs` names; raises ValueError for held-out points without any."""
    return Seen(
        params,
        data,
        held_out(run) if "test" in needs else None,
        start if "start" in needs else None,
        run.protocol if "protocol" in needs else None,
        truth(run) if "truth" in needs else None,
    )


def _fit(array: Any, *shape: int) -> Any:
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])
