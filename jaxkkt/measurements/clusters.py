"""Clustered data: errors at fresh points, and the one direction that flips them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from jaxkkt import mixtures, networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.specs.data import round_up

# Sizes at which the share of flipped points is recorded, in units of sqrt(d/k).
SIZES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


class ClusterFlips(Measurement):
    """Test error, and what the direction of the clusters' means does to fresh points.

    u = sum_q y_q mu_q; x is flipped at size c where y N(x - y c u/|u|) < 0, found exactly along the
    ray. Sizes are of the fresh points that are classified correctly; the others are the test error.
    Frei, Vardi, Bartlett, Srebro (2023), Theorems 3.1 and 4.2.
    """

    on_host: ClassVar[bool] = True  # pads to few round sizes itself, whatever the clusters are

    def measure(self, params: Params, test: Dataset, truth: mixtures.Truth) -> dict[str, Any]:
        u = np.asarray(mixtures.direction(*map(jnp.asarray, (truth.means, truth.labels))))
        k, d = truth.means.shape
        right, sizes = _sizes(params, test, u / np.linalg.norm(u))
        sizes = np.sort(sizes[right])
        at = np.asarray(SIZES) * np.sqrt(d / k)
        return {
            "test_error": np.mean(~right),
            "cluster_flip_half": _of_share(sizes, 0.5),
            "cluster_flip_99": _of_share(sizes, 0.99),
            "cluster_flipped": np.searchsorted(sizes, at, side="right") / max(len(sizes), 1),
            "direction_norm": np.linalg.norm(u),
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _ATTRIBUTES


def _sizes(params: Params, test: Dataset, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which points are classified correctly, and the size at which each first flips."""
    k, d = round_up(params.v.size), round_up(along.size)
    wide = networks.pad(Params(*map(jnp.asarray, params)), k, d)
    x = jnp.pad(jnp.asarray(test.x), ((0, 0), (0, d - along.size)))
    y, along = jnp.asarray(test.y), np.pad(along, (0, d - along.size))
    right = networks.margins(wide, x, y) > 0
    bracket = 4 * jnp.max(jnp.linalg.norm(x, axis=1))
    found = perturbations.flip_sizes_exact(wide, x, y, along.astype(x.dtype), right, bracket)
    return np.asarray(right), np.asarray(found.sizes)


def _of_share(ordered: np.ndarray, share: float) -> float:
    """The smallest size by which this share of the points has flipped."""
    place = int(np.ceil(share * len(ordered))) - 1
    return float(ordered[place]) if len(ordered) else np.nan


_LENGTH = "units of the input (|mu| = sqrt(d))"
_ATTRIBUTES = {
    "test_error": {"long_name": "share of fresh points that are misclassified", "units": "1"},
    "cluster_flip_half": {
        "long_name": "size along sum_q y_q mu_q by which half of the fresh points have flipped",
        "units": _LENGTH,
    },
    "cluster_flip_99": {
        "long_name": "size along sum_q y_q mu_q by which 99% of the fresh points have flipped",
        "units": _LENGTH,
    },
    "cluster_flipped": {
        "long_name": f"share of fresh points flipped at {', '.join(map(str, SIZES))} sqrt(d/k)",
        "units": "1",
    },
    "direction_norm": {"long_name": "|sum_q y_q mu_q|", "units": _LENGTH},
}
