"""What training costs in operations and memory, and how much memory there is."""

import os
from typing import Any

import jax

from jaxkkt.representations import Representation, samples_at_once, step_flops

# A step's elementwise passes over its (m, k) arrays cost about as much as this many operations
# of its matrix products (`python -m benchmarks.training`, the small sizes).
OPERATIONS_PER_ELEMENT = 64
# Share of a device's memory that all lanes may fill, in whole GiB; and the memory of a device that
# does not tell.
LANE_SHARE = 0.4
UNKNOWN_BYTES = {"cpu": 10 * 2**30, "gpu": 16 * 2**30, "tpu": 16 * 2**30}


def work(representation: Representation, m: Any, d: Any, k: Any) -> Any:
    """Operations of a step, of a size or of arrays of sizes."""
    products = step_flops(representation, samples=m, dim=d, width=k)
    return products + OPERATIONS_PER_ELEMENT * m * k


def slot_bytes(
    representation: Representation, m: int, batch: int, k: int, d: int, ball: bool
) -> int:
    """Memory of a slot, in the precision that JAX computes in."""
    # Gram: coefficients and preactivations with a gradient and a trace each, hidden outputs, and
    # the Gram matrix. Otherwise: weights, gradient and trace, in a ball the initial weights too,
    # and of a batch preactivations, hidden outputs and a gradient. Always the start, too.
    number = jax.dtypes.canonicalize_dtype(float).itemsize
    start = k * d + m * d
    if representation == "gram":
        return number * (7 * m * k + m * m + start)
    r = min(m, d) if representation == "span" else d
    return number * ((3 + ball) * k * r + 3 * samples_at_once(batch, k) * k + m * r + start)


def lane_bytes(device: Any) -> int:
    """Memory of a device that lanes may fill, from what it says of itself."""
    told = device.memory_stats() if hasattr(device, "memory_stats") else None
    limit = (told or {}).get("bytes_limit") or UNKNOWN_BYTES[device.platform]
    if device.platform == "cpu" and hasattr(os, "sysconf"):
        limit = min(limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(2**30, int(LANE_SHARE * limit) // 2**30 * 2**30)
