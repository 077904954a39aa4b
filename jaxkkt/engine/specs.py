"""What to run: one `Run` is one network trained on one dataset, and one row of the results."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from numbers import Integral
from typing import Any
from zlib import crc32

import jax
from jaxtyping import PRNGKeyArray

from jaxkkt.datasets import DATASETS
from jaxkkt.images import SOURCES
from jaxkkt.losses import LOSSES
from jaxkkt.networks import INITIALIZATIONS
from jaxkkt.requirements import require_positive


@dataclass(frozen=True)
class Run:
    """One network on one dataset: `samples` points of dimension `d`, `width` neurons.

    `alpha` says where the sample count came from, samples = round(d^alpha); None when it was given.
    The data depend on (data, samples, d, seed) alone and the initial weights on (initialization,
    width, d, seed): runs of different widths or losses share their data, runs of different
    scales their draw. Raises ValueError for a field that is out of range or unknown.
    """

    d: int
    samples: int
    width: int
    seed: int
    alpha: float | None = None
    loss: str = "exponential"
    data: str = "sphere"
    initialization: str = "torch"
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("d", 1), ("samples", 2), ("width", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise ValueError(f"{name} must be an integer, got {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
            object.__setattr__(self, name, int(value))
        if self.seed >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {self.seed}")
        for name, known in (
            ("loss", LOSSES),
            ("data", DATASETS | SOURCES),
            ("initialization", INITIALIZATIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"unknown {name} {getattr(self, name)!r}: choose from {sorted(known)}"
                )
        require_positive(init_scale=self.init_scale)

    @property
    def name(self) -> str:
        """A stable name, unique among runs; the row's file name."""
        alpha = "" if self.alpha is None else f"-a{self.alpha:g}"
        return (
            f"d{self.d}{alpha}-m{self.samples}-k{self.width}-s{self.seed}-{self.loss}"
            f"-{self.data}-{self.initialization}-x{self.init_scale:g}"
        ).replace(" ", "_")

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def data_key(self) -> PRNGKeyArray:
        return _fold(jax.random.key(self.seed), f"data {self.data}", self.samples, self.d)

    def test_key(self) -> PRNGKeyArray:
        return _fold(jax.random.key(self.seed), f"test {self.data}", self.d)

    def init_key(self) -> PRNGKeyArray:
        return _fold(jax.random.key(self.seed), f"init {self.initialization}", self.width, self.d)

    def shuffle_key(self) -> PRNGKeyArray:
        return _fold(jax.random.key(self.seed), "shuffle", self.samples, self.d)


def grid(
    d: Iterable[int],
    alpha: Iterable[float] = (),
    width: Iterable[int] = (1000,),
    seed: Iterable[int] = range(5),
    samples: Iterable[int] = (),
    loss: Iterable[str] = ("exponential",),
    data: Iterable[str] = ("sphere",),
    initialization: Iterable[str] = ("torch",),
    init_scale: Iterable[float] = (1.0,),
) -> list[Run]:
    """Every combination of the axes; sample counts by `alpha` (round(d^alpha)) or by `samples`.

    Raises ValueError for an empty axis, or unless exactly one of `alpha` and `samples` is given.
    """
    axes: dict[str, list[Any]] = {
        "d": list(d),
        "alpha": list(alpha),
        "samples": list(samples),
        "width": list(width),
        "seed": list(seed),
        "loss": list(loss),
        "data": list(data),
        "initialization": list(initialization),
        "init_scale": list(init_scale),
    }
    if bool(axes["alpha"]) == bool(axes["samples"]):
        raise ValueError("give the sample counts by exactly one of `alpha` and `samples`")
    counted = "alpha" if axes["alpha"] else "samples"
    del axes["samples" if counted == "alpha" else "alpha"]
    empty = [name for name, values in axes.items() if not values]
    if empty:
        raise ValueError(f"the grid is empty: no values for {', '.join(empty)}")
    runs = []
    for values in product(*axes.values()):
        fields = dict(zip(axes, values, strict=True))
        if counted == "alpha":
            fields["samples"] = round(fields["d"] ** fields["alpha"])
        runs.append(Run(**fields))
    return runs


def unique(runs: Sequence[Run]) -> list[Run]:
    """The runs without repetitions, in order; ValueError when there are none."""
    if not runs:
        raise ValueError("there are no runs: the grid is empty")
    return list(dict.fromkeys(runs))


def _fold(key: PRNGKeyArray, tag: str, *numbers: int) -> PRNGKeyArray:
    for number in (crc32(tag.encode()), *numbers):
        key = jax.random.fold_in(key, number)
    return key
