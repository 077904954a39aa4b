"""What measurements return, by name, known before anything runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np

from jaxkkt import training
from jaxkkt.engine.machine.devices import Here, here
from jaxkkt.engine.machine.once import once
from jaxkkt.engine.machine.packing import Layout, numbers
from jaxkkt.engine.machine.traces import kept
from jaxkkt.engine.planning.buckets import Bucket, structure_of
from jaxkkt.engine.programs.draws import asked_for
from jaxkkt.engine.programs.names import (
    CURVE,
    ENDING,
    ENGINES_OWN,
    NOTED,
    Names,
    Shape,
    refuse,
    require_own_names,
    taken_by,
)
from jaxkkt.engine.programs.trained import network_like, points_like
from jaxkkt.measurements import Measurement, measured, require_axes
from jaxkkt.numerics.tracing import require_traceable
from jaxkkt.protocols import Protocol
from jaxkkt.runs.run import Run

Sizes = tuple[int, int, int]  # samples, d, width


def names_in(buckets: Sequence[Bucket]) -> Names:
    """The names of what compiled measurements of these runs return, traced once for each kind of
    runs, and at a few more sizes for measurements that see the run's own.

    Raises ValueError as `names_of` does. What raises at one of the other sizes is left to its runs.
    """
    found = Names({}, set(), set())
    kinds: dict[Any, tuple[Run, Sizes]] = {}
    at_sizes: dict[Any, dict[Sizes, Run]] = {}
    for b in reversed(buckets):
        for run in b.one_of_each:
            kind = tuple(structure_of(some) for _, some in _measured(run))
            # The first bucket that has them counts: its programs need first what is traced here.
            kinds[kind] = run, b.measured_at
            at_sizes.setdefault(kind, {})[run.samples, run.d, run.width] = run
    trained = {
        (structure_of(run.protocol), run.curve is None): run
        for b in buckets
        for run in b.one_of_each
    }
    outcomes: dict[str, dict[str, Shape]] = {"": {}, CURVE: {}}  # by what comes before their names
    for run in trained.values():
        for prefix in ("",) if run.curve is None else outcomes:
            outcomes[prefix] |= outcomes_of(run)
    for prefix, told in outcomes.items():
        found.add(told, (), prefix)
    for kind, (run, shape) in kinds.items():
        for prefix, some in _measured(run):
            returned = names_of(run, some, shape)
            if twice := outcomes[prefix].keys() & returned.keys():
                raise ValueError(
                    f"a measurement and the `outcomes` of how runs train both return "
                    f"{min(twice)!r}: call one of them something else"
                )
            found.add(returned, some, prefix)
        for other in _other_sizes(run, at_sizes[kind]):
            for prefix, some in _measured(other):
                at_own_size = [one for one in some if not one.padded]
                found.add(shapes_of(other, at_own_size, shape), (), prefix)
    return found


def names_of(run: Run, measurements: Sequence[Measurement], shape: Sizes) -> dict[str, Shape]:
    """The names that the measurements return, with shapes, without running them. Those that take
    padding are traced at the `shape` that they are compiled for.

    Raises ValueError where two return the same name, or one that the engine gives itself, and where
    the dimensions that they name do not fit.
    """
    owners: dict[str, Measurement] = {}
    found: dict[str, Shape] = {}
    for one in measurements:
        if one.on_host:
            continue
        instead = ", or make it a jk.Measurement with `on_host = True`, which is not compiled"
        with require_traceable(f"the measurement {one.label!r}", instead):
            try:
                returned = _traced(run, one, shape)
            except Exception as error:
                error.add_note(f"raised by the measurement {one.label!r}, as JAX traces it")
                raise
        require_axes(one, returned)
        require_own_names(one, returned, run)
        for name in returned:
            if name in ENDING or name.startswith(CURVE):
                refuse(one, name, ENGINES_OWN)
            if name in owners:
                raise ValueError(
                    f"the measurements {owners[name].label!r} and {one.label!r} both return "
                    f"{name!r}: call one of them something else"
                )
            owners[name] = one
        found |= {name: value.shape for name, value in returned.items()}
    return found


def outcomes_of(run: Run) -> dict[str, Shape]:
    """What an own kind of training tells of its ends, as shapes by name; ValueError where a table
    has something else by one of these names."""
    kind = run.protocol
    if isinstance(kind, Protocol):
        return {}

    def told(params: Any, data: Any) -> dict[str, Any]:
        state, _ = training.load(kind, params, data, run.shuffle_key(), "plain")
        return training.outcomes(kind, state.own)

    with require_traceable(f"training by {type(kind).__name__}"):
        found = jax.eval_shape(
            told, network_like(run.width, run.d), points_like(run.samples, run.d)
        )
    engines = ENDING if run.curve is None else (*ENDING, *NOTED)
    taken = taken_by(run.apart_from_seed) | dict.fromkeys(engines, ENGINES_OWN)
    for name in found:
        if name in taken or name.startswith(CURVE):
            raise ValueError(
                f"`outcomes` of {type(kind).__name__} returns {name!r}, which is "
                f"{taken.get(name, ENGINES_OWN)}: call it something else"
            )
    return {name: value.shape for name, value in found.items()}


def shapes_of(run: Run, measurements: Sequence[Measurement], shape: Sizes) -> dict[str, Shape]:
    """As `names_of`, but unchecked, and without what cannot be traced."""
    found: dict[str, Shape] = {}
    for one in measurements:
        if not one.on_host:
            with suppress(Exception):
                returned = _traced(run, one, shape)
                found |= {name: value.shape for name, value in returned.items()}
    return found


def _measured(run: Run) -> Iterator[tuple[str, tuple[Measurement, ...]]]:
    """What is measured of a run together, and what comes before the names of that."""
    yield "", run.measure
    if run.curve is not None:
        yield CURVE, run.curve.measure


def _other_sizes(run: Run, runs: Mapping[Sizes, Run]) -> list[Run]:
    """Runs of the smallest and the largest size, and of each choice of sizes that are 1, beside
    that of a run: what sees its own size may return arrays of other dimensions there."""
    some = [one for _, measured in _measured(run) for one in measured]
    if len(runs) == 1 or all(one.padded or one.on_host for one in some):
        return []
    sizes = sorted(runs, key=prod)
    chosen = {tuple(n == 1 for n in size): size for size in sizes}
    return [
        runs[size]
        for size in dict.fromkeys((sizes[0], sizes[-1], *chosen.values()))
        if size != (run.samples, run.d, run.width)
    ]


def _traced(run: Run, one: Measurement, shape: Sizes) -> dict[str, Any]:
    """What a compiled measurement returns, as shapes and types."""
    return _returned(Layout.of(numbers(one)), Layout.of(_example(run, one, shape)), here())


@once
def _returned(one: Layout, given: Layout, here: Here) -> dict[str, Any]:
    """The same, of a measurement of this layout, where and how this thread computes. Kept: every
    plan asks for it."""
    asked = "returned", one, given
    return kept(asked, partial(jax.eval_shape, measured, one.shapes, *given.shapes))


def _example(run: Run, one: Measurement, shape: Sizes) -> list[Any]:
    m, d, k = shape if one.padded else (run.samples, run.d, run.width)
    params = network_like(k, d)
    asked = {"params": params, "start": params, "data": points_like(m, d)}
    asked["protocol"] = numbers(run.protocol)
    test = asked_for("test", run, [one])
    asked["test"] = None if test is None else points_like(test.y.size, d)
    asked["truth"] = _like(asked_for("truth", run, [one]))
    return [asked[name] for name in one.needs()]


def _like(arrays: Any) -> Any:
    """Shapes and types of a truth; ValueError where it holds keys, which are no numbers."""
    if any(jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key) for a in jax.tree.leaves(arrays)):
        raise ValueError("draw_truth returned keys: return jax.random.key_data of them")
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)
