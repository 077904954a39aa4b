"""The smallest gradient steps that flip points which a network has not seen."""

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import lazy, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import lengths, root
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.numerics.truths import any_of
from jaxkkt.specs.fields import Number, described


class StepFlips(Measurement):
    """The smallest single gradient steps that flip test points: `perturbations.gradient_steps`.

    Means are over the test points that are classified correctly and flipped by a step within the
    bracket; the others are counted. With `published` they are over all test points and of the eta
    that the paper's published code finds, `perturbations.GradientSteps.published_eta`, for which
    the bracket has to reach |eta| = 5. Shares are NaN where an output is. Wang et al. (2022),
    Section 5.1.
    """

    bracket: Number = described("largest |delta| / |x| that is searched", default=1.0)
    published: bool = described("whether eta is counted as in the published code", default=False)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(bracket=self.bracket)

    def measure(self, params: Params, test: Dataset, start: Params) -> dict[str, Array]:
        x, y = test
        count = jnp.sum(y != 0)
        found = perturbations.gradient_steps(params, x, self.bracket)
        needing = found.needs_step(y)
        broken = any_of((y != 0) & jnp.isnan(found.output))
        flipped = needing & (found.status == perturbations.StepStatus.FLIPPED)
        norm = lengths(x)
        counted, eta, size = flipped, found.eta, found.size
        if self.published:
            eta = found.published_eta(y)
            counted, size = y != 0, eta * found.gradient_norm

        def mean(values: Array) -> Array:
            return jnp.mean(values, where=counted)

        moved = lazy.distances(params, start)
        neurons = any_of(start.w != 0, axis=1) | (start.b != 0) | (start.v != 0)
        return {
            "step_eta": mean(eta),
            "step_gradient_norm": mean(found.gradient_norm),
            "step_size": mean(size),
            "step_relative_size": mean(size / jnp.where(norm > 0, norm, 1)),
            "step_needed_share": jnp.where(broken, jnp.nan, jnp.sum(needing) / count),
            "step_flipped_share": jnp.where(broken, jnp.nan, jnp.sum(flipped) / jnp.sum(needing)),
            "furthest": jnp.max(moved) * root(jnp.sum(neurons), moved),
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _STEP_ATTRIBUTES


_STEP_ATTRIBUTES = {
    "step_eta": {
        "long_name": "smallest gradient step |eta| that flips, mean over the points that count",
        "units": "units of input squared an output",
    },
    "step_gradient_norm": {
        "long_name": "norm of the gradient in the input, mean over the points that count",
        "units": "outputs a unit of the input",
    },
    "step_size": {
        "long_name": "size |delta| of the smallest gradient step that flips, mean over the points "
        "that count",
        "units": "units of the input",
    },
    "step_relative_size": {
        "long_name": "|delta| / |x| of the smallest gradient step, mean over the points that count",
        "units": "1",
    },
    "step_needed_share": {
        "long_name": "share of test points classified correctly, which need a step to be flipped",
        "units": "1",
    },
    "step_flipped_share": {
        "long_name": "share of those that a step within the bracket flips",
        "units": "1",
    },
    "furthest": {
        "long_name": "largest distance of a neuron from its start times sqrt(k): C0 at the edge of "
        "the lazy ball",
        "units": "1",
    },
}
