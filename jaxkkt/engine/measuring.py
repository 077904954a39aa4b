"""Measuring trained networks, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from jaxkkt.engine.trained import Alone, Trained, network_like, points_like
from jaxkkt.measurements import Measurement, measured, require_axes
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import by_identity

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


class Job(NamedTuple):
    """Some measurements of some runs that one program measures, by place, and the inputs."""

    kind: Kind
    runs: list[int]
    groups: list["_Together"]
    beside: Beside


def measure_batch(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    trained: Trained,
    side_by_side: bool,
    curves: Sequence[Params | None],
) -> Callable[[], list[list[Values] | Exception]]:
    """Begins to measure some networks. What this gives waits for it: what each run's measurements
    return for its network, by name, as numbers and lists of them; or what raised instead.

    The first of `trained` are the runs' networks, at a padded size. Those measurements that are
    `padded` see that size, the others the run's own; those that run `on_host` run one by one, when
    waited for.
    """
    raised: dict[int, Exception] = {}
    begun = []
    for job in _jobs(runs, asked, trained.data.x.shape[-1], raised):
        with _told_to(job, raised):
            begun.append((job, _begin(job, runs, trained, side_by_side)))
    return partial(_measured, runs, asked, trained, curves, begun, raised)


@contextmanager
def _told_to(job: Job, raised: dict[int, Exception]) -> Iterator[None]:
    """What raises within ends the job's runs."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        raised |= dict.fromkeys(job.runs, error)


def _measured(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    trained: Trained,
    curves: Sequence[Params | None],
    begun: Sequence[tuple[Job, Callable[[], list[list[Values]]]]],
    raised: dict[int, Exception],
) -> list[list[Values] | Exception]:
    found: list[dict[int, Values]] = [{} for _ in runs]
    for job, values in begun:
        with _told_to(job, raised):
            for i, some in zip(job.runs, values(), strict=True):
                found[i] |= dict(zip(job.groups[0].places, some, strict=True))
    for i, run in enumerate(runs):
        places = [j for j, one in enumerate(asked[i]) if one.on_host]
        if places and i not in raised:
            try:
                alone = trained.at(i, run)
                found[i] |= {j: _on_host(asked[i][j], run, alone, curves[i]) for j in places}
            except Exception as error:
                if out_of_memory(error):
                    raise
                raised[i] = error
    for i, of_run in enumerate(found):
        try:
            for j, returned in of_run.items():
                require_axes(asked[i][j], returned)
        except ValueError as error:
            raised.setdefault(i, error)
    return [
        raised[i] if i in raised else [some[j] for j in range(len(asked[i]))]
        for i, some in enumerate(found)
    ]


def _on_host(one: Measurement, run: Run, trained: Alone, curve: Params | None) -> Values:
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
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def _jobs(
    runs: Sequence[Run],
    asked: Sequence[tuple[Measurement, ...]],
    dim: int,
    raised: dict[int, Exception],
) -> list[Job]:
    """The compiled measurements of the runs, by program."""
    alike: dict[int, tuple[Any, list[int]]] = {}
    for i, (run, some) in enumerate(zip(runs, asked, strict=True)):
        try:
            kinds = _kinds(run, some, dim)
        except Exception as error:
            raised[i] = error
        else:
            alike.setdefault(id(kinds), (kinds, []))[1].append(i)
    jobs: dict[Any, tuple[Kind, list[int], list[_Together], list[Beside]]] = {}
    for kinds, some_runs in alike.values():
        for group, kind, beside, of in kinds:
            key = group.places, kind, of
            _, mine, groups, given = jobs.setdefault(key, (kind, [], [], []))
            mine += some_runs
            groups += [group] * len(some_runs)
            given += [beside] * len(some_runs)
    return [
        Job(kind, mine, groups, given[0] if kind.shared else jax.tree.map(_stack, *given))
        for kind, mine, groups, given in jobs.values()
    ]


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
def _kinds_alike(some: tuple[Measurement, ...], specs: tuple[Any, ...]) -> _Kinds:
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


def _begin(
    job: Job, runs: Sequence[Run], trained: Trained, side_by_side: bool
) -> Callable[[], list[list[Values]]]:
    kind, count = job.kind, len(trained.params.v)
    program, layout = measure_program(kind, Layout.of(trained), count, side_by_side, here())
    rows = np.full((count, 1 + kind.measurements.words + kind.protocol.words), -1, np.int32)
    rows[: len(job.runs), 0] = job.runs
    rows[: len(job.runs), 1:] = [
        _numbers_words(group, runs[i].protocol)
        for i, group in zip(job.runs, job.groups, strict=True)
    ]
    beside = job.beside
    if not kind.shared:
        short = count - len(job.runs)
        beside = jax.tree.map(lambda a: np.pad(a, [(0, short)] + [(0, 0)] * (a.ndim - 1)), beside)
    computed = program(sent_once(rows, device()), trained, beside)

    def values() -> list[list[Values]]:
        words, many = np.asarray(computed), len(job.runs)
        of_each = [rows_of(columns, many) for columns in layout.unpacked(words[:many])]
        return list(map(list, zip(*of_each, strict=True)))

    return values


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
    for job in _jobs([run], [measurements], d, {}):
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
