"""Power laws fitted to measurements, and where an accuracy crosses 1/2."""

from typing import NamedTuple

import numpy as np
from scipy import stats

# A claim "~ d^a" holds where the fitted exponent is within TOLERANCE of a.
TOLERANCE = 0.15
CONFIDENCE = 0.95


class Fit(NamedTuple):
    """The exponent of a power law by least squares on logarithms, and its confidence interval."""

    exponent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"exponent {self.exponent:.2f} ({self.low:.2f} to {self.high:.2f})"


def fit(d: np.ndarray, values: np.ndarray) -> Fit | None:
    """log value = exponent log d + constant; None with fewer than three points that are positive.

    The interval is Student's, for errors that are independent from point to point.
    """
    d, values = np.broadcast_arrays(np.asarray(d, float), np.asarray(values, float))
    good = np.isfinite(values) & (values > 0)
    if good.sum() < 3 or len(set(d[good])) < 2:
        return None
    line = stats.linregress(np.log(d[good]), np.log(values[good]))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, good.sum() - 2) * line.stderr
    return Fit(line.slope, line.slope - reach, line.slope + reach)


def crossing(sizes: np.ndarray, accuracy: np.ndarray, rises: bool) -> float:
    """Where accuracy first rises above 1/2, or falls to it, between two sizes on logarithms.

    NaN where it does not. Sizes without an accuracy are left out.
    """
    there = np.isfinite(accuracy)
    sizes, accuracy = sizes[there], accuracy[there]
    above = accuracy > 0.5
    changes = np.flatnonzero((above[1:] != above[:-1]) & (above[1:] == rises))
    if not changes.size:
        return float("nan")
    i = changes[0]
    share = (accuracy[i] - 0.5) / (accuracy[i] - accuracy[i + 1])
    return float(np.exp(np.log(sizes[i]) + share * np.log(sizes[i + 1] / sizes[i])))
