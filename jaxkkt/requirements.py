"""What numbers have to be, checked where they are known: not under a transformation's trace."""

import jax
import numpy as np


def require_positive(**numbers: object) -> None:
    """Raises ValueError unless all numbers, or arrays of them, are positive and finite."""
    for name, number in numbers.items():
        if isinstance(number, jax.core.Tracer):
            continue
        values = np.ravel(np.asarray(number, float))
        bad = values[~((values > 0) & np.isfinite(values))]
        if bad.size:
            raise ValueError(f"{name} must be positive and finite, got {bad[0]:g}")
