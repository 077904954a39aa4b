"""Trained networks beside what they started from and trained on."""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run


class Trained(NamedTuple):
    """Networks with what they trained on, stacked and padded on the device, and what they started
    from, where a measurement asks for it."""

    params: Params
    start: Params | None
    data: Dataset

    def at(self, i: int, run: Run) -> "Alone":
        """One of them at its run's own size."""
        return Alone(self, i, run)


class Alone:
    """One network of several at its run's own size, as NumPy arrays, made when asked for."""

    def __init__(self, trained: Trained, i: int, run: Run) -> None:
        self._all, self._i, self._run = trained, i, run

    @property
    def params(self) -> Params:
        return self._network(self._all.params)

    @property
    def start(self) -> Params:
        assert self._all.start is not None
        return self._network(self._all.start)

    @property
    def data(self) -> Dataset:
        x, y = (np.asarray(leaf)[self._i] for leaf in self._all.data)
        return Dataset(x[: self._run.samples, : self._run.d].copy(), y[: self._run.samples].copy())

    def _network(self, some: Params) -> Params:
        w, b, v = (np.asarray(leaf)[self._i] for leaf in some)
        k, d = self._run.width, self._run.d
        return Params(w[:k, :d].copy(), b[:k].copy(), v[:k].copy())


def network_like(width: int, dim: int) -> Any:
    """Shapes and types of a network."""
    return Params(_shape(width, dim), _shape(width), _shape(width))


def points_like(samples: int, dim: int) -> Any:
    """Shapes and types of data."""
    return Dataset(_shape(samples, dim), _shape(samples))


def stacked_like(like: Any, count: int) -> Any:
    """Shapes and types of so many of these along a new leading axis."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape), a.dtype), like)


def _shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(float))
