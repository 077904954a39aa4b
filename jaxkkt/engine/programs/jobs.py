"""Which programs measure which runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.engine.machine.devices import out_of_memory
from jaxkkt.engine.machine.packing import Layout, numbers
from jaxkkt.engine.programs.draws import asked_for, pad_data
from jaxkkt.measurements import Measurement, samples_seen
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import Same, by_identity


class Beside(NamedTuple):
    """What measurements may ask for beside a network: arrays that the host draws, or None."""

    test: Dataset | None = None
    truth: Any = None

    def is_nothing(self) -> bool:
        return self.test is None and self.truth is None


_NOTHING = Layout.of(Beside())


class Kind(NamedTuple):
    """What runs have in common that one program measures: the structure of what it measures and is
    given, and the run's own size (samples, d, width) where the measurements do not take padding, or
    to how many samples they are padded at most."""

    measurements: Layout
    protocol: Layout
    own: tuple[int, int, int] | None
    seen: int | None
    beside: Layout
    # Whether all runs are given the same arrays.
    shared: bool


@dataclass(eq=False)
class Job:
    """Some measurements of some runs that one program measures. Runs are known by their place;
    those of the same specs follow each other, and have the same words."""

    kind: Kind
    which: tuple[int, ...]  # of the runs' measurements
    runs: list[int] = field(default_factory=list)
    words: list[tuple[int, np.ndarray]] = field(default_factory=list)
    given: list[Beside] = field(default_factory=list)

    def add(self, runs: Sequence[int], words: np.ndarray, beside: Beside) -> int:
        """Adds runs of the same specs; gives the row at which they begin."""
        first = len(self.runs)
        self.runs.extend(runs)
        self.words.append((len(runs), words))
        self.given.extend([beside] * len(runs))
        return first

    @property
    def beside(self) -> Beside:
        return self.given[0] if self.kind.shared else jax.tree.map(_stack, *self.given)


class Alike(NamedTuple):
    """Runs of the same specs, by place; their measurements; the jobs that compute some of those,
    each with the first of the runs' rows there."""

    runs: list[int]
    asked: tuple[Measurement, ...]
    jobs: list[tuple[Job, int]]


@contextmanager
def raising_for(runs: Sequence[int], raised: dict[int, Exception]) -> Iterator[None]:
    """An error within is noted for those of these runs that have none yet; where memory runs out it
    is raised on."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        for i in runs:
            raised.setdefault(i, error)


def jobs_of(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    dim: int,
    raised: dict[int, Exception],
) -> tuple[list[Alike], list[Job]]:
    """The jobs that measure these runs, but for what is measured on the host, and which of them are
    whose. What raises ends those that it concerns."""
    of_specs: dict[tuple[int, Same], list[int]] = {}
    before: tuple[Any, Any] = None, None
    for i, (run, some) in enumerate(zip(runs, asked, strict=True)):
        if run.apart_from_seed is not before[0] or some is not before[1]:
            before = run.apart_from_seed, some
            same = of_specs.setdefault((id(some), run.apart_from_seed), [])
        same.append(i)
    alike, jobs = list[Alike](), dict[Any, Job]()
    for same in of_specs.values():
        with raising_for(same, raised):
            for mine in _given_the_same(same, asked[same[0]]):
                with raising_for(mine, raised):
                    found, run = Alike(mine, asked[mine[0]], []), runs[mine[0]]
                    for group, kind, beside, of in _kinds(run, found.asked, dim):
                        key = group.places, kind, of
                        job = jobs.setdefault(key, Job(kind, group.places))
                        words = _numbers_words(group, run.protocol)
                        found.jobs.append((job, job.add(mine, words, beside)))
                    alike.append(found)
    return alike, list(jobs.values())


def _given_the_same(runs: list[int], asked: tuple[Measurement, ...]) -> list[list[int]]:
    """Runs of the same specs together, but each by itself where the host draws for its seed."""
    return [[i] for i in runs] if _draws(asked) else [runs]


def _stack(*arrays: Any) -> Any:
    return np.stack(arrays)


class _Together(NamedTuple):
    """Measurements that one program computes: their places, what they ask for, their numbers."""

    places: tuple[int, ...]
    some: tuple[Measurement, ...]
    padded: bool
    needs: frozenset[str]
    numbers: "_Packed"


class _Packed(NamedTuple):
    """The numbers of a spec, as words, and how to read them."""

    layout: Layout
    words: np.ndarray


@by_identity
def _packed(spec: Any) -> _Packed:
    found = numbers(spec)
    layout = Layout.of(found)
    return _Packed(layout, layout.pack_on_host([found])[0])


@by_identity
def _together(measurements: tuple[Measurement, ...]) -> tuple[_Together, ...]:
    """Those that run on the device: those that take padding, and the others."""
    found = []
    for padded in (True, False):
        places = [
            j for j, one in enumerate(measurements) if not one.on_host and one.padded is padded
        ]
        if places:
            some = tuple(measurements[j] for j in places)
            needs = frozenset(name for one in some for name in one.needs())
            found.append(_Together(tuple(places), some, padded, needs, _packed(some)))
    return tuple(found)


# A program's measurements, their kind, what the host draws for them, and of which data that is.
_Kinds = tuple[tuple[_Together, Kind, Beside, Any], ...]


def _kinds(run: Run, some: tuple[Measurement, ...], dim: int) -> _Kinds:
    """The programs that measure a run, and what they are given."""
    if _draws(some):
        return _kinds_of(run, some, dim)
    return _kinds_alike(some, run.apart_from_seed)


@by_identity
def _draws(some: tuple[Measurement, ...]) -> bool:
    return any(not group.needs.isdisjoint(("test", "truth")) for group in _together(some))


@by_identity
def _kinds_alike(some: tuple[Measurement, ...], specs: Same) -> _Kinds:
    return _kinds_of(Run.of_fields(*specs), some, dim=0)


def _kinds_of(run: Run, some: tuple[Measurement, ...], dim: int) -> _Kinds:
    found = []
    for group in _together(some):
        beside = _beside(run, group, dim)
        kind = _kind(run, group, beside)
        of = run.data if kind.shared and kind.beside != _NOTHING else None
        found.append((group, kind, beside, of))
    return tuple(found)


def _beside(run: Run, group: _Together, dim: int) -> Beside:
    """What the host draws for them; points that padded ones see get this dimension."""
    test = asked_for("test", run, group.some) if "test" in group.needs else None
    if test is not None and group.padded:
        test = pad_data(test, len(test.y), dim)
    truth = asked_for("truth", run, group.some) if "truth" in group.needs else None
    return jax.tree.map(_in_jax_precision, Beside(test, truth))


def _in_jax_precision(array: Any) -> Any:
    """NumPy's arrays as JAX takes them: of 64 bits it would warn."""
    if isinstance(array, jax.Array):
        return array
    array = np.asarray(array)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _kind(run: Run, group: _Together, beside: Beside) -> Kind:
    return Kind(
        group.numbers.layout,
        _packed(run.protocol if "protocol" in group.needs else None).layout,
        None if group.padded else (run.samples, run.d, run.width),
        samples_seen(group.some, run.samples) if group.padded else None,
        _NOTHING if beside.is_nothing() else Layout.of(jax.tree.map(np.asarray, beside)),
        beside.is_nothing() or run.data.same_for_all_seeds,
    )


@by_identity
def _numbers_words(group: _Together, protocol: Any) -> np.ndarray:
    """Those of the measurements, and of the protocol where they ask for it."""
    asked = _packed(protocol if "protocol" in group.needs else None)
    return np.concatenate([group.numbers.words, asked.words])
