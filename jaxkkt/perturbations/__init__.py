"""Perturbations that flip predictions: one direction for all samples, one gradient step, PGD."""

from jaxkkt.perturbations.gradient_steps import (
    GradientSteps,
    StepStatus,
    gradient_steps,
    input_gradient,
)
from jaxkkt.perturbations.pgd import Attack, pgd, robust_accuracy, smallest_radii
from jaxkkt.perturbations.universal import (
    ExactFlips,
    Flip,
    FlipStatus,
    flip_size_bisection,
    flip_sizes_exact,
    on_margin,
    transfer_matrix,
    universal_direction,
)

__all__ = [
    "Attack",
    "ExactFlips",
    "Flip",
    "FlipStatus",
    "GradientSteps",
    "StepStatus",
    "flip_size_bisection",
    "flip_sizes_exact",
    "gradient_steps",
    "input_gradient",
    "on_margin",
    "pgd",
    "robust_accuracy",
    "smallest_radii",
    "transfer_matrix",
    "universal_direction",
]
