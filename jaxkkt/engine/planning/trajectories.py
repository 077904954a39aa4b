"""Trajectories: runs that differ in nothing but where they stop are trained once, in turn."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from jaxkkt.protocols import Protocol
from jaxkkt.runs.run import Curve, Run, order_of
from jaxkkt.specs.same import by_identity

# Runs of which each goes on where the one before it ended; most often one alone.
Trajectory = tuple[Run, ...]


def trajectories(runs: Sequence[Run]) -> list[Trajectory]:
    """The runs by their trajectories.

    On one are runs of the same start, data and training of which none stops before the one ahead
    of it: a grid over `ball`, `target_log_loss` or `max_steps` takes the steps of its longest runs
    alone. They may differ in what is measured at the end.
    """
    kinds = {run.apart_from_seed for run in runs}
    if len({(id(protocol), id(measure)) for _, _, _, protocol, measure, _ in kinds}) == 1:
        return [(run,) for run in runs]  # the most common sweep: they differ in something else
    alike: dict[Any, list[Run]] = {}
    for run in runs:
        alike.setdefault(_trained_alike(run), []).append(run)
    return [one for some in alike.values() for one in _in_turn(some)]


def those_with(wanted: Callable[[Run], bool], some: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories of the runs that are wanted, without the others."""
    left = (tuple(filter(wanted, one)) for one in some)
    return [one for one in left if one]


def beginning_at(begins: Callable[[Run], bool], some: Sequence[Trajectory]) -> list[Trajectory]:
    """The same runs; each that `begins` does not go on from the one ahead of it."""
    found: list[Trajectory] = []
    for one in some:
        if len(one) == 1:
            found.append(one)
            continue
        places = [0, *(i for i in range(1, len(one)) if begins(one[i])), len(one)]
        found += [one[i:j] for i, j in pairwise(places)]
    return found


def _trained_alike(run: Run) -> Any:
    """Equal for runs that train alike as long as they do."""
    data, network, initialization, protocol, _, curve = run.apart_from_seed
    if not isinstance(protocol, Protocol) or not protocol.limits or _reads_limits(curve):
        return run
    return run.seed, data, network, initialization, _without_limits(protocol), curve


@by_identity
def _reads_limits(curve: Curve | None) -> bool:
    """Whether what is measured on the way is told where the run is to stop."""
    return curve is not None and any("protocol" in one.needs() for one in curve.measure)


@by_identity
def _without_limits(protocol: Protocol) -> Protocol:
    return protocol.without_limits()


def _in_turn(runs: Sequence[Run]) -> list[Trajectory]:
    """Each run behind one whose limits are all no larger than its own."""
    found: list[list[Run]] = []
    if len(runs) == 1:
        return [tuple(runs)]
    for run in sorted(runs, key=lambda run: (_limits(run), order_of(run))):
        for one in found:
            pairs = zip(_limits(one[-1]), _limits(run), strict=True)
            if all(before <= after for before, after in pairs):
                one.append(run)
                break
        else:
            found.append([run])
    return [tuple(one) for one in found]


def _limits(run: Run) -> tuple[float, ...]:
    assert isinstance(run.protocol, Protocol)  # no others are on one trajectory
    return run.protocol.limits
