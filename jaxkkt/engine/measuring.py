"""Measuring trained networks, several at a time."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkkt.compiling import quick_options
from jaxkkt.datasets import Dataset
from jaxkkt.engine.batches import at, over
from jaxkkt.engine.buckets import lane_bytes
from jaxkkt.engine.devices import Here, device, here, out_of_memory
from jaxkkt.engine.draws import asked_for, pad_data
from jaxkkt.engine.once import once
from jaxkkt.engine.packing import Layout, numbers, rows_of, sent_once
from jaxkkt.engine.rows import refuse_twice
from jaxkkt.engine.trained import Alone, Trained, network_like, points_like
from jaxkkt.measurements import Measurement, measured, require_axes
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import Same, by_identity

Values = dict[str, Any]


class Beside(NamedTuple):
    """What measurements may ask for beside a network: arrays that the host draws, or None."""

    test: Dataset | None = None
    truth: Any = None

    def is_nothing(self) -> bool:
        return self.test is None and self.truth is None


_NOTHING = Layout.of(Beside())


class Kind(NamedTuple):
    """What runs have in common that one program measures: the structure of what it measures and is
    given, and the run's own size (samples, d, width) where the measurements do not take padding."""

    measurements: Layout
    protocol: Layout
    own: tuple[int, int, int] | None
    beside: Layout
    # Whether all runs are given the same arrays.
    shared: bool


@dataclass
class Job:
    """Some measurements of some runs that one program measures. Runs are known by their place;
    those of the same specs follow each other, and have the same words."""

    kind: Kind
    which: tuple[int, ...]  # of the runs' measurements
    runs: list[int] = field(default_factory=list)
    words: list[tuple[int, np.ndarray]] = field(default_factory=list)
    given: list[Beside] = field(default_factory=list)

    def add(self, runs: Sequence[int], words: np.ndarray, beside: Beside) -> int:
        """At which of its rows these begin."""
        first = len(self.runs)
        self.runs.extend(runs)
        self.words.append((len(runs), words))
        self.given.extend([beside] * len(runs))
        return first

    @property
    def beside(self) -> Beside:
        return self.given[0] if self.kind.shared else jax.tree.map(_stack, *self.given)


class _Same(NamedTuple):
    """Runs of the same specs, by place; their measurements; the jobs that compute some of those,
    each with the first of the runs' rows there."""

    runs: list[int]
    asked: tuple[Measurement, ...]
    jobs: list[tuple[Job, int]]


class Columns(NamedTuple):
    """What was measured of some runs, by place: their values by name, stacked, and which of their
    measurements returned them."""

    runs: list[int]
    values: dict[str, np.ndarray]
    owners: dict[str, int]


class Measured(NamedTuple):
    """What was measured of several runs; of some what raised instead, by place."""

    columns: list[Columns]
    raised: dict[int, Exception]

    def of_each(self) -> list[tuple[Values, dict[str, int]] | Exception]:
        """A run's values, as numbers and lists of them, and which of its measurements returned
        them."""
        found: dict[int, tuple[Values, dict[str, int]] | Exception] = dict(self.raised)
        for runs, values, owners in self.columns:
            found |= {i: (v, owners) for i, v in zip(runs, rows_of(values, len(runs)), strict=True)}
        return [found[i] for i in range(len(found))]


def measure_batch(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    trained: Trained,
    side_by_side: bool,
    curves: Sequence[Params | None],
) -> Callable[[], Measured]:
    """Begins to measure some networks. What this gives waits for it.

    The first of `trained` are the runs' networks, at a padded size. Those measurements that are
    `padded` see that size, the others the run's own; those that run `on_host` run one by one, when
    waited for.
    """
    raised: dict[int, Exception] = {}
    sames, jobs = _jobs(runs, asked, trained.data.x.shape[-1], raised)
    begun: dict[int, tuple[Array, Layout]] = {}
    for job in jobs:
        with _ending(job.runs, raised):
            begun[id(job)] = _begin(job, trained, side_by_side)
    for same in sames:
        with _ending(same.runs, raised):
            for job in (job for job, _ in same.jobs if id(job) in begun):
                for j, returned in zip(job.which, _shapes_in(begun[id(job)][1]), strict=True):
                    require_axes(same.asked[j], returned)
    return partial(_measured, runs, trained, curves, sames, jobs, begun, raised)


@contextmanager
def _ending(runs: Sequence[int], raised: dict[int, Exception]) -> Iterator[None]:
    """What raises within ends those of these runs that nothing has ended."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        for i in runs:
            raised.setdefault(i, error)


def _measured(
    runs: Sequence[Run],
    trained: Trained,
    curves: Sequence[Params | None],
    sames: Sequence[_Same],
    jobs: Sequence[Job],
    begun: Mapping[int, tuple[Array, Layout]],
    raised: dict[int, Exception],
) -> Measured:
    found: dict[int, list[dict[str, np.ndarray]]] = {}
    for job in jobs:
        if id(job) in begun:
            with _ending(job.runs, raised):
                computed, layout = begun[id(job)]
                found[id(job)] = layout.unpacked(np.asarray(computed)[: len(job.runs)])
    columns = []
    for mine, asked, rows in _alike(sames, raised):
        with _ending(mine, raised):
            returned: dict[int, dict[str, np.ndarray]] = {}
            for job, places in rows:
                at = np.array(places)
                for j, of_all in zip(job.which, found[id(job)], strict=True):
                    returned[j] = {name: column[at] for name, column in of_all.items()}
            for j, one in enumerate(asked):
                if one.on_host:
                    (i,) = mine
                    returned[j] = _on_host(one, runs[i], trained.at(i, runs[i]), curves[i])
            columns.append(_columns(mine, asked, returned))
    return Measured(columns, raised)


class _Alike(NamedTuple):
    """Runs, by place, whose values come from the same jobs; the measurements of one of them; their
    rows in every job."""

    runs: list[int]
    asked: tuple[Measurement, ...]
    rows: list[tuple[Job, list[int]]]


def _alike(sames: Sequence[_Same], raised: Collection[int]) -> list[_Alike]:
    """Those that have not raised; one by one where the host measures some of them."""
    found: dict[Any, _Alike] = {}
    for same in sames:
        left = [r for r, i in enumerate(same.runs) if i not in raised]
        alone = any(one.on_host for one in same.asked)
        for some in ([r] for r in left) if alone else (left,):
            mine = [same.runs[r] for r in some]
            key = (*(id(job) for job, _ in same.jobs), *(mine if alone else ()))
            nothing = _Alike([], same.asked, [(job, []) for job, _ in same.jobs])
            together = found.setdefault(key, nothing)
            together.runs.extend(mine)
            for (_, places), (_, first) in zip(together.rows, same.jobs, strict=True):
                places.extend(first + r for r in some)
    return [some for some in found.values() if some.runs]


def _columns(
    runs: list[int], asked: Sequence[Measurement], returned: Mapping[int, dict[str, np.ndarray]]
) -> Columns:
    """ValueError where two measurements return the same name."""
    found = Columns(runs, {}, {})
    for j, one in enumerate(asked):
        refuse_twice(one, returned[j].keys() & found.values.keys())
        found.values.update(returned[j])
        found.owners.update(dict.fromkeys(returned[j], j))
    return found


def _on_host(
    one: Measurement, run: Run, trained: Alone, curve: Params | None
) -> dict[str, np.ndarray]:
    """As columns of one row."""
    given: dict[str, Callable[[], Any]] = {
        "params": lambda: trained.params,
        "start": lambda: trained.start,
        "data": lambda: trained.data,
        "test": lambda: asked_for("test", run, [one]),
        "truth": lambda: asked_for("truth", run, [one]),
        "protocol": lambda: numbers(run.protocol),
        "curve": lambda: curve,
    }
    found = jax.device_get(measured(one, *(given[name]() for name in one.needs())))
    require_axes(one, found)
    return {name: np.asarray(value)[None] for name, value in found.items()}


def _jobs(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    dim: int,
    raised: dict[int, Exception],
) -> tuple[list[_Same], list[Job]]:
    """The compiled measurements of the runs, by program."""
    of_specs: dict[tuple[int, Same], list[int]] = {}
    before: tuple[Any, Any] = None, None
    for i, (run, some) in enumerate(zip(runs, asked, strict=True)):
        if run.apart_from_seed is not before[0] or some is not before[1]:
            before = run.apart_from_seed, some
            same = of_specs.setdefault((id(some), run.apart_from_seed), [])
        same.append(i)
    sames, jobs = [], dict[Any, Job]()
    for same in of_specs.values():
        for mine in ([i] for i in same) if _draws(asked[same[0]]) else (same,):
            run, some = runs[mine[0]], asked[mine[0]]
            with _ending(mine, raised):
                in_jobs = []
                for group, kind, beside, of in _kinds(run, some, dim):
                    key = group.places, kind, of
                    job = jobs.setdefault(key, Job(kind, group.places))
                    words = _numbers_words(group, run.protocol)
                    in_jobs.append((job, job.add(mine, words, beside)))
                sames.append(_Same(mine, some, in_jobs))
    return sames, list(jobs.values())


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
    return _Packed(layout, layout.packed(found))


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
    """The programs that measure a run. Those for which the host draws nothing are one and the same
    object for runs of the same specs."""
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
    return Beside(test, asked_for("truth", run, group.some) if "truth" in group.needs else None)


def _kind(run: Run, group: _Together, beside: Beside) -> Kind:
    return Kind(
        group.numbers.layout,
        _packed(run.protocol if "protocol" in group.needs else None).layout,
        None if group.padded else (run.samples, run.d, run.width),
        _NOTHING if beside.is_nothing() else Layout.of(jax.tree.map(np.asarray, beside)),
        beside.is_nothing() or run.data.same_for_all_seeds,
    )


@by_identity
def _numbers_words(group: _Together, protocol: Any) -> np.ndarray:
    """Those of the measurements, and of the protocol where they ask for it."""
    asked = _packed(protocol if "protocol" in group.needs else None)
    return np.concatenate([group.numbers.words, asked.words])


def _begin(job: Job, trained: Trained, side_by_side: bool) -> tuple[Array, Layout]:
    """What is computed of its runs, a row of words each, and how to read it."""
    kind, count, many = job.kind, len(trained.params.v), len(job.runs)
    program, layout = measure_program(kind, Layout.of(trained), count, side_by_side, here())
    rows = np.full((count, 1 + kind.measurements.words + kind.protocol.words), -1, np.int32)
    rows[:many, 0] = job.runs
    first = 0
    for length, words in job.words:
        rows[first : first + length, 1:] = words
        first += length
    beside = job.beside
    if not kind.shared:
        beside = jax.tree.map(
            lambda a: np.pad(a, [(0, count - many)] + [(0, 0)] * (a.ndim - 1)), beside
        )
    return program(sent_once(rows, device()), trained, beside), layout


def compile_measurements(
    run: Run,
    measurements: tuple[Measurement, ...],
    shape: tuple[int, int, int],
    count: int,
    side_by_side: bool,
    starts: bool,
) -> None:
    """Compiles ahead what measuring so many of such runs at a time will take."""
    m, d, k = shape
    network = network_like(k, d)
    like = Trained(network, network if starts else None, points_like(m, d))
    stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape), a.dtype), like)
    _, jobs = _jobs([run], [measurements], d, {})
    for job in jobs:
        measure_program(job.kind, Layout.of(stacked), count, side_by_side, here())


@once
def measure_program(
    kind: Kind, trained: Layout, count: int, side_by_side: bool, here: Here
) -> tuple[Callable[..., Array], Layout]:
    """The compiled program that measures so many networks, and how to read what it returns.

    Side by side as many as the device's memory holds: all, or half of them at a time, and so on.
    """

    @partial(jax.jit, inline=True)  # traced once
    def one(words: Int[Array, " w"], given: Trained, beside: Beside) -> list[Values]:
        numbers_of_it = kind.measurements.words
        some = kind.measurements.unpack(words[:numbers_of_it])
        protocol = kind.protocol.unpack(words[numbers_of_it:])
        if kind.own is not None:
            given = _cut(given, kind.own)
        everything = {**given._asdict(), **beside._asdict(), "protocol": protocol}
        return [measured(m, *(everything[name] for name in m.needs())) for m in some]

    def measure_all(
        rows: Int[Array, "n w"], trained: Trained, beside: Beside, at_once: bool | int
    ) -> Array:
        places, words, shared = rows[:, 0], rows[:, 1:], kind.shared

        def packed(place: Array, words: Int[Array, " w"], *given: Beside) -> Array:
            mine = jax.tree.map(partial(at, jnp.maximum(place, 0)), trained)
            return layout.pack(one(words, mine, beside if shared else given[0]))

        arguments = (places, words) if shared else (places, words, beside)
        return over(packed, arguments, places >= 0, at_once)

    length = kind.measurements.words + kind.protocol.words
    rows = jax.ShapeDtypeStruct((count, 1 + length), np.int32)
    networks, beside = _shapes_in(trained), _shapes_in(kind.beside)
    first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), networks)
    row = jax.ShapeDtypeStruct((length,), np.int32)
    layout = Layout.of(jax.eval_shape(one, row, first, beside))
    if not kind.shared:
        beside = jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape), a.dtype), beside)
    at_once: bool | int = side_by_side
    while True:
        traced = jax.jit(partial(measure_all, at_once=at_once))
        compiled: Any = traced.lower(rows, networks, beside).compile(
            compiler_options=quick_options(here.device.platform)
        )
        needed = compiled.memory_analysis().temp_size_in_bytes if at_once else 0
        many = count if at_once is True else at_once
        if needed <= lane_bytes(here.device) or many == 1:
            return compiled, layout
        at_once = -(-many // 2)


def _cut(given: Trained, own: tuple[int, int, int]) -> Trained:
    """Without the padding."""
    m, d, k = own

    def network(some: Params) -> Params:
        return Params(some.w[:k, :d], some.b[:k], some.v[:k])

    data = Dataset(given.data.x[:m, :d], given.data.y[:m])
    start = None if given.start is None else network(given.start)
    return Trained(network(given.params), start, data)


def _shapes_in(layout: Layout) -> Any:
    leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in layout.leaves]
    return jax.tree.unflatten(layout.tree, leaves)
