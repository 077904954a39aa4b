"""Runs under way, in files: one that is killed goes on from there, to the same bits."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkkt.engine.machine.devices import environment
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run, hash_of
from jaxkkt.store.arrays import read_arrays, write_arrays

log = logging.getLogger("jaxkkt")

# A run is saved so often once it has trained for so long; where there are many, more seldom, so
# that it takes no more than this share of the time.
SECONDS_BETWEEN_CHECKPOINTS = 30.0
SHARE_FOR_CHECKPOINTS = 0.1


class UnderWay(NamedTuple):
    """A run between two steps: the leaves of its state as numbers, what was measured on its way,
    the networks there, and the seconds that it took so far."""

    state: Sequence[Any]
    moments: Sequence[dict[str, Any]]
    networks: Sequence[Params]
    seconds: float


class Saved:
    """A folder of checkpoints, and of which runs it has some: those that were there at first, and
    those that were saved since. To ask the disk for every run takes long. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = set[str]()
        with suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(path.name.removesuffix(".npz") for path in folder.iterdir())

    def __contains__(self, run: Run) -> bool:
        return bool(self._names) and run.name in self._names

    def note(self, run: Run) -> None:
        self._names.add(run.name)


class Checkpoints:
    """Checkpoints of the runs of a bucket.

    One counts only where the same code, versions and devices go on at the same shape. One that
    cannot be written is told, and training goes on. They are not waited for until they are on the
    disk: what a crash of the machine leaves of one does not match its checksum, and its run begins
    anew.
    """

    def __init__(self, saved: Saved, bucket: Bucket) -> None:
        self._saved = saved
        self._computed_with = hash_of([environment(), bucket.computed_as, bucket.lanes])
        self._next = perf_counter() + SECONDS_BETWEEN_CHECKPOINTS

    def __contains__(self, run: Run) -> bool:
        return run in self._saved

    def are_due(self) -> bool:
        """Whether it is time to save."""
        return perf_counter() >= self._next

    def took(self, seconds: float) -> None:
        """All were saved, which took so long: when it is time again."""
        between = max(SECONDS_BETWEEN_CHECKPOINTS, seconds / SHARE_FOR_CHECKPOINTS)
        self._next = perf_counter() + between

    def save(self, run: Run, found: UnderWay) -> None:
        arrays: dict[str, Any] = {"computed with": self._computed_with, "seconds": found.seconds}
        arrays["state"] = np.concatenate([_as_bytes(leaf) for leaf in found.state])
        for i, moment in enumerate(found.moments):
            arrays |= {f"moment {i} {name}": value for name, value in moment.items()}
        for i, network in enumerate(found.networks):
            arrays |= {f"network {i} {name}": value for name, value in network._asdict().items()}
        try:
            self._saved.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(path_of(self._saved.folder, run), run.name, arrays, at_once=False)
        except OSError as error:
            log.warning("no checkpoint of %s: %s", run.name, error)
        else:
            self._saved.note(run)

    def load(self, run: Run, like: Any) -> UnderWay | None:
        """What was saved of a run whose state has leaves `like` these; None where that does not
        count."""
        path = path_of(self._saved.folder, run)
        try:
            arrays = read_arrays(path, run.name)
            if str(arrays.pop("computed with")) != self._computed_with:
                raise ValueError(f"{path} is of other settings, or another number of lanes")
        except (OSError, ValueError) as error:
            log.warning("training begins anew: %s", error)
            return None
        state = _leaves(arrays.pop("state"), like)
        seconds = float(arrays.pop("seconds"))
        moments: dict[int, dict[str, Any]] = {}
        networks: dict[int, dict[str, Any]] = {}
        for name, value in arrays.items():
            kind, number, what = name.split(" ", 2)
            place = moments if kind == "moment" else networks
            place.setdefault(int(number), {})[what] = value
        return UnderWay(
            state,
            [moments[i] for i in sorted(moments)],
            [Params(**networks[i]) for i in sorted(networks)],
            seconds,
        )


def path_of(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}.npz"


def numbers_in(leaf: Any) -> np.ndarray:
    """An array on the host; of keys, their numbers."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _as_bytes(numbers: Any) -> np.ndarray:
    """Many small arrays take longer to write than one."""
    return np.frombuffer(np.ascontiguousarray(numbers).tobytes(), np.uint8)


def _leaves(packed: np.ndarray, like: Sequence[Any]) -> list[Any]:
    """The leaves of a run's state, of those of a batch the types and shapes."""
    found, begin = [], 0
    for leaf in like:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
        end = begin + np.dtype(shape.dtype).itemsize * prod(shape.shape[1:])
        numbers = packed[begin:end].view(shape.dtype).reshape(shape.shape[1:])
        if is_key:
            impl = jax.random.key_impl(jnp.zeros((), leaf.dtype))
            numbers = jax.random.wrap_key_data(numbers, impl=impl)
        found.append(numbers)
        begin = end
    return found
