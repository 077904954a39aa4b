"""Which shapes share a compiled program: padding against compilation."""

from collections.abc import Callable, Mapping
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
) -> list[Shape]:
    """The shapes in as few groups as pay.

    Starting from one group a shape, the pair whose union adds the least padding is merged while
    that costs no more than a `compilation`. `counts` are the runs of every shape, `work_of` what a
    run of sizes m, d, k costs, in any unit.
    """
    parts = [[shape] for shape in sorted(counts)]
    sizes = np.array(sorted(counts))
    number = np.array([counts[shape] for shape in sorted(counts)], float)
    work = number * work_of(*sizes.T)

    def added(i: Any) -> Any:
        """The padding of unions with group i; none with itself, nor with those that are gone."""
        union = np.maximum(sizes[i], sizes)
        cost = (number[i] + number) * work_of(*union.T) - (work[i] + work)
        return np.where((number > 0) & (everyone != i), cost, np.inf)

    everyone = np.arange(len(parts))
    # Of every group the one that it goes with best, and what that adds: of equal ones the first.
    best, least = np.zeros_like(everyone), np.full(len(parts), np.inf)

    def look_again(groups: Any) -> None:
        for i in groups:
            cost = added(i)
            best[i], least[i] = cost.argmin(), cost.min()

    look_again(everyone)
    for _ in everyone[1:]:
        i = int(least.argmin())
        i, j = sorted((i, int(best[i])))
        if least[i] > compilation:
            break
        parts[i] += parts[j]
        sizes[i] = np.maximum(sizes[i], sizes[j])
        number[i], number[j] = number[i] + number[j], 0
        work[i], least[j] = number[i] * work_of(*sizes[i]), np.inf
        theirs = (everyone == i) | (best == i) | (best == j)
        look_again(np.flatnonzero((number > 0) & theirs))
        cost = added(i)
        nearer = (number > 0) & ((cost < least) | ((cost == least) & (i < best)))
        best[nearer], least[nearer] = i, cost[nearer]
    return [Shape(tuple(parts[i]), *map(int, sizes[i])) for i in everyone if number[i]]
