"""Initial weights and data of a run, drawn from its own fields alone, at any padded shape."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.measurements import Measurement
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


def seen(
    run: Run, params: Params, start: Params, data: Dataset, measurements: Sequence[Measurement]
) -> Seen:
    """The network and what the measurements ask for.

    Raises ValueError for held-out points, or a truth, that they require and the data do not have.
    """
    needs = {name for one in measurements for name in one.needs()}
    return Seen(
        params,
        data,
        asked_for("test", run, measurements),
        start if "start" in needs else None,
        run.protocol if "protocol" in needs else None,
        asked_for("truth", run, measurements),
    )


def asked_for(name: str, run: Run, measurements: Sequence[Measurement]) -> Any:
    """Held-out points ("test") or the "truth" of a run, where a measurement asks for them.

    None where the run has none and no measurement requires it, else `held_out` and `truth` raise.
    """
    if any(name in one.requires() for one in measurements):
        return held_out(run) if name == "test" else truth(run)
    if not any(name in one.needs() for one in measurements):
        return None
    draw_it = run.data.draw_held_out if name == "test" else run.data.draw_truth
    return draw_it(run.seed)


def _fit(array: Any, *shape: int) -> Any:
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])
