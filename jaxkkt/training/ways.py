"""What the engine trains by, whatever the kind of training."""

from functools import singledispatch
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from jaxkkt import representations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol, Training
from jaxkkt.representations import Representation
from jaxkkt.training.ending import finish
from jaxkkt.training.state import Pause, init
from jaxkkt.training.steps import step


@singledispatch
def load(
    protocol: Training,
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    representation: Representation,
) -> tuple[Any, Any]:
    """The state of a run before its first step, and the data as its steps read them.

    `load`, `advance` and `unload` are what the engine trains by. A kind of `Training` of its own
    registers all three, as `jaxkkt.adversarial` does. A state has the fields `status`, `steps` and
    `log_loss`; a run whose status is not RUNNING stays as it is.
    """
    raise ValueError(f"nothing trains by a {type(protocol).__name__}: register training.load")


@singledispatch
def advance(protocol: Training, state: Any, data: Any, pause: Pause | None) -> Any:
    """The state after one step; see `load`."""
    raise ValueError(f"nothing trains by a {type(protocol).__name__}: register training.advance")


@singledispatch
def unload(
    protocol: Training,
    state: Any,
    encoded: Any,
    params: Params,
    data: Dataset,
    representation: Representation,
) -> tuple[Params, dict[str, Array]]:
    """The trained parameters, and how the run ended or stands; see `load`."""
    raise ValueError(f"nothing trains by a {type(protocol).__name__}: register training.unload")


@load.register
def _(
    protocol: Protocol,
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    representation: Representation,
) -> tuple[Any, Any]:
    position, encoded = representations.encode(params, data, representation)
    return init(position, encoded, protocol, key), encoded


@advance.register
def _(protocol: Protocol, state: Any, data: Any, pause: Pause | None) -> Any:
    return step(state, data, protocol, pause)


@unload.register
def _(
    protocol: Protocol,
    state: Any,
    encoded: Any,
    params: Params,
    data: Dataset,
    representation: Representation,
) -> tuple[Params, dict[str, Array]]:
    state = finish(state, encoded, protocol)
    trained = representations.decode(state.position, params, data, representation)
    return trained, {"log_loss": state.log_loss, "steps": state.steps, "status": state.status}
