"""How runs of mixed shapes share compiled programs: buckets of one padded shape, made of lanes.

A bucket is a function of the runs, the protocol and the devices, never of what is left to do: a
resumed sweep compiles the same shapes and so gives the same bits.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.engine.devices import cores
from jaxkkt.engine.merging import Shape, merge
from jaxkkt.engine.trajectories import Trajectory, trajectories
from jaxkkt.measurements import Measurement
from jaxkkt.protocols import Training
from jaxkkt.representations import Representation, samples_at_once, step_flops
from jaxkkt.runs.columns import distinct
from jaxkkt.runs.run import Curve, Run, order_of
from jaxkkt.specs.data import Data, round_up
from jaxkkt.specs.same import Same, by_identity

# A step's elementwise passes over its (m, k) arrays cost about as much as this many operations
# of its matrix products (`python -m benchmarks.training`, the small sizes).
OPERATIONS_PER_ELEMENT = 64
LARGEST_PADDING_SHARE = 0.25
# Share of a device's memory that all lanes may fill, in whole GiB; and the memory of a device that
# does not tell.
LANE_SHARE = 0.4
UNKNOWN_BYTES = {"cpu": 10 * 2**30, "gpu": 16 * 2**30, "tpu": 16 * 2**30}
# Starting an accelerator's kernels for one trip over all lanes, and what surrounds the trips, takes
# about as long as this many operations: some 30 microseconds of an H200 (docs/benchmarks.md).
OPERATIONS_PER_TRIP = 1e8
# Between two of its turns runs are taken out, measured, and others taken in, which takes about as
# long as this many: some ten milliseconds of an H200 and its host (docs/benchmarks.md).
OPERATIONS_PER_TURN = 3e10
# It looks for runs that have ended after so many trips.
TRIPS_OF_AN_ACCELERATOR = 4
# Once one in so many of an accelerator's runs has ended, as many are measured and others taken in.
REFILLS = 2
# On a CPU: so many lanes a core up to these sizes m k (`python -m benchmarks.throughput --lanes`).
LANES_OF_A_CORE = ((1024, 32), (4096, 16), (12000, 4))
# A stream there is handed runs of about so long at a time, of no more than so many slots and bytes,
# and no more than a share of all.
SECONDS_OF_A_TURN = 0.3
OPERATIONS_PER_SECOND = 4e10
MOST_SLOTS = 128
TURN_BYTES = 2**26
PORTIONS = 8
# Drawing and measuring a network takes about so long for each of m k numbers, and compiling that so
# long: buckets of few runs share programs of round sizes, others have their own.
SECONDS_PER_ELEMENT = 1.5e-7
SECONDS_PER_PROGRAM = 2.0
# Lanes wait for the slowest of them about this share of a run at a bucket's end.
WAIT_AT_END = 0.15


@dataclass(frozen=True)
class Bucket:
    """Runs that share one compiled shape, padded to (samples, d, width).

    A stream has `slots` that hold a run each, and steps `lanes` of them at a time: all of them
    `side_by_side` on an accelerator; on a CPU another takes the lane of one that ends. Drawn and
    measured are as many as a `turn` takes, at shapes that may be larger, which buckets of few runs
    share: `drawn_at`, `measured_at`. A step sees `batch` of the samples, and a slot takes
    `lane_bytes`, in float32.
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
    lane_bytes: int
    resumes: bool
    starts: bool

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(chain.from_iterable(self.trajectories))

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

    @property
    def shared(self) -> tuple[Any, ...]:
        """What buckets have in common that share draws and measurements: turns are as long, too."""
        return self.drawn_at, self.measured_at, self.lanes, self.side_by_side

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
    def padded_work(self) -> float:
        """Work of one step of every run, at the padded shape."""
        return (
            self._gradients
            * len(self.runs)
            * _work(self.representation, self.batch, self.d, self.width)
        )

    @property
    def useful_work(self) -> float:
        """Work of one step of every run, at its own shape."""
        return self._gradients * sum(
            _work(self.representation, min(r.samples, self.batch), r.d, r.width) for r in self.runs
        )

    @property
    def step_flops(self) -> int:
        """Operations of the matrix products of one padded step of every trajectory."""
        sizes = {"samples": self.batch, "dim": self.d, "width": self.width}
        return self._gradients * len(self.trajectories) * step_flops(self.representation, **sizes)

    @property
    def _gradients(self) -> int:
        return self.runs[0].protocol.gradients_per_step

    @property
    def bytes(self) -> int:
        """Memory of one stream's slots, and of the lanes that runs are copied into."""
        copies = self.lanes if 1 < self.lanes < self.slots else 0
        return (self.slots + copies) * self.lane_bytes

    @property
    def trained_by(self) -> str:
        """Loss and optimizer of its runs, or their kind of training."""
        fields = self.runs[0].fields()
        return f"{fields.get('loss', '')} {fields.get('optimizer', 'adversarial')}".strip()

    @property
    def computed_as(self) -> str:
        """What a row's rounding depends on beside its run and the environment."""
        shape = f"m{self.samples} d{self.d} k{self.width}"
        return f"{self.representation} {shape} {self.trained_by}"

    @property
    def computed_with(self) -> str:
        """The same with the number of lanes."""
        return f"{self.computed_as} {self.lanes} lanes"

    def describe(self) -> str:
        return (
            f"{self.representation:5} m <= {self.samples:<6} d <= {self.d:<5} k <= {self.width:<5}"
            f" {self.trained_by}: {len(self.runs):4} runs, lanes a stream: {self.lanes}"
        )


def lane_bytes(device: Any) -> int:
    """Memory of a device that lanes may fill, from what it says of itself."""
    told = device.memory_stats() if hasattr(device, "memory_stats") else None
    limit = (told or {}).get("bytes_limit") or UNKNOWN_BYTES[device.platform]
    if device.platform == "cpu" and hasattr(os, "sysconf"):
        limit = min(limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(2**30, int(LANE_SHARE * limit) // 2**30 * 2**30)


def plan(runs: Sequence[Run], devices: Sequence[Any]) -> list[Bucket]:
    """Buckets for `runs` on these devices, of one kind; those of the shortest steps first.

    Only runs whose protocols differ in numbers alone share a bucket, and of these only those of one
    representation and batch, and those that share trajectories or none of them. Their shapes share
    one where `merging.merge` says that padding is cheaper than compiling, while it stays below
    `LARGEST_PADDING_SHARE` of all work.
    """
    alike: dict[tuple[bool, Same], list[Trajectory]] = {}
    for one in trajectories(runs):
        alike.setdefault((len(one) > 1, one[0].apart_from_seed), []).append(one)
    groups: dict[_Kind, dict[tuple[int, int, int], list[Trajectory]]] = {}
    for same in alike.values():
        first = same[0][0]
        by_shape = groups.setdefault(_kind(same[0]), {})
        by_shape.setdefault((first.samples, first.d, first.width), []).extend(same)
    found = []
    allowed = LARGEST_PADDING_SHARE * sum(
        len(same) * kind.work(*shape)
        for kind, shapes in groups.items()
        for shape, same in shapes.items()
    )
    for kind, by_shape in sorted(groups.items(), key=lambda item: _order(item[1])):
        protocol = next(iter(by_shape.values()))[0][0].protocol
        merged = [Shape((shape,), *shape) for shape in by_shape]
        if protocol.takes_padding:
            counts = {shape: len(same) for shape, same in by_shape.items()}
            steps = protocol.guessed_steps
            merged, allowed = merge(counts, kind.work, steps, allowed)
        for union in merged:
            some = {part: by_shape[part] for part in sorted(union.parts, key=_longest_first)}
            found.append(_bucket(some, union, kind, devices))
    least: dict[Any, int] = {}
    for b in found:
        least[b.shared] = min(b.slots, least.get(b.shared, b.slots))
    found = [replace(b, slots=least[b.shared]) for b in found]
    return sorted(found, key=lambda b: (b.padded_work / len(b.runs), b.describe()))


class _Kind(NamedTuple):
    """What runs of one bucket have in common: the structure of their training."""

    training: Any
    representation: Representation
    batch: int | None
    curve: Any
    resumes: bool

    def seen(self, m: Any) -> Any:
        """How many of m samples a step sees: of all, or of a batch; an array of an array."""
        if self.batch is None:
            return m
        return min(m, self.batch) if isinstance(m, int) else np.minimum(m, self.batch)

    def work(self, m: Any, d: Any, k: Any) -> Any:
        """Operations of a step, of a size or of arrays of sizes."""
        return _work(self.representation, self.seen(m), d, k)


def _kind(one: Trajectory) -> _Kind:
    return _kind_of(one[0].protocol, one[0].data, one[0].curve, len(one) > 1)


@by_identity
def _kind_of(protocol: Training, data: Data, curve: Curve | None, shared: bool) -> _Kind:
    m = data.samples
    return _Kind(
        structure_of(protocol),
        protocol.representation_for(m, data.d),
        None if protocol.full_batch(m) else protocol.batch_size,  # type: ignore[attr-defined]
        None if curve is None else (curve.dimension, len(curve.moments)),
        shared or curve is not None,
    )


@by_identity
def structure_of(spec: Any) -> Any:
    return jax.tree.structure(spec)


def _measured_alike(run: Run) -> Any:
    curve = None if run.curve is None else structure_of(run.curve.measure)
    data = type(run.data), run.data.label
    return structure_of(run.measure), curve, data


def _order(shapes: dict[tuple[int, int, int], list[Trajectory]]) -> str:
    """Sorts kinds, whatever the order of the runs."""
    return min(str(one[0].to_json()) for same in shapes.values() for one in same[:1])


def _longest_first(shape: tuple[int, int, int]) -> tuple[float, ...]:
    """Sorts shapes, so that what is left at the end is short."""
    m, d, k = shape
    return -m / d, -m, k


def _bucket(
    some: Mapping[tuple[int, int, int], Sequence[Trajectory]],
    shape: Shape,
    kind: _Kind,
    devices: Sequence[Any],
) -> Bucket:
    in_order = (sorted(same, key=lambda one: order_of(one[0])) for same in some.values())
    found = list(chain.from_iterable(in_order))
    runs = list(chain.from_iterable(found))
    kinds = distinct(runs)
    m, d, k = tight = shape.m, shape.d, shape.k
    protocol = runs[0].protocol
    ball = getattr(protocol, "ball", None) is not None
    batch = kind.seen(m)
    of_one = _lane_bytes(kind.representation, m, batch, k, d, ball)
    work = float(kind.work(m, d, k))
    side_by_side = devices[0].platform != "cpu"
    if side_by_side:
        mine, most = -(-len(found) // len(devices)), lane_bytes(devices[0]) // of_one
        lanes = _lanes(mine, most, work, protocol.guessed_steps)
        slots = lanes
    elif any(one.on_host for run in kinds for one in _all_measured(run)):
        lanes = slots = 1  # so that a row lands, and a stop is heard, after each
    else:
        lanes = _within_a_turn(_lanes_of_a_core(batch, k), of_one)
        slots = lanes * _runs_of_a_lane(lanes, len(found), work * protocol.guessed_steps, of_one)
    round_sizes = round_up(m), round_up(d), round_up(k)
    wasted = len(runs) * (prod(round_sizes[::2]) - m * k) * SECONDS_PER_ELEMENT
    at = tight if wasted > SECONDS_PER_PROGRAM else round_sizes
    any_size = all(run.data.any_size and run.initialization.any_size for run in kinds)
    exact = list(some) == [tight] and not any_size
    return Bucket(
        tuple(found),
        *tight,
        kind.representation,
        batch,
        lanes,
        slots,
        side_by_side,
        drawn_at=tight if exact else at,
        measured_at=at,
        lane_bytes=of_one,
        resumes=kind.resumes,
        starts=any("start" in one.needs() for run in kinds for one in _all_measured(run)),
    )


def _all_measured(run: Run) -> tuple[Measurement, ...]:
    """At its end and on its way."""
    return run.measure + (() if run.curve is None else run.curve.measure)


def _lanes_of_a_core(batch: int, k: int) -> int:
    """How many small networks a core steps faster at a time than one by one."""
    return next((lanes for most, lanes in LANES_OF_A_CORE if batch * k <= most), 1)


def _within_a_turn(lanes: int, bytes_: int) -> int:
    """Half as many lanes, and so on, where many dimensions make networks large that are small to
    step."""
    while lanes > 1 and lanes * bytes_ > TURN_BYTES:
        lanes //= 2
    return lanes


def _runs_of_a_lane(lanes: int, trajectories: int, operations: float, bytes_: int) -> int:
    """How many slots a stream has for each lane: little work is handed out in larger portions."""
    wanted = SECONDS_OF_A_TURN * OPERATIONS_PER_SECOND / (lanes * operations)
    fair = trajectories / (lanes * PORTIONS)
    return max(1, int(min(wanted, fair, MOST_SLOTS / lanes, TURN_BYTES / (lanes * bytes_))))


def streams(buckets: Sequence[Bucket], devices: Sequence[jax.Device]) -> int:
    """How many threads train at once, each a batch of lanes of its own.

    One a core on a CPU, where one network's arrays fit a core's cache and its elementwise passes
    run on one core; fewer where that would fill too much memory. One an accelerator, whose lanes
    share every kernel. Never more than there are batches to fill.
    """
    batches = sum(-(-len(b.trajectories) // b.slots) for b in buckets)
    if devices[0].platform != "cpu":
        return min(len(devices), batches)
    fitting = lane_bytes(devices[0]) // max(b.bytes for b in buckets)
    return max(1, min(cores(), fitting, batches))


def padding_share(buckets: Sequence[Bucket]) -> float:
    """Share of all work that is spent on padding."""
    return 1 - sum(b.useful_work for b in buckets) / sum(b.padded_work for b in buckets)


def _work(representation: Representation, m: Any, d: Any, k: Any) -> Any:
    """Operations of a step, of a size or of arrays of sizes."""
    products = step_flops(representation, samples=m, dim=d, width=k)
    return products + OPERATIONS_PER_ELEMENT * m * k


def _lane_bytes(
    representation: Representation, m: int, batch: int, k: int, d: int, ball: bool
) -> int:
    # Gram: coefficients and preactivations with a gradient and a trace each, hidden outputs, and
    # the Gram matrix. Otherwise: weights, gradient and trace, in a ball the initial weights too,
    # and of a batch preactivations, hidden outputs and a gradient. Always the start, too.
    start = k * d + m * d
    if representation == "gram":
        return 4 * (7 * m * k + m * m + start)
    r = min(m, d) if representation == "span" else d
    return 4 * ((3 + ball) * k * r + 3 * samples_at_once(batch, k) * k + m * r + start)


def _lanes(trajectories: int, most: int, work: float, steps: float) -> int:
    """The number of lanes, up to `most`, that should finish so many trajectories first."""
    if most <= 1:
        return 1

    # At least 2: a batch of one is compiled to other bits.
    lanes = np.arange(2, max(2, min(most, trajectories)) + 1)
    times = -(-trajectories // lanes)
    training = (times + WAIT_AT_END) * steps * (OPERATIONS_PER_TRIP + lanes * work)
    return int(lanes[np.argmin(training + times * REFILLS * OPERATIONS_PER_TURN)])
