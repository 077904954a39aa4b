"""A stream's slots: runs are put into them, taken out, measured, and saved on their way."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxkkt.engine.machine import packing
from jaxkkt.engine.machine.devices import device, out_of_memory
from jaxkkt.engine.machine.packing import sent_once
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.trajectories import Trajectory
from jaxkkt.engine.programs.draws import draw, draw_batch
from jaxkkt.engine.programs.hashes import as_text
from jaxkkt.engine.programs.measuring import measure_batch
from jaxkkt.engine.programs.telling import Told
from jaxkkt.engine.programs.training import Programs, Report, Slot, restore
from jaxkkt.engine.running.checkpoints import (
    SECONDS_BETWEEN_CHECKPOINTS,
    Checkpoints,
    Saved,
    UnderWay,
    numbers_in,
)
from jaxkkt.engine.running.ended import Begun, Ended, Occupant, rows_of_ended
from jaxkkt.engine.running.rows import Row, all_raised
from jaxkkt.measurements import Measurement
from jaxkkt.runs.run import Run
from jaxkkt.training import Status

RUNNING, PAUSED, RAISED = map(int, (Status.RUNNING, Status.PAUSED, Status.RAISED))


# Starts what it is given, and returns what waits for it.
Start = Callable[[Callable[[], Any]], Callable[[], Any]]


class Slots:
    """A stream's slots: which run is in which, and the device's side of them. What steps them is
    handed to `start`. So many `streams` take runs from the same queue."""

    def __init__(
        self,
        bucket: Bucket,
        programs: Programs,
        saved: Saved | None,
        keep: Collection[Run],
        start: Start,
        streams: int = 1,
    ) -> None:
        self.bucket, self._programs, self._keep = bucket, programs, keep
        self._streams = streams
        self._saved = None if saved is None else Checkpoints(saved, bucket)
        self._computed_with = bucket.computed_with
        self._slots: list[Occupant | None] = [None] * bucket.slots
        self._numbers = count()
        self._arrays: Slot | None = None
        self._start = start
        self._ended: deque[Begun] = deque()
        # Rows of runs whose data cannot be trained on, or that raised on their way, with steps.
        self.raised: deque[tuple[Row, int]] = deque()
        # Rows of runs that cannot be drawn. They are told after others that end: of a sweep's first
        # few rows not all are errors then, unless all runs are.
        self.undrawn: list[Row] = []

    def take_undrawn(self) -> list[Row]:
        """The rows of runs that could not be drawn, once."""
        found, self.undrawn = self.undrawn, []
        return found

    @property
    def left(self) -> list[Trajectory]:
        """What is left to do for the runs in slots, and for those that are being measured."""
        unmeasured = [(one.run,) for begun in self._ended for one in begun.ones]
        return unmeasured + [one.trajectory for one in self._slots if one is not None]

    @property
    def occupied(self) -> list[int]:
        return [i for i, one in enumerate(self._slots) if one is not None]

    def take_in(self, queue: deque[Trajectory]) -> None:
        """Fills free slots from the queue: those of the lanes, and beyond them with no more than a
        fair share of what is left there, so that all streams come to their ends together."""
        if self._arrays is None:
            self._arrays = self._programs.idle()
        room = max(self.bucket.lanes, len(self.occupied) + -(-len(queue) // self._streams))
        while free := [i for i, one in enumerate(self._slots) if one is None]:
            most = min(len(free), self.bucket.turn, room - len(self.occupied))
            taken = self._next(queue, most)
            if not taken:
                return
            mine = dict(zip(free, taken, strict=False))
            if not self._placed(mine) and len(mine) > 1:
                for i, one in mine.items():
                    self._placed({i: one})

    def _placed(self, mine: Mapping[int, Trajectory]) -> bool:
        """Whether these could be drawn. One that could not is among the `undrawn`; several stay in
        their slots, to be tried one by one."""
        for i, one in mine.items():
            self._slots[i] = Occupant(one, next(self._numbers), perf_counter())
        try:
            self._place({i: one[0] for i, one in mine.items()})
        except Exception as error:
            if out_of_memory(error):
                raise
            if len(mine) == 1:
                ((i, one),) = mine.items()
                self._slots[i] = None
                self.undrawn += all_raised(one, error)
            return False
        return True

    def _next(self, queue: deque[Trajectory], most: int) -> list[Trajectory]:
        """Some whose runs are drawn alike."""
        telling, taken, first, specs = self._programs.telling, list[Trajectory](), None, None
        while len(taken) < most and (one := _popped(queue)) is not None:
            if one[0].apart_from_seed is not specs:
                specs = one[0].apart_from_seed
                drawing = telling.drawing(one[0])
                first = first or drawing
                if drawing != first:
                    queue.appendleft(one)
                    break
            taken.append(one)
        return taken

    def _place(self, mine: Mapping[int, Run]) -> None:
        telling, bucket = self._programs.telling, self.bucket
        saved = [] if self._saved is None else [i for i, run in mine.items() if run in self._saved]
        found = {i: self._goes_on(i) for i in saved}
        runs, words = list(mine.values()), jax.device_put(self._told_of(mine))
        drawn = draw_batch(telling.drawing(runs[0]), words, runs, bucket.slots, bucket.side_by_side)
        self._arrays = self._programs.place(self._arrays, words, drawn)
        for i, state in found.items():
            if state is not None:
                self._arrays = restore(self._arrays, np.int32(i), state)

    def _told_of(self, slots: Iterable[int]) -> np.ndarray:
        """How the device is told of the runs in these slots, where they stand."""
        ones = ((i, self._at(i)) for i in slots)
        told = [Told(one.run, i, one.number, len(one.moments)) for i, one in ones]
        return self._programs.telling.rows_of(told, self.bucket)

    def _at(self, i: int) -> Occupant:
        one = self._slots[i]
        assert one is not None
        return one

    def advance(self, chunk: int, ended: int) -> Callable[[], tuple[Report, float]]:
        """Begins to step all slots by so many trips, or until no run waits and so many in lanes
        have ended. What this gives waits for it, and tells the seconds that it took."""
        limits = sent_once(np.array([chunk, ended], np.int32), device())
        report, advance, arrays = self._programs.report, self._programs.advance, self._arrays

        def train() -> tuple[Slot, np.ndarray, float]:
            started = perf_counter()
            stepped, words = advance(arrays, limits)
            return stepped, np.asarray(words), perf_counter() - started

        trained = self._start(train)

        def wait() -> tuple[Report, float]:
            self._arrays, words, seconds = trained()
            return report.unpack_on_host(words), seconds

        return wait

    def take_out(self, slots: Sequence[int], told: Report) -> None:
        """Takes the runs that have ended out of these slots, and begins to measure them; `rows` has
        theirs. Those that have paused are measured, and go on."""
        status, steps = told.status.tolist(), told.steps.tolist()
        untrainable = [i for i in slots if status[i] == RAISED]
        paused = [i for i in slots if status[i] == PAUSED]
        at_the_end = [i for i in slots if status[i] not in (RAISED, PAUSED)]
        if at_the_end:
            self._ended.append(self._begin_to_measure(at_the_end, _at_its_end, steps))
            for i in at_the_end:
                self._slots[i] = self._at(i).next(steps[i])
        if paused:
            self._note(paused, self._begin_to_measure(paused, _on_its_way, steps))
        self._resume([i for i in (*at_the_end, *paused) if self._slots[i] is not None])
        for i in untrainable:
            left, self._slots[i] = self._at(i).trajectory, None
            self.raised += [(row, 0) for row in self._untrainable(left)]

    def rows(self) -> Iterator[tuple[list[Row], int]]:
        """The rows of the runs that were taken out, some at a time, and the steps that they made in
        lanes here; those of runs that raised come last."""
        while self._ended:
            made = rows_of_ended(self._ended[0], self._computed_with, self._keep)
            steps = sum(self._ended.popleft().steps)
            yield made, steps
        while self.raised:
            row, made_here = self.raised.popleft()
            yield [row], made_here

    def _begin_to_measure(
        self,
        slots: Sequence[int],
        asked: Callable[[Run], tuple[Measurement, ...]],
        steps: Sequence[int],
    ) -> Begun:
        programs, bucket = self._programs, self.bucket
        places = np.full(bucket.turn, bucket.slots, np.int32)
        places[: len(slots)] = slots
        trained, words = programs.take_out(places, self._arrays)
        mine = [self._at(i) for i in slots]
        runs, curves = [one.run for one in mine], [one.curve for one in mine]
        made = [steps[i] - one.steps_before for i, one in zip(slots, mine, strict=True)]
        found = measure_batch(runs, list(map(asked, runs)), trained, bucket.side_by_side, curves)

        def wait() -> Ended:
            ending = programs.ending.unpack_on_host(np.asarray(words)[: len(mine)])
            return Ended(ending.values, as_text(ending.network), found())

        return Begun(mine, trained, made, wait)

    def _note(self, slots: Sequence[int], paused: Begun) -> None:
        """Notes the moments of runs that have paused; those that cannot go on have rows."""
        ending, _, found = paused.wait()
        values, of_each = packing.rows_of(ending, len(slots)), found.of_each()
        for r, (i, one) in enumerate(zip(slots, paused.ones, strict=True)):
            mine = of_each[r]
            if not isinstance(mine, Exception):
                try:
                    one.note(paused.trained.at(r, one.run), values[r], *mine)
                except ValueError as error:
                    mine = error
            if isinstance(mine, Exception):
                self._slots[i] = None
                steps = [paused.steps[r], *[0] * (len(one.trajectory) - 1)]
                self.raised += zip(all_raised(one.trajectory, mine), steps, strict=True)

    def _resume(self, slots: Sequence[int]) -> None:
        """The runs in these slots go on from where they stand."""
        if not slots:
            return
        assert self._programs.resume is not None
        self._arrays = self._programs.resume(self._arrays, self._told_of(slots))

    def _untrainable(self, left: Trajectory) -> list[Row]:
        """The rows of runs whose data cannot be trained on."""
        try:
            draw(left[0])
        except Exception as error:
            return all_raised(left, error)
        return all_raised(left, ValueError("what was drawn cannot be trained on"))

    def _goes_on(self, i: int) -> Any:
        """The state that a saved run goes on from, None where it begins anew."""
        assert self._saved is not None
        assert self._arrays is not None
        leaves, structure = jax.tree.flatten(self._arrays.state)
        one = self._at(i)
        found = self._saved.load(one.run, leaves)
        if found is None:
            return None
        one.began -= found.seconds
        one.moments, one.networks = tuple(found.moments), tuple(found.networks)
        state = jax.tree.unflatten(structure, found.state)
        one.steps_before = int(state.steps)
        return state

    def save_if_due(self) -> None:
        if self._saved is not None and self._saved.are_due():
            began = perf_counter()
            self.save(SECONDS_BETWEEN_CHECKPOINTS)
            self._saved.took(perf_counter() - began)

    def save(self, seconds: float) -> None:
        """Saves the runs that began so long ago, but those that only waited."""
        if self._saved is None or self._arrays is None:
            return
        now, steps = perf_counter(), np.asarray(self._arrays.state.steps).tolist()
        old = [
            (i, one)
            for i, one in enumerate(self._slots)
            if one and now - one.began > seconds and steps[i] > one.steps_before
        ]
        if not old:
            return
        leaves = [numbers_in(leaf) for leaf in jax.tree.leaves(self._arrays.state)]
        for i, one in old:
            state = [leaf[i] for leaf in leaves]
            self._saved.save(one.run, UnderWay(state, one.moments, one.networks, now - one.began))


def _at_its_end(run: Run) -> tuple[Measurement, ...]:
    return run.measure


def _on_its_way(run: Run) -> tuple[Measurement, ...]:
    assert run.curve is not None
    return run.curve.measure


def _popped(queue: deque[Trajectory]) -> Trajectory | None:
    try:
        return queue.popleft()
    except IndexError:
        return None
