"""Shards: equal shares of a sweep's runs, for processes that train it together."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral

import jax

from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.planning.trajectories import those_with
from jaxkkt.process.garbage import uncollected
from jaxkkt.runs.run import Run
from jaxkkt.store.lock import WHOLE

# Which of how many equal shares of the runs, from 1 on.
Shard = tuple[int, int]


@uncollected()
def share(
    buckets: Sequence[Bucket], runs: Sequence[Run], shard: Shard | None
) -> tuple[tuple[Bucket, ...], list[Run], str]:
    """The buckets and runs of a shard, and what it is called in the store.

    The shape of a bucket is that of all its runs: shares have the bits of the whole.
    """
    if shard is None and jax.process_count() > 1:
        shard = jax.process_index() + 1, jax.process_count()
    if shard is None:
        return tuple(buckets), list(runs), WHOLE
    pair = isinstance(shard, Sequence) and len(shard) == 2
    if (
        not pair
        or not all(isinstance(one, Integral) for one in shard)
        or not 1 <= shard[0] <= shard[1]
    ):
        raise ValueError(f"a shard is one of (1, n) to (n, n), got {shard!r}")
    which, count = shard
    whole = [one for bucket in buckets for one in bucket.trajectories]
    if len(whole) < count:  # too few to go round: runs go apart
        whole = [(run,) for one in whole for run in one]
    mine = {run for one in whole[which - 1 :: count] for run in one}
    if not mine:
        raise ValueError(f"there are {len(runs)} runs: not enough for {count} shards")
    found = ((b, those_with(mine.__contains__, b.trajectories)) for b in buckets)
    return (
        tuple(replace(b, trajectories=tuple(some)) for b, some in found if some),
        [run for run in runs if run in mine],
        f"{which}-of-{count}",
    )
