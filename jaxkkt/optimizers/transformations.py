"""What an optax transformation is here: linear or not, and what it is told."""

import inspect
from typing import Any

import numpy as np
import optax
from jaxtyping import Array, Float

Real = float | Float[Array | np.ndarray, ""]


class LinearTransformation(optax.GradientTransformationExtraArgs):
    """An update that is a combination of the gradients so far.

    Its coefficients depend on the step count, `log_loss` and `squared_norm` alone, so the same
    transformation moves any linear image of the weights exactly as it moves the weights.
    `training` trains such optimizers in fewer coordinates (see `representations`).
    """


class FlowTransformation(LinearTransformation):
    """One whose steps follow log L of all samples: it takes no mini-batches."""


def update(
    rule: optax.GradientTransformation, gradient: Any, state: Any, position: Any, **told: Any
) -> tuple[Any, Any]:
    """The rule's updates and its next state, told as much beside the gradient as it takes."""
    rule = optax.with_extra_args_support(rule)
    takes = inspect.signature(rule.update).parameters
    if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        told = {name: value for name, value in told.items() if name in takes}
    return rule.update(gradient, state, position, **told)
