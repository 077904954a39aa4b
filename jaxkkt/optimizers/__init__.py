"""Optax transformations over grad log L that are told the log loss: flow, descent, and your own.

`training.step` passes each update more than optax's own: the gradient is that of log L, `log_loss`
(or `value`, as optax calls it) is log L, `squared_norm` is |grad log L|^2 over the parameters, and
`samples` the number of samples that L sums over. A step on L itself is
`exp(log learning_rate + log L) * grad log L`, which does not underflow at any loss.
"""

from jaxkkt.optimizers.descent import CountState, loss_scaled, paper_schedule
from jaxkkt.optimizers.flow import LARGEST, LogLossTimeState, log_loss_time
from jaxkkt.optimizers.linearity import (
    linear,
    require_linear,
    require_linear_steps,
    two_steps,
    updates_by,
)
from jaxkkt.optimizers.transformations import FlowTransformation, LinearTransformation, update

__all__ = [
    "LARGEST",
    "CountState",
    "FlowTransformation",
    "LinearTransformation",
    "LogLossTimeState",
    "linear",
    "log_loss_time",
    "loss_scaled",
    "paper_schedule",
    "require_linear",
    "require_linear_steps",
    "two_steps",
    "update",
    "updates_by",
]

# Names of runs say where a rule can be imported from: here, wherever it is written.
for _rule in (log_loss_time, loss_scaled, paper_schedule):
    _rule.__module__ = __name__
