"""A run between two steps."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.optimizers import LogLossTimeState
from jaxkkt.protocols import Protocol
from jaxkkt.representations import GramDataset, GramParams
from jaxkkt.stiffness import top_eigenvalue
from jaxkkt.training.status import Status


class State(NamedTuple):
    """A run between two steps. `log_loss` belongs to the position before the last update, and
    `level` is the log loss that it ended or paused for, once it has, -inf for a number of steps; of
    a flow that runs, that which it is led onto.

    `start` is w before the first step, where the protocol has a ball to stay in. Where it trains in
    mini-batches, `order` is that of the samples in this epoch, and `key` what orders are drawn by.
    By the points' `eigenvalue` a flow is told how stiff it is; see `jaxkkt.stiffness`.
    """

    position: Params | GramParams
    start: Float[Array, "k d"] | None
    optimizer: Any
    steps: Int[Array, ""]
    log_loss: Float[Array, ""]
    level: Float[Array, ""]
    status: Int[Array, ""]
    key: PRNGKeyArray | None
    order: Int[Array, " n"] | None
    eigenvalue: Float[Array, ""] | None


class Pause(NamedTuple):
    """Where a run is to pause next: at this log loss or below, or after so many steps.

    A run that is told of one, be it never, ends so that another can go on from there.
    """

    log_loss: Float[Array, ""]
    steps: Int[Array, ""]


def init(
    position: Params | GramParams,
    data: Dataset | GramDataset,
    protocol: Protocol,
    key: PRNGKeyArray,
) -> State:
    """The state before the first step, at a position and on data that `representations.encode`
    made."""
    dtype, samples = position.v.dtype, data.y.shape[0]
    optimizer = protocol.rule.transformation().init(position)
    flow = isinstance(optimizer, LogLossTimeState)
    # A copy, since the position's own memory is donated and written over.
    start = None if protocol.ball is None else jnp.array(position.w, copy=True)  # type: ignore[union-attr]
    batches = not protocol.full_batch(samples)
    order = jnp.zeros(samples + (protocol.batch_size or 0), jnp.int32) if batches else None
    return State(
        position=position,
        start=start,
        optimizer=optimizer,
        steps=jnp.zeros((), jnp.int32),
        log_loss=jnp.full((), jnp.inf, dtype),
        level=jnp.full((), -jnp.inf, dtype),
        status=jnp.array(int(Status.RUNNING), jnp.int32),
        key=key if batches else None,
        order=order,
        eigenvalue=top_eigenvalue(data, "b" in protocol.trained) if flow else None,
    )


def is_flow(state: Any) -> bool:
    """Whether a run of such a state is led onto its level."""
    return isinstance(state, State) and isinstance(state.optimizer, LogLossTimeState)
