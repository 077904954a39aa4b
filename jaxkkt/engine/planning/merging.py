"""Which shapes share a compiled program: padding against compilation."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np


class Shape(NamedTuple):
    """Some of the runs' shapes, and one that holds them all."""

    parts: tuple[tuple[int, int, int], ...]
    m: int
    d: int
    k: int


def merge(
    counts: Mapping[tuple[int, int, int], int],
    work_of: Callable[..., Any],
    compilation: float,
    no_matter: float = 0.0,
    allowed: float = inf,
) -> tuple[list[Shape], float]:
    """The shapes in as few groups as pay, and the padding that is still allowed after that.

    Starting from one group a shape, the pair whose union adds the least padding is merged while
    that costs no more than a `compilation` and than is `allowed`, or is of `no_matter`. `counts`
    are the runs of every shape, `work_of` what a run of sizes m, d, k costs, in any unit.
    """
    parts = [[shape] for shape in sorted(counts)]
    sizes = np.array(sorted(counts))
    number = np.array([counts[shape] for shape in sorted(counts)], float)
    work = number * work_of(*sizes.T)

    def added(i: Any, others: Any) -> Any:
        """The padding of unions with group i; none with itself, nor with those that are gone."""
        union = np.maximum(sizes[i], sizes[others])
        more = (number[i] + number[others]) * work_of(*union.T)
        cost = more - work[i] - work[others]
        return np.where((number[i] > 0) & (number[others] > 0) & (others != i), cost, np.inf)

    everyone = np.arange(len(parts))
    cost = np.array([added(i, everyone) for i in everyone])
    for _ in everyone[1:]:
        i, j = sorted(divmod(int(cost.argmin()), len(parts)))
        least = cost[i, j]
        if least > no_matter:
            if least > min(allowed, compilation):
                break
            allowed -= least
        parts[i] += parts[j]
        sizes[i] = np.maximum(sizes[i], sizes[j])
        number[i], number[j] = number[i] + number[j], 0
        work[i] = number[i] * work_of(*sizes[i])
        for changed in (i, j):
            cost[changed] = cost[:, changed] = added(changed, everyone)
    return [Shape(tuple(parts[i]), *map(int, sizes[i])) for i in everyone if number[i]], allowed
