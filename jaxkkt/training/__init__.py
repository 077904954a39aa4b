"""Training one run: init, step, status. Everything is pure and meant to be vmapped over runs."""

from jaxkkt.training.ending import finish
from jaxkkt.training.evaluation import NEXT_STEP, Evaluation, evaluate, mini_batch
from jaxkkt.training.leading import lead, led, to_be_led
from jaxkkt.training.state import Pause, State, init, is_flow
from jaxkkt.training.status import SUCCEEDED, Status
from jaxkkt.training.steps import status_at, step
from jaxkkt.training.ways import advance, load, outcomes, unload

__all__ = [
    "NEXT_STEP",
    "SUCCEEDED",
    "Evaluation",
    "Pause",
    "State",
    "Status",
    "advance",
    "evaluate",
    "finish",
    "init",
    "is_flow",
    "lead",
    "led",
    "load",
    "mini_batch",
    "outcomes",
    "status_at",
    "step",
    "to_be_led",
    "unload",
]
