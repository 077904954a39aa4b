"""Which runs share a bucket, and what that is like.

A bucket is a function of the runs, the protocol and the devices, never of what is left to do: a
resumed sweep compiles the same shapes and so gives the same bits.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkkt.engine.planning import lane_counts
from jaxkkt.engine.planning.buckets import Bucket, all_measured, structure_of
from jaxkkt.engine.planning.costs import lane_bytes, slot_bytes, work
from jaxkkt.engine.planning.inert import is_inert
from jaxkkt.engine.planning.merging import Shape, merge
from jaxkkt.engine.planning.trajectories import Trajectory, trajectories
from jaxkkt.measurements import Measurement
from jaxkkt.numerics.arithmetic import round_up
from jaxkkt.protocols import Protocol
from jaxkkt.representations import Representation
from jaxkkt.runs.columns import distinct
from jaxkkt.runs.run import Curve, Run, order_of
from jaxkkt.specs.data import Data
from jaxkkt.specs.same import Same, by_identity
from jaxkkt.specs.training import Training

log = logging.getLogger("jaxkkt")

# Compiling what trains in a bucket takes about as long as this many operations of a core, and of an
# accelerator more than so many times as many.
OPERATIONS_PER_COMPILATION = 1e11
TIMES_AS_MANY = 10
# Unlike sizes share a program where its networks take no more bytes, or than the largest of them.
SHARED_BYTES = 2**21
# Drawing and measuring a network takes a thread about so long for each number of its weights, its
# points and its preactivations, where it is large, and compiling that so long.
SECONDS_PER_ELEMENT = 2e-8
SECONDS_PER_PROGRAM = 2.0
# What takes no more than so many samples, as certificates, takes about so long for each cube of
# those that it is given.
SECONDS_PER_CUBE = 1.5e-8
# Round sizes, whose programs another sweep may find compiled, are worth so much padding.
SECONDS_OF_ROUNDING = 0.2
# A shape that does not fit into memory counts for so many times what it costs.
NEVER = 1e9


def plan(runs: Sequence[Run], devices: Sequence[Any]) -> list[Bucket]:
    """Buckets for `runs` on these devices, of one kind; those of the shortest steps first.

    Only runs whose protocols differ in numbers alone share a bucket, and of these only those of one
    representation and batch, and those that share trajectories or none of them. Their shapes share
    one where `merging.merge` says that padding is cheaper than compiling, however much it is beside
    the work of small sweeps. So do the shapes at which buckets draw and measure.
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
    on_cpu = devices[0].platform == "cpu"
    compilation = OPERATIONS_PER_COMPILATION * (1 if on_cpu else TIMES_AS_MANY)
    for kind, by_shape in sorted(groups.items(), key=lambda item: _order(item[1])):
        protocol = next(iter(by_shape.values()))[0][0].protocol
        merged = [Shape((shape,), *shape) for shape in by_shape]
        if protocol.takes_padding:
            counts = {shape: len(same) for shape, same in by_shape.items()}
            merged = merge(counts, _cost(kind, _gradients(by_shape), counts), compilation)
            merged = [part for union in merged for part in _inert(union, by_shape)]
        for union in merged:
            some = {part: by_shape[part] for part in sorted(union.parts, key=_longest_first)}
            found.append(_bucket(some, union, kind, devices))
    found = _sharing_programs(found)
    return sorted(found, key=lambda b: (b.padded_work / len(b.runs), b.describe()))


def padding_share(buckets: Sequence[Bucket]) -> float:
    """Share of all work that is spent on padding."""
    return 1 - sum(b.useful_work for b in buckets) / sum(b.padded_work for b in buckets)


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
        """Operations of a gradient, of a size or of arrays of sizes."""
        return work(self.representation, self.seen(m), d, k)


def _gradients(by_shape: Mapping[tuple[int, int, int], Sequence[Trajectory]]) -> float:
    """How many gradients one of these takes, roughly, on the average: the same in any order."""
    protocols = [one[0].protocol for same in by_shape.values() for one in same]
    return sum(p.guessed_steps * p.gradients_per_step for p in protocols) / len(protocols)


def _cost(
    kind: _Kind, gradients: float, shapes: Iterable[tuple[int, int, int]]
) -> Callable[..., Any]:
    """Operations of a run of a size, or of arrays of sizes: so many gradients, and what is in their
    time to draw and measure it; as good as forever where it takes too much memory."""
    most = max(SHARED_BYTES, *(_bytes(*shape) for shape in shapes))
    drawn = SECONDS_PER_ELEMENT * lane_counts.OPERATIONS_PER_SECOND

    def cost(m: Any, d: Any, k: Any) -> Any:
        fits = _bytes(m, d, k) <= most
        operations = gradients * kind.work(m, d, k) + drawn * _numbers(m, d, k)
        return operations * np.where(fits, 1, NEVER)

    return cost


def _numbers(m: Any, d: Any, k: Any) -> Any:
    """How many numbers its points, weights and preactivations are."""
    return m * d + k * d + m * k


def _bytes(m: Any, d: Any, k: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(float).itemsize * _numbers(m, d, k)


def _kind(one: Trajectory) -> _Kind:
    return _kind_of(one[0].protocol, one[0].data, one[0].curve, len(one) > 1)


@by_identity
def _kind_of(protocol: Training, data: Data, curve: Curve | None, shared: bool) -> _Kind:
    m = data.samples
    return _Kind(
        structure_of(protocol),
        protocol.representation_for(m, data.d),
        None if protocol.full_batch(m) else protocol.batch_size,
        None if curve is None else (curve.dimension, len(curve.moments)),
        shared or curve is not None,
    )


def _order(shapes: dict[tuple[int, int, int], list[Trajectory]]) -> str:
    """Sorts kinds, whatever the order of the runs."""
    return min(str(one[0].to_json()) for same in shapes.values() for one in same[:1])


def _inert(
    union: Shape, by_shape: Mapping[tuple[int, int, int], Sequence[Trajectory]]
) -> list[Shape]:
    """The shape for all of its runs; one for each size where their optimizer minds padding."""
    firsts = distinct([one[0] for part in union.parts for one in by_shape[part]])
    rules = {run.protocol.rule for run in firsts if isinstance(run.protocol, Protocol)}
    least = min(k for _, _, k in union.parts), min(d for _, d, _ in union.parts)
    if all(is_inert(rule, least, (union.k, union.d)) for rule in rules):
        return [union]
    told = "the optimizer %s minds padding: each of %d sizes trains by itself"
    log.info(told, ", ".join(sorted(rule.label for rule in rules)), len(union.parts))
    return [Shape((part,), *part) for part in union.parts]


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
    of_one = slot_bytes(kind.representation, m, batch, k, d, ball)
    operations = float(kind.work(m, d, k)) * protocol.gradients_per_step
    side_by_side = devices[0].platform != "cpu"
    if side_by_side:
        mine, most = -(-len(found) // len(devices)), lane_bytes(devices[0]) // of_one
        lanes = lane_counts.lanes_of_an_accelerator(mine, most, operations, protocol.guessed_steps)
        slots = lanes
    elif any(one.on_host for run in kinds for one in all_measured(run)):
        lanes = slots = 1  # so that a row lands, and a stop is heard, after each
    else:
        lanes = lane_counts.within_a_turn(lane_counts.lanes_of_a_core(batch, k), of_one)
        slots = lanes * lane_counts.runs_of_a_lane(
            lanes, len(found), operations * protocol.guessed_steps, of_one
        )
    return Bucket(
        tuple(found),
        *tight,
        kind.representation,
        batch,
        lanes,
        slots,
        side_by_side,
        drawn_at=tight,
        measured_at=tight,
        slot_bytes=of_one,
        resumes=kind.resumes,
        starts=any(_measures_starts(run.measure, run.curve) for run in kinds),
    )


@by_identity
def _measures_starts(measure: Sequence[Measurement], curve: Curve | None) -> bool:
    """Whether a measurement, at the end or on the way, asks for what a run started from."""
    on_the_way = () if curve is None else curve.measure
    return any("start" in one.needs() for one in (*measure, *on_the_way))


def _sharing_programs(buckets: Sequence[Bucket]) -> list[Bucket]:
    """These buckets, drawn and measured at shapes that they share, and in turns as long.

    Those that measure the same share one where padding takes less than to compile, and no more
    memory than they have for a turn, or train in.
    """
    alike: dict[Any, list[Bucket]] = {}
    for b in buckets:
        key = b.lanes, b.samples_seen, b.starts, b.measures
        alike.setdefault(key, []).append(b)
    found = []
    for (_, seen, *_), same in alike.items():
        counts = Counter[tuple[int, int, int]]()
        for b in same:
            counts[b.sizes] += b.times_measured * len(b.runs)
        turn, most = max(b.slots for b in same), max(b.bytes for b in same)
        seconds = partial(_seconds, turn, max(most, lane_counts.TURN_BYTES), seen)
        for union in merge(counts, seconds, SECONDS_PER_PROGRAM):
            at = tight = union.m, union.d, union.k
            number = sum(counts[part] for part in union.parts)
            round_m = round_up(union.m)
            for m in (round_m,) if seen is None else (union.m, round_m):
                rounded = m, round_up(union.d), round_up(union.k)
                if number * (seconds(*rounded) - seconds(*tight)) <= SECONDS_OF_ROUNDING:
                    at = rounded
            sharing = [b for b in same if b.sizes in union.parts]
            slots = min(b.slots for b in sharing)
            for b in sharing:
                drawn_at = b.sizes if _of_one_size_only(b) else at
                found.append(replace(b, slots=slots, drawn_at=drawn_at, measured_at=at))
    return found


def _seconds(slots: int, most: int, seen: int | None, m: Any, d: Any, k: Any) -> Any:
    """What a thread takes to draw and measure a network of a size, or each of arrays of them, by
    measurements that see up to so many samples; as good as forever where a turn of so many slots
    takes more than `most` bytes."""
    fits = slots * _bytes(m, d, k) <= most
    cubes = 0.0 if seen is None else np.minimum(m, seen) ** 3
    return (SECONDS_PER_ELEMENT * _numbers(m, d, k) + SECONDS_PER_CUBE * cubes) * np.where(
        fits, 1, NEVER
    )


def _of_one_size_only(bucket: Bucket) -> bool:
    """Whether its runs are all of its own size, and some can be drawn at theirs alone."""
    kinds = bucket.one_of_each
    any_size = all(run.data.any_size and run.initialization.any_size for run in kinds)
    return not any_size and {(run.samples, run.d, run.width) for run in kinds} == {bucket.sizes}
