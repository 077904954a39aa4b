"""Trajectories: runs that differ in nothing but where they stop are trained once, in turn."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxkkt.protocols import Training
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import by_identity

# Runs of which each goes on where the one before it ended; most often one alone.
Trajectory = tuple[Run, ...]


def trajectories(runs: Sequence[Run]) -> list[Trajectory]:
    """The runs by their trajectories, in the order of the first of each.

    On one are runs of the same start, data and training of which none stops before the one ahead
    of it: a grid over `ball`, `target_log_loss` or `max_steps` takes the steps of its longest runs
    alone. They may differ in what is measured at the end.
    """
    if len({(id(run.protocol), id(run.measure)) for run in runs}) == 1:
        return [(run,) for run in runs]  # the most common sweep: they differ in something else
    alike: dict[Any, list[Run]] = {}
    for run in runs:
        alike.setdefault(_trained_alike(run), []).append(run)
    first = {run: place for place, run in enumerate(runs)}
    found = [one for some in alike.values() for one in _in_turn(some)]
    return sorted(found, key=lambda one: min(first[run] for run in one))


def those_with(wanted: Callable[[Run], bool], some: Sequence[Trajectory]) -> list[Trajectory]:
    """What they are of the runs that are wanted alone."""
    left = (tuple(filter(wanted, one)) for one in some)
    return [one for one in left if one]


def _trained_alike(run: Run) -> Any:
    """Equal for runs that train alike as long as they do."""
    data, network, initialization, protocol, _, curve = run.apart_from_seed
    if not protocol.limits:
        return run
    return run.seed, data, network, initialization, _without_limits(protocol), curve


@by_identity
def _without_limits(protocol: Training) -> Training:
    return protocol.without_limits()


def _in_turn(runs: Sequence[Run]) -> list[Trajectory]:
    """Each run behind one whose limits are all no larger than its own."""
    found: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: run.protocol.limits):
        for one in found:
            pairs = zip(one[-1].protocol.limits, run.protocol.limits, strict=True)
            if all(before <= after for before, after in pairs):
                one.append(run)
                break
        else:
            found.append([run])
    return [tuple(one) for one in found]
