"""Samples on the margin, and the universal direction that flips them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import lengths
from jaxkkt.numerics.truths import all_of
from jaxkkt.perturbations import FlipStatus
from jaxkkt.perturbations.rays import first_common
from jaxkkt.perturbations.universal import require_slack
from jaxkkt.specs.fields import Number, described

# Slacks at which `Flips` looks beside its own, those next to the default one after it, and the
# shares of the samples on the margin that it asks to be flipped.
SLACKS = (1.1, 1.15, 1.2, 1.05)
SHARES = {"half": 0.5, "90": 0.9, "99": 0.99}


class Flips(Measurement):
    """Samples on the margin, and the smallest sizes at which the universal direction flips them.

    Vardi et al. (2022), Section 6: q_i <= slack min q is on the margin, u = sum of y_i x_i over
    those, and the flip size c is the smallest with y_i N(x_i - y_i c u/|u|) < 0 for all of them.
    c jumps where one sample crosses the slack. So the sizes at which half, 90% and 99% of those
    samples have flipped are recorded too, and the smallest c over slacks from 1.05 to 1.2, each
    with its own samples and direction.
    """

    slack: Number = described("on the margin: q <= slack min q", default=1.1)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_slack(self.slack)

    def measure(self, params: Params, data: Dataset) -> dict[str, Array]:
        x, y = data
        real = y != 0
        count = jnp.sum(real)
        margins = networks.margins(params, x, y)
        smallest = jnp.min(jnp.where(real, margins, jnp.inf))
        chosen = perturbations.on_margin(margins, self.slack, mask=real)
        direction = perturbations.universal_direction(x, y, chosen)
        norm = networks.squared_norm(params)
        exact = perturbations.flip_sizes_exact(params, x, y, direction, chosen)

        pre = networks.preactivations(params, x)
        longest = 4 * jnp.max(lengths(x))

        def least(before: tuple[Array, Array], slack: Array) -> Any:
            others, best = before
            now = perturbations.on_margin(margins, slack, mask=real)

            def search(_: None) -> Array:
                towards = perturbations.universal_direction(x, y, now)
                along = jnp.dot(params.w, towards, precision=networks.PRECISION)
                # A size that is no smaller than the best is not looked for.
                bracket = jnp.where((best > 0) & (best < jnp.inf), best, longest)
                size = first_common(pre, along, params.v, y, now, bracket)
                return jnp.where(all_of(towards == 0), jnp.nan, size)

            # Slacks with the same samples have the same flips.
            same = all_of(now == others)
            size = jax.lax.cond(same, lambda _: best, search, None)
            return (now, jnp.fmin(best, size)), size

        ordered = jnp.sort(jnp.where(chosen, exact.sizes, jnp.nan))  # NaN last
        slacks = jnp.asarray((self.slack, *SLACKS), margins.dtype)
        none = jnp.zeros_like(real), jnp.full((), jnp.nan, margins.dtype)
        (_, smallest_size), sizes = jax.lax.scan(least, none, slacks)
        # Early networks bend so much that no sample stays flipped, as bisection expects.
        smallest_size = jnp.fmin(smallest_size, exact.size)
        known = exact.status != FlipStatus.NON_FINITE
        smallest_size, sizes = (jnp.where(known, a, jnp.nan) for a in (smallest_size, sizes))
        return {
            "flip_size": sizes[0],
            "flip_size_exact": exact.size,
            "flip_size_least": smallest_size,
            **{
                f"flip_size_{name}": _size_of_share(ordered, jnp.sum(chosen), share)
                for name, share in SHARES.items()
            },
            "flip_monotone": exact.monotone,
            "flip_status": exact.status,
            "on_margin_share": jnp.sum(chosen) / count,
            "off_margin_count": count - jnp.sum(chosen),
            "min_margin": smallest,
            "normalized_margin": smallest / norm,
            "squared_norm": norm,
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _FLIP_ATTRIBUTES


def _size_of_share(ordered: Array, count: Array, share: float) -> Array:
    """The smallest size by which this share of `count` samples has flipped."""
    place = jnp.ceil(share * count.astype(ordered.dtype)).astype(count.dtype) - 1
    return jnp.where(count > 0, ordered[jnp.maximum(place, 0)], jnp.nan)


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
    "flip_size_least": {
        "long_name": "smallest c over slacks of 1.05, 1.1, 1.15, 1.2 and the measurement's own",
        "units": _LENGTH,
        "method": "bisection along each slack's ray, and the exact size along its own",
    },
    **{
        f"flip_size_{name}": {
            "long_name": f"size by which {share:.0%} of the samples on the margin have flipped",
            "units": _LENGTH,
            "method": "exact along the ray, first flips",
        }
        for name, share in SHARES.items()
    },
    "flip_monotone": {
        "long_name": "1 where every sample stays flipped beyond its first flip",
        "units": "1",
    },
    "flip_status": {
        "long_name": "how the search for the flip size ended",
        "units": "1",
        **FlipStatus.flags(),
    },
    "on_margin_share": {"long_name": "share of samples on the margin", "units": "1"},
    "off_margin_count": {"long_name": "number of samples not on the margin", "units": "samples"},
    "min_margin": {"long_name": "smallest margin min_i q_i", "units": "1"},
    "normalized_margin": {"long_name": "min_i q_i / |theta|^2", "units": "1"},
    "squared_norm": {"long_name": "|theta|^2", "units": "1"},
}
