"""Running a bucket: lanes of a compiled batch take runs from a queue until it is empty."""

import traceback
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.checkpoints import (
    SECONDS_BETWEEN_CHECKPOINTS,
    Checkpoints,
    UnderWay,
    numbers_in,
)
from jaxkkt.engine.draws import draw, pad_data, pad_params
from jaxkkt.engine.measuring import CURVE, measure
from jaxkkt.engine.programs import Lane, Programs, numbers_of, restore
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.store.arrays import digest_of
from jaxkkt.training import Status

# A chunk of steps lasts about this long: progress is seen, and a stop heard, between chunks.
CHUNK_SECONDS = 0.5
FIRST_CHUNK = 20
# Of a sweep that is stopped the runs are saved that have trained for so long.
SECONDS_WORTH_SAVING = 5.0


class Row(NamedTuple):
    """A finished run: what was measured and how it ended, as Python numbers and lists of them.

    `owners` says which of the run's measurements returned a value, by its place among them.
    `seconds` went by from its first step to its last measurement. `computed_as` says at which shape
    and in how many lanes, on which its rounding depends; `network` is a hash of the parameters.
    `kept` is the trained network, at the run's own size, where it was asked for. Of a run that
    `raised` the values are its status and the traceback.
    """

    run: Run
    values: dict[str, Any]
    owners: Mapping[str, int] = {}
    seconds: float = 0.0
    computed_as: str = ""
    network: str = ""
    kept: Params | None = None
    raised: Exception | None = None

    def with_values(
        self, measured: Sequence[Mapping[str, Any]], places: Sequence[int] | None = None
    ) -> "Row":
        """With what each of the run's measurements returned, or those at these places among them.

        Raises ValueError where two return the same name.
        """
        values, owners = dict(self.values), dict(self.owners)
        for i, some in zip(places or range(len(measured)), measured, strict=True):
            for name in some.keys() & values.keys():
                raise ValueError(
                    f"the measurement {self.run.measure[i].label!r} returns {name!r}, which is "
                    "there already: call it something else"
                )
            values |= plain(some)
            owners |= dict.fromkeys(some, i)
        return self._replace(values=values, owners=owners)


@dataclass
class Tally:
    """What a stream has done so far, and is doing, for progress bars and reports."""

    lane_steps: int = 0
    useful_steps: int = 0
    run_seconds: float = 0.0
    # What it is doing; `work` is the expected work done on the runs not yet ended.
    work: float = 0.0
    busy_lanes: int = 0
    lanes: int = 0
    steps_per_second: float = 0.0
    log_losses: tuple[float, ...] = ()

    def useful_share(self) -> float:
        """Share of lane-steps that advanced a run; the rest went over finished or empty lanes."""
        return self.useful_steps / self.lane_steps if self.lane_steps else 1.0

    def rest(self) -> None:
        """Nothing is running."""
        self.work, self.busy_lanes, self.lanes = 0.0, 0, 0
        self.steps_per_second, self.log_losses = 0.0, ()


def together(tallies: Iterable[Tally]) -> Tally:
    """What several streams have done and are doing."""
    total = Tally()
    for tally in tallies:
        total.lane_steps += tally.lane_steps
        total.useful_steps += tally.useful_steps
        total.run_seconds += tally.run_seconds
        total.work += tally.work
        total.busy_lanes += tally.busy_lanes
        total.lanes += tally.lanes
        total.steps_per_second += tally.steps_per_second
        total.log_losses += tally.log_losses
    return total


class OutOfMemory(Exception):
    """The device's memory does not hold the lanes; `runs` were in them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(f"no memory for {len(runs)} runs at a time")
        self.runs = runs


@dataclass
class _Occupant:
    """A run in its lane: what it started from, and what was measured on its way."""

    run: Run
    start: Params
    data: Dataset
    padded: tuple[Params, Dataset]
    measured_at: tuple[int, int, int]
    began: float
    moments: list[dict[str, Any]] = field(default_factory=list)
    networks: list[Params] = field(default_factory=list)


def run_bucket(
    bucket: Bucket,
    queue: deque[Run],
    programs: Programs,
    tally: Tally,
    stop: Event | None = None,
    keep: Collection[Run] = (),
    checkpoints: Path | None = None,
) -> Iterator[Row]:
    """Trains and measures runs of the bucket, yielding each as it ends, until `queue` is empty.

    Other threads may take from the same queue. A run's numbers do not depend on its lane, on the
    runs beside it or on the chunk length. A run whose data or measurements raise ends with that.
    Ends between two chunks once `stop` is set. With a folder for `checkpoints` long runs are saved
    there now and then, and when stopped, and go on from where they were.

    Raises OutOfMemory where the device has too little for the bucket's lanes.
    """
    lanes: list[_Occupant | None] = [None] * bucket.lanes
    try:
        yield from _run(bucket, queue, programs, tally, stop, keep, checkpoints, lanes)
    except jax.errors.JaxRuntimeError as error:
        if not _out_of_memory(error):
            raise
        raise OutOfMemory([one.run for one in lanes if one is not None]) from error


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def _run(
    bucket: Bucket,
    queue: deque[Run],
    programs: Programs,
    tally: Tally,
    stop: Event | None,
    keep: Collection[Run],
    checkpoints: Path | None,
    lanes: list[_Occupant | None],
) -> Iterator[Row]:
    saved = None if checkpoints is None else Checkpoints(checkpoints, bucket)
    batch: Lane = programs.idle()
    chunk, expected = FIRST_CHUNK, bucket.guessed_steps
    while not (stop and stop.is_set()):
        for i in range(bucket.lanes):
            while lanes[i] is None and (run := _next(queue)):
                try:
                    lanes[i] = taken_in = _occupant(run, bucket)
                except Exception as error:
                    if _out_of_memory(error):
                        queue.appendleft(run)
                        raise
                    yield raised(run, error)
                    continue
                before = _goes_on(taken_in, saved, batch)
                numbers = numbers_of(run, len(taken_in.moments))
                batch = programs.place(
                    batch, np.int32(i), *taken_in.padded, run.shuffle_key(), *numbers
                )
                if before is not None:
                    batch = restore(batch, np.int32(i), before)
        occupied = [i for i, lane in enumerate(lanes) if lane is not None]
        if not occupied:
            break
        started = perf_counter()
        # While runs wait, come back as soon as a lane falls free; after that, when all have ended.
        least = np.int32(len(occupied) if queue or bucket.pauses else 1)
        batch, taken = programs.advance(batch, np.int32(chunk), least)
        states = batch.state
        ended, steps, log_loss = jax.device_get((states.status, states.steps, states.log_loss))
        seconds, trips = perf_counter() - started, int(taken)
        if trips == chunk:
            chunk = max(1, int(chunk * np.clip(CHUNK_SECONDS / seconds, 0.25, 4)))

        tally.run_seconds += seconds
        tally.lane_steps += trips * bucket.lanes
        tally.lanes, tally.busy_lanes = bucket.lanes, len(occupied)
        tally.steps_per_second = trips * len(occupied) / seconds
        tally.log_losses = tuple(log_loss[occupied].tolist())
        running = [i for i in occupied if ended[i] == Status.RUNNING]
        shares = np.minimum(steps[running] / expected, 0.95)
        tally.work = float(shares.sum()) * bucket.padded_work / len(bucket.runs)
        for i in occupied:
            one = lanes[i]
            if one is None or ended[i] == Status.RUNNING:
                continue
            params, ending = _taken_out(programs, batch, i, one)
            try:
                if ended[i] == Status.PAUSED and programs.resume is not None:
                    _note(one, params, ending)
                    pause = numbers_of(one.run, len(one.moments))[1]
                    batch = programs.resume(batch, np.int32(i), pause)
                    continue
                row = _row(one, params, ending, one.run in keep)._replace(
                    computed_as=f"{bucket.computed_as} {bucket.lanes} lanes"
                )
            except Exception as error:
                if _out_of_memory(error):
                    raise
                row = raised(one.run, error)
            lanes[i] = None
            tally.useful_steps += int(steps[i]) + 1
            yield row
        if saved is not None and saved.are_due():
            _save(saved, batch, lanes, SECONDS_BETWEEN_CHECKPOINTS)
    if saved is not None and stop and stop.is_set():
        _save(saved, batch, lanes, SECONDS_WORTH_SAVING)
    tally.rest()


def _goes_on(one: _Occupant, saved: Checkpoints | None, batch: Lane) -> Any:
    """The state that a run goes on from, None where it begins."""
    leaves, structure = jax.tree.flatten(batch.state)
    found = None if saved is None else saved.load(one.run, leaves)
    if found is None:
        return None
    one.began -= found.seconds
    one.moments, one.networks = list(found.moments), list(found.networks)
    return jax.tree.unflatten(structure, found.state)


def _save(
    saved: Checkpoints, batch: Lane, lanes: Sequence[_Occupant | None], seconds: float
) -> None:
    """Saves the runs in these lanes that have trained for so long."""
    now = perf_counter()
    old = [(i, one) for i, one in enumerate(lanes) if one and now - one.began > seconds]
    if not old:
        return
    leaves = [numbers_in(leaf) for leaf in jax.tree.leaves(batch.state)]
    for i, one in old:
        state = [leaf[i] for leaf in leaves]
        saved.save(one.run, UnderWay(state, one.moments, one.networks, now - one.began))


def _occupant(run: Run, bucket: Bucket) -> _Occupant:
    start, data = draw(run)
    padded = (
        pad_params(start, bucket.width, bucket.d),
        pad_data(data, bucket.samples, bucket.d),
    )
    return _Occupant(run, start, data, padded, bucket.measured_at, perf_counter())


def _taken_out(
    programs: Programs, batch: Lane, lane: int, one: _Occupant
) -> tuple[Params, dict[str, Any]]:
    """The network in a lane at the run's own size, as NumPy arrays, and how it stands."""
    params, ending = jax.device_get(programs.decode(batch, np.int32(lane), *one.padded))
    k, d = one.run.width, one.run.d
    return Params(params.w[:k, :d], params.b[:k], params.v[:k]), ending


def _note(one: _Occupant, params: Params, ending: dict[str, Any]) -> None:
    """Measures a run at a moment of its curve."""
    run = one.run
    assert run.curve is not None
    margins = one.data.y * _outputs(params, one.data.x)
    found = {
        "log_loss": ending["log_loss"],
        "steps": ending["steps"],
        "min_margin": margins.min(),
        "squared_norm": sum(float((p.astype(float) ** 2).sum()) for p in params),
    }
    for values in measure(run, run.curve.measure, params, one.start, one.data, one.measured_at):
        found |= values
    one.moments.append(found)
    one.networks.append(params)


def _outputs(params: Params, x: Any) -> Any:
    return np.maximum(x @ params.w.T + params.b, 0) @ params.v


def _row(one: _Occupant, params: Params, ending: dict[str, Any], keep: bool) -> Row:
    run = one.run
    curve = None
    values: dict[str, Any] = {}
    if run.curve is not None:
        missing = len(run.curve.moments) - len(one.moments)
        if one.networks:
            curve = jax.tree.map(lambda *leaves: np.stack(leaves), *one.networks)
        for name in dict.fromkeys(name for found in one.moments for name in found):
            reached = [np.asarray(found[name], float) for found in one.moments]
            nothing = [np.full(reached[0].shape, np.nan)] * missing
            values[CURVE + name] = np.stack(reached + nothing)
    values |= ending
    measured = measure(run, run.measure, params, one.start, one.data, one.measured_at, curve)
    seconds = perf_counter() - one.began
    network = digest_of(params._asdict())
    row = Row(run, plain(values), {}, seconds, network=network, kept=params if keep else None)
    return row.with_values(measured)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and lists of them."""
    return {
        name: value if isinstance(value, int | float | list) else np.asarray(value).tolist()
        for name, value in values.items()
    }


def raised(run: Run, error: Exception) -> Row:
    """The row of a run that raised."""
    told = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:  # its frames hold the lanes' memory
        link.__traceback__, link = None, link.__cause__ or link.__context__
    return Row(run, {"status": int(Status.RAISED), "error": told}, raised=error)


def _next(queue: deque[Run]) -> Run | None:
    try:
        return queue.popleft()
    except IndexError:
        return None
