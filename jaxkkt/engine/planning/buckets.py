"""How runs of mixed shapes share compiled programs: buckets of one padded shape, made of lanes."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import jax

from jaxkkt.engine.planning.costs import work
from jaxkkt.engine.planning.trajectories import Trajectory
from jaxkkt.measurements import Measurement, samples_seen
from jaxkkt.representations import Representation, step_flops
from jaxkkt.runs.columns import distinct
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import by_identity

# An accelerator looks for runs that have ended after so many trips.
TRIPS_OF_AN_ACCELERATOR = 4
# Once one in so many of an accelerator's runs has ended, as many are measured and others taken in.
REFILLS = 2


@dataclass(frozen=True)
class Bucket:
    """Runs that share one compiled shape, padded to (samples, d, width).

    A stream has `slots` that hold a run each, and steps `lanes` of them at a time: all of them
    `side_by_side` on an accelerator; on a CPU another takes the lane of one that ends. Drawn and
    measured are as many as a `turn` takes, at shapes that may be larger, which buckets share:
    `drawn_at`, `measured_at`. A step sees `batch` of the samples, and a slot takes
    `slot_bytes`.
    Where it `resumes` a run may go on from where it paused to be measured, or another ended. Where
    a measurement asks for them, networks are taken out with their `starts`.
    """

    trajectories: tuple[Trajectory, ...]
    samples: int
    d: int
    width: int
    representation: Representation
    batch: int
    lanes: int
    slots: int
    side_by_side: bool
    drawn_at: tuple[int, int, int]
    measured_at: tuple[int, int, int]
    slot_bytes: int
    resumes: bool
    starts: bool

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(chain.from_iterable(self.trajectories))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.samples, self.d, self.width

    @cached_property
    def one_of_each(self) -> list[Run]:
        """The first run of those that differ in the seed alone."""
        return distinct(self.runs)

    def with_lanes(self, lanes: int) -> "Bucket":
        """The same runs in fewer lanes, and no more slots than these."""
        return replace(self, lanes=lanes, slots=lanes)

    @property
    def turn(self) -> int:
        """How many runs are drawn, placed, taken out and measured at a time."""
        return max(1, self.slots // REFILLS) if self.side_by_side else self.slots

    @property
    def trips_at_a_time(self) -> int:
        """After how many it looks which runs have ended: an accelerator waits for the host then."""
        return TRIPS_OF_AN_ACCELERATOR if self.side_by_side else 1

    @cached_property
    def guessed_steps(self) -> float:
        """How many steps a run takes, roughly."""
        return max(1, sum(run.protocol.guessed_steps for run in self.runs) / len(self.runs))

    def measured(self) -> list[tuple[Run, tuple[Measurement, ...]]]:
        """One run of each kind that is measured alike, and what is measured together of it."""
        kinds = {_measured_alike(run): run for run in self.one_of_each}.values()
        found = [(run, run.measure) for run in kinds]
        return found + [(run, run.curve.measure) for run in kinds if run.curve is not None]

    @property
    def measures(self) -> frozenset[Any]:
        """What is measured of its runs."""
        return frozenset(map(_measured, self.one_of_each))

    @property
    def samples_seen(self) -> int | None:
        """To how many samples its largest runs may be padded for what is measured of them."""
        seen = (samples_seen(all_measured(run), self.samples) for run in self.one_of_each)
        return max((most for most in seen if most), default=None)

    @property
    def times_measured(self) -> int:
        """How often a run is measured: at its end, and at the moments of its curve."""
        curve = self.runs[0].curve
        return 1 if curve is None else 1 + len(curve.moments)

    @property
    def padded_work(self) -> float:
        """Work of one step of every run, at the padded shape."""
        return (
            self._gradients
            * len(self.runs)
            * work(self.representation, self.batch, self.d, self.width)
        )

    @property
    def useful_work(self) -> float:
        """Work of one step of every run, at its own shape."""
        return self._gradients * sum(
            work(self.representation, min(r.samples, self.batch), r.d, r.width) for r in self.runs
        )

    @property
    def step_flops(self) -> float:
        """Operations of the matrix products of one padded step of every trajectory."""
        sizes = {"samples": self.batch, "dim": self.d, "width": self.width}
        return self._gradients * len(self.trajectories) * step_flops(self.representation, **sizes)

    @cached_property
    def _gradients(self) -> float:
        return sum(run.protocol.gradients_per_step for run in self.runs) / len(self.runs)

    @property
    def bytes(self) -> int:
        """Memory of one stream's slots, and of the lanes that runs are copied into."""
        copies = self.lanes if 1 < self.lanes < self.slots else 0
        return (self.slots + copies) * self.slot_bytes

    @property
    def trained_by(self) -> str:
        """Loss and optimizer of its runs, or their kind of training."""
        fields = self.runs[0].fields()
        rule = fields.get("optimizer") or self.runs[0].protocol.label
        return f"{fields.get('loss', '')} {rule}".strip()

    @property
    def computed_as(self) -> str:
        """What a row's rounding depends on beside its run and the environment."""
        shape = f"m{self.samples} d{self.d} k{self.width}"
        return f"{self.representation} {shape} {self.trained_by}"

    @property
    def measured_as(self) -> str:
        """What the rounding of what is measured depends on."""
        m, d, k = self.measured_at
        return f"measured at m{m} d{d} k{k}"

    @property
    def computed_with(self) -> str:
        """Both, with the number of lanes."""
        return f"{self.computed_as} {self.lanes} lanes, {self.measured_as}"

    def describe(self) -> str:
        return (
            f"{self.representation:5} m <= {self.samples:<6} d <= {self.d:<5} k <= {self.width:<5}"
            f" {self.trained_by}: {len(self.runs):4} runs, lanes a stream: {self.lanes}"
        )


@by_identity
def structure_of(spec: Any) -> Any:
    return jax.tree.structure(spec)


def _measured(run: Run) -> Any:
    curve = None if run.curve is None else structure_of(run.curve.measure)
    return structure_of(run.measure), curve


def _measured_alike(run: Run) -> Any:
    seen = samples_seen(all_measured(run), run.samples)
    return _measured(run), type(run.data), run.data.label, seen


def all_measured(run: Run) -> tuple[Measurement, ...]:
    """At its end and on its way."""
    return run.measure + (() if run.curve is None else run.curve.measure)
