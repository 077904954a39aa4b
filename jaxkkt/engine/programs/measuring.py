"""Measuring trained networks, several at a time."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkkt import datasets, networks
from jaxkkt.engine.machine import traces
from jaxkkt.engine.machine.batches import at, over
from jaxkkt.engine.machine.devices import Here, device, here
from jaxkkt.engine.machine.once import once
from jaxkkt.engine.machine.packing import Layout, numbers, rows_of, sent_once
from jaxkkt.engine.machine.traces import Program
from jaxkkt.engine.planning.costs import lane_bytes
from jaxkkt.engine.programs.draws import asked_for
from jaxkkt.engine.programs.jobs import Alike, Beside, Job, Kind, jobs_of, raising_for
from jaxkkt.engine.programs.names import refuse_twice, require_free_dimensions, require_own_names
from jaxkkt.engine.programs.trained import Alone, Trained, network_like, points_like, stacked_like
from jaxkkt.measurements import Measurement, measured, require_axes
from jaxkkt.networks import Params
from jaxkkt.numerics.compiling import quick_options
from jaxkkt.runs.run import Run

Values = dict[str, Any]


class Columns(NamedTuple):
    """What was measured of some runs, by place: their values by name, stacked, and which of their
    measurements returned them."""

    runs: list[int]
    values: dict[str, np.ndarray]
    owners: dict[str, int]

    def one_by_one(self) -> "Iterator[Columns]":
        for r, i in enumerate(self.runs):
            values = {name: column[r : r + 1] for name, column in self.values.items()}
            yield Columns([i], values, self.owners)


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
    alike, jobs = jobs_of(runs, asked, trained.data.x.shape[-1], raised)
    begun: dict[Job, tuple[Array, Layout]] = {}
    for job in jobs:
        with raising_for(job.runs, raised):
            begun[job] = _begin(job, trained, side_by_side)
    shapes = {job: layout.shapes for job, (_, layout) in begun.items()}
    for some in alike:
        with raising_for(some.runs, raised):
            for job in (job for job, _ in some.jobs if job in begun):
                for j, returned in zip(job.which, shapes[job], strict=True):
                    require_axes(some.asked[j], returned)

    def wait() -> Measured:
        found: dict[Job, list[dict[str, np.ndarray]]] = {}
        for job, (computed, layout) in begun.items():
            with raising_for(job.runs, raised):
                found[job] = layout.unpack_on_host(np.asarray(computed)[: len(job.runs)])
        columns = []
        for part in _parts(alike, raised):
            with raising_for(part.runs, raised):
                returned = part.returned(found)
                for j, one in enumerate(part.asked):
                    if one.on_host:
                        (i,) = part.runs
                        returned[j] = _on_host(one, runs[i], trained.at(i, runs[i]), curves[i])
                columns.append(_columns(part, returned))
        return Measured(columns, raised)

    return wait


class _Part(NamedTuple):
    """Runs, by place, whose values come from the same jobs; the measurements of one of them; their
    rows in every job."""

    runs: list[int]
    asked: tuple[Measurement, ...]
    rows: list[tuple[Job, list[int]]]

    def returned(
        self, found: Mapping[Job, list[dict[str, np.ndarray]]]
    ) -> dict[int, dict[str, np.ndarray]]:
        """What the compiled measurements returned, by their places, for these runs."""
        columns: dict[int, dict[str, np.ndarray]] = {}
        for job, rows in self.rows:
            places = np.array(rows)
            for j, of_all in zip(job.which, found[job], strict=True):
                columns[j] = {name: column[places] for name, column in of_all.items()}
        return columns


def _parts(alike: Sequence[Alike], raised: Collection[int]) -> list[_Part]:
    """The runs that have not raised; one by one where the host measures some of them."""
    found: dict[Any, _Part] = {}
    for some in alike:
        left = [r for r, i in enumerate(some.runs) if i not in raised]
        one_by_one = any(one.on_host for one in some.asked)
        for rows in ([r] for r in left) if one_by_one else (left,):
            runs = [some.runs[r] for r in rows]
            key = (*(job for job, _ in some.jobs), *(runs if one_by_one else ()))
            nothing = _Part([], some.asked, [(job, []) for job, _ in some.jobs])
            part = found.setdefault(key, nothing)
            part.runs.extend(runs)
            for (_, places), (_, first) in zip(part.rows, some.jobs, strict=True):
                places.extend(first + r for r in rows)
    return [part for part in found.values() if part.runs]


def _columns(part: _Part, returned: Mapping[int, dict[str, np.ndarray]]) -> Columns:
    """ValueError where two measurements return the same name, or one that a dimension has."""
    found = Columns(part.runs, {}, {})
    for j, one in enumerate(part.asked):
        refuse_twice(one, returned[j].keys() & found.values.keys())
        found.values.update(returned[j])
        found.owners.update(dict.fromkeys(returned[j], j))
    if any(one.on_host for one in part.asked):  # whose names no plan knows
        named = {name for one in part.asked for name in one.axes()}
        ranks = {name: column.ndim - 1 for name, column in found.values.items()}
        require_free_dimensions(ranks, named, found.values)
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
        "curve": lambda: jax.tree.map(np.copy, curve),
    }
    found = measured(one, *(given[name]() for name in one.needs()))
    require_axes(one, found)
    require_own_names(one, found, run)
    # Copies: the next run's may come in the same memory.
    return {name: np.array(value)[None] for name, value in found.items()}


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
    _, jobs = jobs_of([run], [measurements], d, {})
    for job in jobs:
        measure_program(job.kind, Layout.of(stacked_like(like, count)), count, side_by_side, here())


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
        if kind.seen is not None:
            x = given.data.x
            seen = min(kind.seen, x.shape[0])
            given = given._replace(data=datasets.unpad(given.data, seen, x.shape[-1]))
        everything = {**given._asdict(), **beside._asdict(), "protocol": protocol}
        return [measured(m, *(everything[name] for name in m.needs())) for m in some]

    def measure_all(
        rows: Int[Array, "n w"],
        trained: Trained,
        beside: Beside,
        layout: Layout,
        at_once: int,
    ) -> Array:
        places, words, shared = rows[:, 0], rows[:, 1:], kind.shared

        def packed(place: Array, words: Int[Array, " w"], *given: Beside) -> Array:
            mine = jax.tree.map(partial(at, jnp.maximum(place, 0)), trained)
            return layout.pack(one(words, mine, beside if shared else given[0]))

        arguments = (places, words) if shared else (places, words, beside)
        return over(packed, arguments, places >= 0, at_once)

    length = kind.measurements.words + kind.protocol.words
    rows = jax.ShapeDtypeStruct((count, 1 + length), np.int32)
    given, beside = trained.shapes, kind.beside.shapes
    each = beside if kind.shared else stacked_like(beside, count)

    def make(at_once: int) -> tuple[Layout, dict[str, Program]]:
        first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), given)
        row = jax.ShapeDtypeStruct((length,), np.int32)
        layout = Layout.of(jax.eval_shape(one, row, first, beside))
        measure = partial(measure_all, layout=layout, at_once=at_once)
        return layout, {"measure": Program(measure, (rows, given, each))}

    at_once = count if side_by_side else 0
    quick = quick_options(here.device.platform)
    while True:
        asked = "measure", kind, trained, count, at_once
        layout, programs = traces.compiled(asked, partial(make, at_once), lambda _: quick)
        compiled = programs["measure"]
        needed = compiled.memory_analysis().temp_size_in_bytes if at_once else 0
        if needed <= lane_bytes(here.device) or at_once == 1:
            return compiled, layout
        at_once = -(-at_once // 2)


def _cut(given: Trained, own: tuple[int, int, int]) -> Trained:
    """Without the padding."""
    m, d, k = own
    start = None if given.start is None else networks.unpad(given.start, k, d)
    return Trained(networks.unpad(given.params, k, d), start, datasets.unpad(given.data, m, d))
