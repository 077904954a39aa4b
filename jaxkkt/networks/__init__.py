"""Depth-2 ReLU networks: parameters, outputs and gradients, initializations, padding.

Letters: m samples, d input dimension, k width.
"""

from jaxkkt.networks.depth2 import (
    PRECISION,
    Params,
    apply,
    check_parameters,
    checked,
    checked_network,
    checked_samples,
    margins,
    pad,
    preactivations,
    relu,
    squared_norm,
    unpad,
    value_and_input_gradient,
    value_and_input_gradient_from,
    value_and_pullback,
    value_and_pullback_from,
)
from jaxkkt.networks.initializations import (
    Scale,
    Size,
    check_sizes,
    gaussian,
    lazy,
    torch_linear,
)

__all__ = [
    "PRECISION",
    "Params",
    "Scale",
    "Size",
    "apply",
    "check_parameters",
    "check_sizes",
    "checked",
    "checked_network",
    "checked_samples",
    "gaussian",
    "lazy",
    "margins",
    "pad",
    "preactivations",
    "relu",
    "squared_norm",
    "torch_linear",
    "unpad",
    "value_and_input_gradient",
    "value_and_input_gradient_from",
    "value_and_pullback",
    "value_and_pullback_from",
]
