"""Clustered data: errors at fresh points, and the one direction that flips them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxkkt import mixtures, networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import lengths, round_up
from jaxkkt.numerics.requirements import require_points

# Sizes at which the share of flipped points is recorded, in units of sqrt(d/k).
SIZES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
CONFIDENCE = 0.95


class ClusterFlips(Measurement):
    """Test error, and what the direction of the clusters' means does to fresh points.

    The test error has a 95% confidence interval (Wilson's), for one draw of fresh points.

    u = sum_q y_q mu_q; x is flipped at size c where y N(x - y c u/|u|) < 0, and the sizes by which
    half and 99% have flipped are found exactly along the ray. Sizes and shares are of the fresh
    points that are classified correctly; the others are the test error.
    Errors and shares are NaN where an output is, and shares where no point is classified correctly
    or u = 0.
    Frei, Vardi, Bartlett, Srebro (2023), Theorems 3.1 and 4.2.
    """

    on_host: ClassVar[bool] = True  # pads to few round sizes itself, whatever the clusters are

    def measure(self, params: Params, test: Dataset, truth: mixtures.Truth) -> dict[str, Any]:
        require_points(test_x=test.x)
        u = np.asarray(mixtures.direction(truth.means, truth.labels))
        k = len(truth.means)
        norm = np.linalg.norm(u)
        at = np.asarray(SIZES) * np.sqrt(float(truth.d) / k)
        margins, moved, sizes = _along(params, test, u / norm if norm > 0 else u, at)
        right, broken = margins > 0, np.isnan(margins).any()
        sizes = np.sort(sizes[right])
        flipped = np.sum(moved[:, right] < 0, axis=1) / max(len(sizes), 1)
        nothing = len(sizes) == 0 or norm == 0  # to flip, or along which
        low, high = error_interval(int(np.sum(~right)), right.size)
        if broken:
            low = high = np.nan
        return {
            "test_error": np.nan if broken else np.mean(~right),
            "test_error_low": low,
            "test_error_high": high,
            "cluster_flip_half": of_share(sizes, 0.5),
            "cluster_flip_99": of_share(sizes, 0.99),
            "cluster_flipped": np.where(broken or nothing, np.nan, flipped),
            "direction_norm": norm,
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _ATTRIBUTES

    def axes(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        return {"cluster_flipped": {"cluster_flipped_at": SIZES}}


def error_interval(errors: int, points: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of a share that was `errors` of `points`."""
    from scipy.stats import binomtest  # here: slow to import

    interval = binomtest(errors, points).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _along(
    params: Params, test: Dataset, along: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The margins of the points, and those at the sizes `at`, a row each; and the size at which
    each point that is classified correctly first flips."""
    k, d = round_up(params.v.size), round_up(along.size)
    wide = networks.pad(Params(*map(jnp.asarray, params)), k, d)
    x = jnp.pad(jnp.asarray(test.x), ((0, 0), (0, d - along.size)))
    y, along = jnp.asarray(test.y), np.pad(along, (0, d - along.size)).astype(x.dtype)
    margins, bracket = networks.margins(wide, x, y), max(4 * float(jnp.max(lengths(x))), at[-1])
    found = perturbations.flip_sizes_exact(wide, x, y, along, margins > 0, bracket)
    moved = _moved(wide, x, y, along, at.astype(x.dtype))
    return np.asarray(margins), np.asarray(moved), np.asarray(found.sizes)


@jax.jit
def _moved(params: Params, x: Array, y: Array, along: Array, sizes: Array) -> Array:
    """y N(x - y c e) for every size c, a row each."""
    towards = y[:, None] * along[None]
    return jax.lax.map(lambda c: networks.margins(params, x - c * towards, y), sizes)


def of_share(ordered: np.ndarray, share: float) -> float:
    """The smallest size by which this share of the points has flipped."""
    place = int(np.ceil(share * len(ordered))) - 1
    return float(ordered[place]) if len(ordered) else np.nan


_LENGTH = "units of the input (|mu| = sqrt(d))"
_ATTRIBUTES = {
    "test_error": {"long_name": "share of fresh points that are misclassified", "units": "1"},
    "test_error_low": {
        "long_name": "test error, lower end of its 95% confidence interval (Wilson's)",
        "units": "1",
    },
    "test_error_high": {
        "long_name": "test error, upper end of its 95% confidence interval (Wilson's)",
        "units": "1",
    },
    "cluster_flip_half": {
        "long_name": "size along sum_q y_q mu_q by which half of the fresh points have flipped",
        "units": _LENGTH,
    },
    "cluster_flip_99": {
        "long_name": "size along sum_q y_q mu_q by which 99% of the fresh points have flipped",
        "units": _LENGTH,
    },
    "cluster_flipped": {
        "long_name": f"share of fresh points flipped at {', '.join(map(str, SIZES))} sqrt(d/k), "
        "the values of cluster_flipped_at",
        "units": "1",
    },
    "direction_norm": {"long_name": "|sum_q y_q mu_q|", "units": _LENGTH},
}
