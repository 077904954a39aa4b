"""What is recorded of a trained network: pure functions of (params, data) with named results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params


@dataclass(frozen=True)
class Measurement:
    """A named function (params, data) -> scalars, with the units and meaning of each.

    Samples with y = 0 are padding and must not count. `attributes` become the attributes of the
    variables in the results. `name` stands for the measurement and its settings in records.
    """

    name: str
    function: Callable[[Params, Dataset], dict[str, Array]]
    attributes: Mapping[str, Mapping[str, str]]


@cache
def flips(slack: float = 1.1) -> Measurement:
    """Samples on the margin, and the smallest size at which the universal direction flips them.

    Vardi et al. (2022), Section 6: q_i <= slack min q is on the margin, u = sum of y_i x_i over
    those, and the flip size c is the smallest with y_i N(x_i - y_i c u/|u|) < 0 for all of them.
    """

    def measure(params: Params, data: Dataset) -> dict[str, Array]:
        x, y = data
        real = y != 0
        count = jnp.sum(real)
        margins = networks.margins(params, x, y)
        smallest = jnp.min(jnp.where(real, margins, jnp.inf))
        chosen = perturbations.on_margin(margins, slack, mask=real)
        direction = perturbations.universal_direction(x, y, chosen)
        bisected = perturbations.flip_size_bisection(params, x, y, direction, chosen)
        exact = perturbations.flip_sizes_exact(params, x, y, direction, chosen)
        norm = networks.squared_norm(params)
        return {
            "flip_size": bisected.size,
            "flip_size_exact": exact.size,
            "flip_monotone": exact.monotone,
            "flip_status": exact.status,
            "on_margin_share": jnp.sum(chosen) / count,
            "off_margin_count": count - jnp.sum(chosen),
            "min_margin": smallest,
            "normalized_margin": smallest / norm,
            "squared_norm": norm,
        }

    return Measurement(f"flips(slack={slack:g})", measure, _FLIP_ATTRIBUTES)


_LENGTH = "units of the input (|x| = sqrt(d) for sphere data)"
_FLIP_ATTRIBUTES = {
    "flip_size": {
        "long_name": "smallest universal perturbation that flips all samples on the margin (c)",
        "units": _LENGTH,
        "method": "bisection",
    },
    "flip_size_exact": {
        "long_name": "smallest universal perturbation that flips all samples on the margin (c)",
        "units": _LENGTH,
        "method": "exact along the ray",
    },
    "flip_monotone": {
        "long_name": "1 where every sample stays flipped beyond its first flip",
        "units": "1",
    },
    "flip_status": {
        "long_name": "how the search for the flip size ended",
        "units": "1",
        "flag_values": ", ".join(str(s.value) for s in perturbations.FlipStatus),
        "flag_meanings": " ".join(s.name.lower() for s in perturbations.FlipStatus),
    },
    "on_margin_share": {"long_name": "share of samples on the margin", "units": "1"},
    "off_margin_count": {"long_name": "number of samples not on the margin", "units": "samples"},
    "min_margin": {"long_name": "smallest margin min_i q_i", "units": "1"},
    "normalized_margin": {"long_name": "min_i q_i / |theta|^2", "units": "1"},
    "squared_norm": {"long_name": "|theta|^2", "units": "1"},
}
