"""What a step reads: the gradient of its samples, and their log loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkkt import representations
from jaxkkt.datasets import Dataset
from jaxkkt.losses import LOSSES
from jaxkkt.optimizers import LogLossTimeState
from jaxkkt.protocols import Protocol
from jaxkkt.representations import GramDataset
from jaxkkt.training.state import State
from jaxkkt.training.status import Status

# How many times as long as the last a flow's next step is at most, but for those below delta, and
# for a delta above 0.1, with which a run may end further beyond its level.
NEXT_STEP = 1.5


class Evaluation(NamedTuple):
    """The gradient where a run stands, and the log loss that its stopping rule reads.

    `total` is log L of the batches of this epoch so far, `aim` the log loss by which the run ends
    or pauses: that of all samples, or infinity where it is not known; of a flow, that to which the
    next step may come. `order` is that of the samples in this epoch.
    """

    here: representations.Gradient
    total: Float[Array, ""]
    aim: Float[Array, ""]
    order: Int[Array, " n"] | None


def evaluate(state: State, data: Dataset | GramDataset, protocol: Protocol) -> Evaluation:
    """The gradient of the samples of the next step, all or a mini-batch, and their log loss."""
    loss, fixed = LOSSES[protocol.loss], protocol.fixed
    if protocol.full_batch(data.y.shape[0]):
        here = representations.gradient(state.position, data, loss, fixed)
        return Evaluation(here, here.log_loss, _aim(state, here.log_loss), None)
    assert isinstance(data, Dataset)
    batch, order, first, complete = mini_batch(state, data, protocol)
    here = representations.gradient(state.position, batch, loss, fixed)
    total = jnp.where(first, here.log_loss, jnp.logaddexp(state.log_loss, here.log_loss))
    here = here._replace(dead=jnp.array(False))  # other batches may have a gradient
    return Evaluation(here, total, jnp.where(complete, total, jnp.inf), order)


def _aim(state: State, log_loss: Array) -> Array:
    """See `Evaluation`. A flow's step is not left half done, for its network would be undamped. The
    next is told from the last, for its size is chosen only in the update."""
    flow = state.optimizer
    if not isinstance(flow, LogLossTimeState):
        return log_loss
    return jnp.where(flow.stage == 0, log_loss - NEXT_STEP * flow.h, jnp.inf)


def mini_batch(
    state: State, data: Dataset, protocol: Protocol
) -> tuple[Dataset, Array, Array, Array]:
    """The batch at this step, its epoch's order, and whether it is the epoch's first and last."""
    size, key = protocol.batch_size, state.key
    assert size is not None
    assert key is not None
    assert state.order is not None
    m = data.y.shape[0]
    real = data.y != 0
    batches = -(-jnp.sum(real, dtype=jnp.int32) // size)
    epoch, i = state.steps // batches, state.steps % batches

    def shuffled(_: Any) -> tuple[Array, Array]:
        draws = jax.random.uniform(jax.random.fold_in(key, epoch), (m,))
        order = jnp.argsort(jnp.where(real, draws, 2.0)).astype(jnp.int32)  # padding last
        return jnp.array(False), jnp.pad(order, (0, size), constant_values=m)

    # A loop is skipped by a batch of runs, too, where a condition computes both its sides.
    begins = (i == 0) & (state.status == Status.RUNNING)
    _, order = jax.lax.while_loop(lambda carry: carry[0], shuffled, (begins, state.order))
    rows = jax.lax.dynamic_slice(order, (i * size,), (size,))
    batch = Dataset(  # beyond the data: zeros
        jnp.take(data.x, rows, axis=0, mode="fill", fill_value=0),
        jnp.take(data.y, rows, mode="fill", fill_value=0),
    )
    return batch, order, i == 0, i == batches - 1
