"""What an optax transformation is here: linear or not, and what it is told."""

import inspect
from typing import Any

import numpy as np
import optax
from jaxtyping import Array, Float

from jaxkkt.numerics.tracing import require_traceable

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
    rule: optax.GradientTransformation,
    gradient: Any,
    state: Any,
    position: Any,
    *,
    log_loss: Array,
    **told: Any,
) -> tuple[Any, Any]:
    """The rule's updates and its next state, told as much beside the gradient as it takes.

    What optax calls `value`, the function whose gradient it is given, is log L. Raises ValueError
    for a rule that asks for more than there is, as for the loss at other weights.
    """
    rule = optax.with_extra_args_support(rule)
    told |= {"log_loss": log_loss, "value": log_loss}
    takes = inspect.signature(rule.update).parameters
    if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        told = {name: value for name, value in told.items() if name in takes}
    try:
        with require_traceable("the optimizer", ", and choose by jnp.where"):
            return rule.update(gradient, state, position, **told)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        raise ValueError(
            f"the optimizer's {error}. A rule is given the gradient of log L, the weights and, "
            "where it takes them, log_loss (or value), squared_norm and samples; one that asks for "
            "the loss or its gradient at other weights, as a line search does, cannot run here"
        ) from error
