"""Clustered data: errors at fresh points, and the one direction that flips them."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import mixtures, networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.measurements.flips import size_of_share
from jaxkkt.networks import Params

# Sizes at which the share of flipped points is recorded, in units of sqrt(d/k).
SIZES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


class ClusterFlips(Measurement):
    """Test error, and what the direction of the clusters' means does to fresh points.

    u = sum_q y_q mu_q; x is flipped at size c where y N(x - y c u/|u|) < 0, found exactly along the
    ray. Sizes are of the fresh points that are classified correctly; the others are the test error.
    Frei, Vardi, Bartlett, Srebro (2023), Theorems 3.1 and 4.2.
    """

    def measure(self, params: Params, test: Dataset, truth: mixtures.Truth) -> dict[str, Array]:
        x, y = test
        u = mixtures.direction(truth.means, truth.labels)
        right = networks.margins(params, x, y) > 0
        found = perturbations.flip_sizes_exact(params, x, y, u / jnp.linalg.norm(u), right)
        k, d = truth.means.shape
        sizes = jnp.asarray(SIZES, x.dtype) * jnp.sqrt(jnp.asarray(d / k, x.dtype))
        flipped = jnp.where(right[:, None], found.sizes[:, None] <= sizes[None], False)
        return {
            "test_error": jnp.mean(~right, dtype=x.dtype),
            "cluster_flip_half": size_of_share(found.sizes, right, 0.5),
            "cluster_flip_99": size_of_share(found.sizes, right, 0.99),
            "cluster_flipped": jnp.sum(flipped, axis=0, dtype=x.dtype)
            / jnp.sum(right, dtype=x.dtype),
            "direction_norm": jnp.linalg.norm(u),
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _ATTRIBUTES


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
