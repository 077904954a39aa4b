"""A flow is led onto the level that it ended for."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxkkt.protocols import Protocol
from jaxkkt.specs.training import Training
from jaxkkt.training.state import State, is_flow
from jaxkkt.training.status import Status
from jaxkkt.training.steps import step


def to_be_led(state: State) -> State:
    """The state of a flow that has ended or paused, RUNNING where `step` without a pause is to lead
    it onto the level that it ended for; STEP_CAP where it is not."""
    met = (state.status == Status.CONVERGED) | (state.status == Status.PAUSED)
    met &= (state.log_loss > state.level) & (state.level > -jnp.inf)
    return state._replace(status=jnp.where(met, Status.RUNNING, Status.STEP_CAP).astype(jnp.int32))


def led(state: State, there: State) -> State:
    """The state `there` as the one before ended, or as it ended on the way."""
    otherwise = to_be_led(state).status == Status.RUNNING
    otherwise &= there.status != Status.CONVERGED
    return there._replace(status=jnp.where(otherwise, there.status, state.status))


def lead(state: Any, data: Any, protocol: Training) -> Any:
    """A flow at `state.level`, where it ended or paused for that: its next step might have passed
    it, and steps no longer than what is left lead within the shortest of it. It may end otherwise
    on the way. Nothing else than a flow is led."""
    if not isinstance(protocol, Protocol) or not is_flow(state):
        return state
    there = jax.lax.while_loop(
        lambda one: one.status == Status.RUNNING,
        lambda one: step(one, data, protocol),
        to_be_led(state),
    )
    return led(state, there)
