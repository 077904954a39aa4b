"""Which shapes share a compiled program: padding against compilation."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Compiling a bucket takes about as long as this many operations: shapes are merged when the
# padding that this adds costs less.
OPERATIONS_PER_COMPILATION = 1e11
# Padding of less than this is not worth a thought beside a compilation, whatever its share.
OPERATIONS_OF_NO_MATTER = 1e10


class Shape(NamedTuple):
    """Some of the runs' shapes, and one that holds them all."""

    parts: tuple[tuple[int, int, int], ...]
    m: int
    d: int
    k: int


def merge(
    counts: Mapping[tuple[int, int, int], int],
    work_of: Callable[..., Any],
    steps: int,
    allowed: float,
) -> tuple[list[Shape], float]:
    """The shapes in as few groups as pay, and the padding that is still allowed after that.

    Starting from one group a shape, the pair whose union adds the least padding is merged while
    that costs less than a compilation over `steps` steps and no more than is `allowed`, or does not
    matter. `counts` are the runs of every shape, `work_of` a step's operations of sizes m, d, k.
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
        if least * steps > OPERATIONS_OF_NO_MATTER:
            if least > allowed or least * steps > OPERATIONS_PER_COMPILATION:
                break
            allowed -= least
        parts[i] += parts[j]
        sizes[i] = np.maximum(sizes[i], sizes[j])
        number[i], number[j] = number[i] + number[j], 0
        work[i] = number[i] * work_of(*sizes[i])
        for changed in (i, j):
            cost[changed] = cost[:, changed] = added(changed, everyone)
    return [Shape(tuple(parts[i]), *map(int, sizes[i])) for i in everyone if number[i]], allowed
