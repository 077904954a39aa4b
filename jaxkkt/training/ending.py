"""What becomes of a run's state as it ends: the edge of a ball, the loss of all samples."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import networks, representations
from jaxkkt.datasets import Dataset
from jaxkkt.losses import LOSSES, log_loss
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import ratio
from jaxkkt.protocols import Protocol
from jaxkkt.representations import GramDataset
from jaxkkt.training.evaluation import evaluate
from jaxkkt.training.state import State
from jaxkkt.training.status import Status
from jaxkkt.training.steps import at_cap, updated


def finish(state: State, data: Dataset | GramDataset, protocol: Protocol) -> State:
    """The state as its run ends: on the edge of a ball that it left, and with log L and status of
    all samples where the last step saw a mini-batch."""
    m, full = data.y.shape[0], protocol.full_batch(data.y.shape[0])
    if full and protocol.ball is None:
        return state
    assert isinstance(data, Dataset)
    real = data.y != 0

    def measured(state: State, size: int) -> tuple[Array, Array]:
        assert isinstance(state.position, Params)
        margins = data.y * _outputs(state.position, data.x, size)
        total, _ = log_loss(margins, LOSSES[protocol.loss], mask=real)
        return total, jnp.min(jnp.where(real, margins, jnp.inf))

    def on_edge(state: State) -> State:
        state = state._replace(position=_on_edge(state, data, protocol))
        at_once = representations.samples_at_once(m, state.position.v.size)
        return state._replace(log_loss=measured(state, at_once)[0]) if full else state

    if protocol.ball is not None:
        left = state.status == Status.LEFT_BALL
        state = jax.lax.cond(left, on_edge, lambda state: state, state)
    if full:
        return state
    total, least = measured(state, protocol.batch_size or 1)
    capped = (state.status == Status.STEP_CAP) | (state.status == Status.NOT_SEPARABLE)
    status = jnp.where(capped, at_cap(least), state.status).astype(jnp.int32)
    return state._replace(log_loss=total, status=status)


def _on_edge(state: State, data: Dataset, protocol: Protocol) -> Params:
    """Where the next step leaves the ball: |w_j + t u_j - start_j| = ball |v_j| for the first
    neuron j that leaves, by the root t in [0, 1] of a quadratic. Of a step that is not finite
    nothing is taken."""
    running = state._replace(status=jnp.array(int(Status.RUNNING), jnp.int32))
    after, _ = updated(running, evaluate(running, data, protocol).here, protocol)
    here, start = state.position, state.start
    assert isinstance(here, Params)
    assert start is not None
    assert protocol.ball is not None
    moved, step = here.w - start, after.w - here.w
    squared = (protocol.ball * here.v) ** 2
    leaves = jnp.sum((after.w - start) ** 2, axis=1) > squared
    largest = jnp.max(jnp.abs(step), axis=1)  # the square of a step itself may overflow
    step = ratio(step, largest[:, None])
    a, b = jnp.sum(step**2, axis=1), jnp.sum(moved * step, axis=1)
    c = jnp.minimum(jnp.sum(moved**2, axis=1) - squared, 0)
    root = jnp.sqrt(b**2 - a * c)
    # The form of the root that subtracts nothing.
    t = ratio(jnp.where(b > 0, ratio(-c, b + root), ratio(root - b, a)), largest)
    t = jnp.clip(jnp.min(jnp.where(leaves, t, 1)), 0, 1)

    def part(here: Array, there: Array) -> Array:
        return jnp.where(t > 0, here + t * (there - here), here)

    return jax.tree.map(part, here, after)


def _outputs(params: Params, x: Array, size: int) -> Array:
    """N(x) of all points, so many at a time: m k numbers may be more than there is memory for."""
    m, d = x.shape
    blocks = jnp.pad(x, ((0, -m % size), (0, 0))).reshape(-1, size, d)
    return jax.lax.map(partial(networks.apply, params), blocks).ravel()[:m]
