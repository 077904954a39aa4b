"""Runs that have ended, on their way to rows."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.engine.machine import packing
from jaxkkt.engine.machine.devices import out_of_memory
from jaxkkt.engine.planning.buckets import structure_of
from jaxkkt.engine.planning.trajectories import Trajectory
from jaxkkt.engine.programs.measuring import Columns, Measured
from jaxkkt.engine.programs.names import CURVE, NOTED, refuse_twice
from jaxkkt.engine.programs.returned import outcomes_of, shapes_of
from jaxkkt.engine.programs.trained import Alone, Trained
from jaxkkt.engine.running.rows import Row, all_raised, raised
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.specs.data import Arrays
from jaxkkt.specs.same import Keyed, by_value


@dataclass(slots=True)
class Occupant:
    """A run in its slot, those that go on from its end, and what was measured on its way. It came
    there as the `number`th. `steps_before` were trained before, up to its checkpoint or another's
    end."""

    trajectory: Trajectory
    number: int
    began: float
    steps_before: int = 0
    moments: tuple[dict[str, Any], ...] = ()
    networks: tuple[Params, ...] = ()

    @property
    def run(self) -> Run:
        return self.trajectory[0]

    def next(self, steps: int) -> "Occupant | None":
        """The one that goes on from its end, after so many steps."""
        if len(self.trajectory) == 1:
            return None
        return replace(self, trajectory=self.trajectory[1:], steps_before=steps)

    def note(
        self,
        trained: Alone,
        ending: Mapping[str, Any],
        found: Mapping[str, Any],
        owners: Mapping[str, int],
    ) -> None:
        """What the run told and what was measured at a moment of its curve; ValueError where a
        measurement, of those by name, returned what is there already."""
        params, (x, y) = trained.params, trained.data
        margins = y * _outputs(params, x)
        norm = sum(float((p.astype(float) ** 2).sum()) for p in params)
        told = {name: value for name, value in ending.items() if name != "status"}
        assert self.run.curve is not None
        for name, j in owners.items():
            refuse_twice(self.run.curve.measure[j], {name} & told.keys())
        noted = {"min_margin": margins.min(), "squared_norm": norm}
        self.moments += (told | noted | dict(found),)  # `jk.Flips` returns the margin, too
        self.networks += (params,)

    @property
    def curve(self) -> Params | None:
        """The networks on its way, stacked."""
        if not self.networks:
            return None
        return jax.tree.map(lambda *leaves: np.stack(leaves), *self.networks)

    def on_the_way(self) -> dict[str, Any]:
        """What was measured at the moments of its curve, NaN at those that it did not reach; of a
        run that reached none, nothing."""
        if self.run.curve is None:
            return {}
        missing, values = len(self.run.curve.moments) - len(self.moments), {}
        for name in dict.fromkeys(name for moment in self.moments for name in moment):
            reached = [np.asarray(moment[name], float) for moment in self.moments]
            nothing = [np.full(reached[0].shape, np.nan)] * missing
            values[CURVE + name] = np.stack(reached + nothing).tolist()
        return values


class Ended(NamedTuple):
    """Runs that have ended or paused: how each stands, by name, the hashes of their networks, and
    what was measured of them."""

    ending: dict[str, np.ndarray]
    hashes: list[str]
    found: Measured


class Begun(NamedTuple):
    """Runs that are being measured, their networks, the steps that each made here, and what waits
    for them."""

    ones: list[Occupant]
    trained: Trained
    steps: list[int]
    wait: Callable[[], Ended]


def rows_of_ended(begun: Begun, computed_with: str, keep: Collection[Run]) -> list[Row]:
    """Waits for them, and makes their rows, with the networks of those to `keep`; of those that
    raised last."""
    ended, runs = begun.wait(), [one.run for one in begun.ones]
    rows = list[Row]()
    for some in ended.found.columns:
        rows += _tried(some, begun, ended, computed_with, keep)
    errors = ended.found.raised
    by_error: dict[int, list[int]] = {}
    for i in errors:
        by_error.setdefault(id(errors[i]), []).append(i)
    for same in by_error.values():
        rows += all_raised([runs[i] for i in same], errors[same[0]])
    return rows


def _tried(
    some: Columns, begun: Begun, ended: Ended, computed_with: str, keep: Collection[Run]
) -> list[Row]:
    """The rows of what was measured together; where that raises one by one."""
    try:
        return _rows(some, begun, ended, computed_with, keep)
    except Exception as error:
        if out_of_memory(error):
            raise
        if len(some.runs) == 1:
            return [raised(begun.ones[some.runs[0]].run, error)]
    each = (_tried(one, begun, ended, computed_with, keep) for one in some.one_by_one())
    return list(chain.from_iterable(each))


def _rows(
    some: Columns, begun: Begun, ended: Ended, computed_with: str, keep: Collection[Run]
) -> list[Row]:
    ones, places, now = [begun.ones[i] for i in some.runs], np.array(some.runs), perf_counter()
    curved = any(one.run.curve is not None for one in ones)
    on_the_way = [_on_the_way(one, begun.trained) for one in ones] if curved else []
    there = ended.ending.keys() | {name for way in on_the_way for name in way}
    for name, j in some.owners.items():
        refuse_twice(ones[0].run.measure[j], {name} & there)
    columns = {name: column[places] for name, column in ended.ending.items()} | some.values
    values = packing.rows_of(columns, len(ones))
    if on_the_way:
        values = [way | mine for way, mine in zip(on_the_way, values, strict=True)]
    rows = []
    for i, one, mine in zip(some.runs, ones, values, strict=True):
        kept = begun.trained.at(i, one.run).params if one.run in keep else None
        seconds, network = now - one.began, ended.hashes[i]
        rows.append(Row(one.run, mine, some.owners, seconds, computed_with, network, kept))
    return rows


def _on_the_way(one: Occupant, trained: Trained) -> dict[str, Any]:
    """What was measured at the moments of its curve, or NaN by the same names."""
    run, curve = one.run, one.run.curve
    if one.moments or curve is None:
        return one.on_the_way()
    shape = (*trained.data.x.shape[1:], trained.params.v.shape[-1])
    kinds = map(structure_of, (curve.measure, run.protocol))
    # Own arrays are told by their hash: structures that hold arrays cannot be compared.
    data = run.data if isinstance(run.data, Arrays) else structure_of(run.data)
    key = len(curve.moments), data, *kinds, run.samples, run.d, run.width, shape
    return _unreached(Keyed(key, (run, shape)))


@by_value
def _unreached(kind: Keyed) -> dict[str, Any]:
    """NaN for what is noted of a run at the moments of its curve, and for what compiled
    measurements return there, traced at a shape at which they are compiled: what the host
    would return is not known."""
    run, shape = kind.thing
    shapes = dict.fromkeys(NOTED, ()) | outcomes_of(run)
    shapes |= shapes_of(run, run.curve.measure, shape)
    moments = len(run.curve.moments)
    return {CURVE + name: np.full((moments, *own), np.nan).tolist() for name, own in shapes.items()}


def _outputs(params: Params, x: Any) -> Any:
    return np.maximum(x @ params.w.T + params.b, 0) @ params.v
