"""How many lanes and slots a stream has, and how many streams there are."""

from collections.abc import Sequence
from math import floor, log2

import jax
import numpy as np

from jaxkkt.engine.machine.devices import cores
from jaxkkt.engine.planning.buckets import REFILLS, Bucket
from jaxkkt.engine.planning.costs import lane_bytes

# Starting an accelerator's kernels for one trip over all lanes, and what surrounds the trips, takes
# about as long as this many operations: some 30 microseconds of an H200 (docs/tried.md).
OPERATIONS_PER_TRIP = 1e8
# Between two of its turns runs are taken out, measured, and others taken in, which takes about as
# long as this many: some ten milliseconds of an H200 and its host (docs/tried.md).
OPERATIONS_PER_TURN = 3e10
# On a CPU: so many lanes a core up to these sizes m k (`python -m benchmarks.throughput --lanes`).
LANES_OF_A_CORE = ((1024, 32), (4096, 16), (12000, 4))
# A stream there is handed runs of about so long at a time, of no more than so many slots and bytes,
# and no more than a share of all.
SECONDS_OF_A_TURN = 0.3
OPERATIONS_PER_SECOND = 4e10
MOST_SLOTS = 128
TURN_BYTES = 2**26
PORTIONS = 8
# Lanes wait for the slowest of them about this share of a run at a bucket's end.
WAIT_AT_END = 0.15


def lanes_of_an_accelerator(trajectories: int, most: int, work: float, steps: float) -> int:
    """The number of lanes, up to `most`, that should finish so many trajectories first."""
    if most <= 1:
        return 1

    # At least 2: a batch of one is compiled to other bits.
    lanes = np.arange(2, max(2, min(most, trajectories)) + 1)
    times = -(-trajectories // lanes)
    training = (times + WAIT_AT_END) * steps * (OPERATIONS_PER_TRIP + lanes * work)
    return int(lanes[np.argmin(training + times * REFILLS * OPERATIONS_PER_TURN)])


def lanes_of_a_core(batch: int, k: int) -> int:
    """How many small networks a core steps faster at a time than one by one."""
    return next((lanes for most, lanes in LANES_OF_A_CORE if batch * k <= most), 1)


def within_a_turn(lanes: int, bytes_: int) -> int:
    """Half as many lanes, and so on, where many dimensions make networks large that are small to
    step."""
    while lanes > 1 and lanes * bytes_ > TURN_BYTES:
        lanes //= 2
    return lanes


def runs_of_a_lane(lanes: int, trajectories: int, operations: float, bytes_: int) -> int:
    """How many slots a stream has for each lane: little work is handed out in larger portions.

    Programs are compiled for the slots, so a few runs more should not ask for others: the share of
    all is one of 1, 2, 3, 4, 6, 8, 12, 16, ...
    """
    wanted = SECONDS_OF_A_TURN * OPERATIONS_PER_SECOND / (lanes * operations)
    fair = _one_of_few(max(1, trajectories / (lanes * PORTIONS)))
    return max(1, int(min(wanted, fair, MOST_SLOTS / lanes, TURN_BYTES / (lanes * bytes_))))


def _one_of_few(number: float) -> int:
    """The largest 2^i or 3 2^i up to a number of at least 1."""
    power = 2 ** floor(log2(number))
    return 3 * power // 2 if power > 1 and number >= 1.5 * power else int(power)


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
