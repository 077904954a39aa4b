"""Trained networks beside what they started from and trained on."""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt import datasets, networks
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
        own = datasets.unpad(self._mine(self._all.data), self._run.samples, self._run.d)
        return jax.tree.map(np.copy, own)

    def _network(self, some: Params) -> Params:
        own = networks.unpad(self._mine(some), self._run.width, self._run.d)
        return jax.tree.map(np.copy, own)

    def _mine(self, arrays: Any) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[self._i], arrays)


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
