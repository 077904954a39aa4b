"""One update of a run, and how the run stands before and after it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from jaxkkt import representations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.numerics.kernels import numbers_of, one_kernel
from jaxkkt.numerics.truths import any_of
from jaxkkt.optimizers import update
from jaxkkt.protocols import Protocol
from jaxkkt.representations import GramDataset
from jaxkkt.stiffness import fastest_rate
from jaxkkt.training.evaluation import Evaluation, evaluate
from jaxkkt.training.state import Pause, State, is_flow
from jaxkkt.training.status import Status

# The log L of a flow falls. One that has risen by ten times what it was at first, and a thousand,
# was thrown there where the gradient all but vanished, and steps do not lead back: without this
# such runs take all the steps that they may.
RISE, LEAST_RISE = 10, 1000


def step(
    state: State, data: Dataset | GramDataset, protocol: Protocol, pause: Pause | None = None
) -> State:
    """One update, or none where the run ends or pauses here: then it stays where it is.

    A flow ends on its target: where its next step might pass it, steps no longer than what is left
    lead it there. With a `pause` it ends before, and all of its state stays, so that it or another
    run goes on from there; `lead` takes it to its level.
    """
    evaluation, target = evaluate(state, data, protocol), protocol.target_log_loss
    numbers = numbers_of(state), numbers_of(evaluation)
    status, level = _standing(*numbers, target, protocol.max_steps, pause)
    return move(state._replace(level=level), evaluation, status, protocol, keep=pause is not None)


@one_kernel
def _standing(
    state: State, evaluation: Evaluation, target: Any, max_steps: Any, pause: Pause | None
) -> tuple[Array, Array]:
    """How a run stands by its target and most steps, and the level that it has ended for, or is
    led onto."""
    total, aim = evaluation.total, evaluation.aim
    # One that goes on from its pause has a level, too.
    leading = (state.level > -jnp.inf) if pause is None else jnp.array(False)
    level = jnp.where(leading, state.level, target).astype(state.level.dtype)
    if is_flow(state):
        there = (state.optimizer.stage == 0) & (total <= level)
        aim = jnp.where(leading, jnp.where(there, total, jnp.inf), aim)
    status = status_at(evaluation._replace(aim=aim), state.steps, max_steps, level)
    if is_flow(state):
        status = jnp.where(is_thrown(state, total), Status.DIVERGED, status).astype(jnp.int32)
    ended_for = jnp.where(leading | (status == Status.CONVERGED), level, -jnp.inf)
    if pause is not None:
        # A level below the target is not met because the next step aims beyond both.
        on_the_way = (pause.log_loss >= level) | (total <= pause.log_loss)
        met = (aim <= pause.log_loss) & on_the_way
        here = (met | (state.steps >= pause.steps)) & (status != Status.DIVERGED)
        status = jnp.where(here, Status.PAUSED, status).astype(jnp.int32)
        ended_for = jnp.where(here, jnp.where(met, pause.log_loss, -jnp.inf), ended_for)
    elif is_flow(state):
        begins = ~leading & (status == Status.CONVERGED) & (total > level)
        capped = at_cap(evaluation.here.min_margin)
        onward = jnp.where(state.steps >= max_steps, capped, Status.RUNNING)
        status = jnp.where(begins, onward, status).astype(jnp.int32)
    running = state.status == Status.RUNNING
    return status, jnp.where(running, ended_for, state.level).astype(state.level.dtype)


def is_thrown(state: State, total: Array) -> Array:
    """Whether a flow of this log L was thrown far above its first."""
    first = state.optimizer.first_log_loss
    return (state.steps > 0) & (total - first > LEAST_RISE + RISE * jnp.abs(first))


def status_at(
    evaluation: Evaluation, steps: Array, max_steps: int | Array, target: float | Array
) -> Array:
    """How a run stands after so many steps: RUNNING, or the `Status` that it ends with here."""
    here, reached = evaluation.here, evaluation.aim <= target
    status = jnp.where(steps >= max_steps, at_cap(here.min_margin), Status.RUNNING)
    status = jnp.where(here.dead, Status.STALLED, status)
    status = jnp.where(reached, Status.CONVERGED, status)
    return jnp.where(jnp.isfinite(here.log_loss), status, Status.DIVERGED).astype(jnp.int32)


def at_cap(min_margin: Array) -> Array:
    """STEP_CAP, or NOT_SEPARABLE where a sample is misclassified."""
    return jnp.where(min_margin > 0, Status.STEP_CAP, Status.NOT_SEPARABLE)


def move(
    state: State,
    evaluation: Evaluation,
    status: Array,
    protocol: Protocol,
    keep: bool = False,
) -> State:
    """The state after an update by this gradient, where the run and its `status` are RUNNING; else
    it stays where it is, with that status.

    With `keep` a run that stays keeps its optimizer's state and order, too.
    """
    moved, optimizer_state = updated(state, evaluation.here, protocol)
    leaving = None
    if protocol.ball is not None and state.start is not None:
        leaving = _outside(moved, state.start, protocol.ball)
    flow = is_flow(state)
    # A mini-batch's log loss is part of the state, a full batch's is not, and says where it is.
    keeps_loss = keep and evaluation.order is not None
    was = numbers_of(state if flow else state._replace(optimizer=None))
    chosen = numbers_of(optimizer_state) if flow else None
    numbers_after = one_kernel(partial(_numbers_after, keeps_loss))
    numbers = was, status, evaluation.total, leaving, chosen
    going, steps, log_loss, status, of_flow = numbers_after(*numbers)

    def stays(after: Any, before: Any) -> Any:
        return jax.tree.map(partial(jnp.where, going), after, before)

    # A run that stays needs its optimizer's state where another goes on from it (`keep`), or where
    # `finish` takes a part of its next step (a ball). A flow without either is spared the pass. Of
    # others the state always stays: jaxlib 0.12 rounds it differently where it does not.
    if flow:
        whole = keep or protocol.ball is not None
        trace = optimizer_state.trace
        trace = stays(trace, state.optimizer.trace) if whole else trace
        optimizer_state = of_flow._replace(trace=trace)
    else:
        optimizer_state = stays(optimizer_state, state.optimizer)
    return state._replace(
        position=stays(moved, state.position),
        optimizer=optimizer_state,
        steps=steps,
        log_loss=log_loss,
        status=status,
        order=stays(evaluation.order, state.order) if keep else evaluation.order,
    )


def _numbers_after(
    keeps_loss: bool,
    was: State,
    status: Array,
    total: Array,
    leaving: Array | None,
    optimizer: Any,
) -> tuple[Array, Array, Array, Array, Any]:
    """Whether a run goes on, and then its steps, log loss, status and a flow's numbers. One that
    stays `keeps_loss` of the steps before, or has that of where it is."""
    running = was.status == Status.RUNNING
    if leaving is not None:
        left = jnp.where(was.steps == 0, Status.LEFT_AT_ONCE, Status.LEFT_BALL)
        status = jnp.where((status == Status.RUNNING) & leaving, left, status)
    going = running & (status == Status.RUNNING)
    return (
        going,
        was.steps + going.astype(jnp.int32),
        jnp.where(going if keeps_loss else running, total, was.log_loss),
        jnp.where(running, status, was.status).astype(jnp.int32),
        jax.tree.map(partial(jnp.where, going), optimizer, was.optimizer),
    )


def updated(
    state: State,
    here: representations.Gradient,
    protocol: Protocol,
) -> tuple[Any, Any]:
    """The position after an update by this gradient, and the optimizer's state. A flow's step aims
    no lower than the level that it is led onto."""
    updates, optimizer_state = update(
        protocol.rule.transformation(),
        here.gradient,
        state.optimizer,
        state.position,
        log_loss=here.log_loss,
        squared_norm=here.squared_norm,
        samples=here.samples,
        **(_of_flow(state, here, protocol) if is_flow(state) else {}),
    )
    if protocol.fixed:  # not by weight decay either
        still = {name: jnp.zeros_like(getattr(updates, name)) for name in protocol.fixed}
        updates = updates._replace(**still)
    # Where an optimizer keeps its updates, as momentum does, a CPU would compute them twice. An
    # accelerator writes them and the position in one pass.
    if any(leaf.ndim for leaf in jax.tree.leaves(optimizer_state)):
        updates, optimizer_state = jax.lax.platform_dependent(
            (updates, optimizer_state),
            cpu=jax.lax.optimization_barrier,
            default=lambda same: same,
        )
    return optax.apply_updates(state.position, updates), optimizer_state


def _of_flow(state: State, here: representations.Gradient, protocol: Protocol) -> dict[str, Any]:
    """What a flow's update is told beside the gradient."""
    if "w" in protocol.fixed:  # then no mode is as fast
        return {"level": state.level}
    assert state.eigenvalue is not None
    rate = fastest_rate(state.position.v, state.eigenvalue, here.squared_norm)
    return {"level": state.level, "rate": rate}


def _outside(position: Params, start: Array, ball: float | Array) -> Array:
    """Whether a neuron is further from its start than its ball allows."""
    squared = jnp.sum((position.w - start) ** 2, axis=1)
    return any_of(squared > (ball * position.v) ** 2)
