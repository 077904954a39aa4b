"""Training one run: init, step, status. Everything is pure and meant to be vmapped over runs."""

from functools import partial, singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt import networks, representations
from jaxkkt.arithmetic import ratio
from jaxkkt.datasets import Dataset
from jaxkkt.kernels import numbers_of, one_kernel
from jaxkkt.losses import LOSSES, log_loss
from jaxkkt.networks import Params
from jaxkkt.optimizers import LogLossTimeState
from jaxkkt.outcomes import Outcome
from jaxkkt.protocols import ALL_PARAMETERS, Protocol, Training
from jaxkkt.representations import GramDataset, GramParams, Representation


class Status(Outcome):
    """How a run stands or ended. `describe` gives each a sentence and a remedy."""

    RUNNING = 0, "still training"
    CONVERGED = 1, "the log loss reached the target"
    STEP_CAP = 2, "the step cap came before the target log loss: raise max_steps"
    NOT_SEPARABLE = (
        3,
        "a sample was still misclassified at the step cap: use a wider network or more steps, "
        "and look for equal points with opposite labels",
    )
    DIVERGED = (
        4,
        "the loss became NaN or infinite: lower the learning rate or delta, or use a wider "
        "network if no neuron is active on some sample",
    )
    STALLED = (
        5,
        "the gradient is exactly zero: no neuron is active on any sample that the loss weighs, or "
        "equal points with opposite labels cancel",
    )
    LEFT_BALL = (
        6,
        "a neuron came to the edge of the ball around its start: this is the network there",
    )
    LEFT_AT_ONCE = (
        7,
        "the first step would have taken a neuron out of the ball around its start: lower the "
        "learning rate or delta, or ask for a larger ball",
    )
    SETTLED = 8, "robust training accuracy has stopped rising"
    PAUSED = 9, "at a moment at which it is measured: it goes on from here"
    RAISED = (
        10,
        "its data or measurements raised an error, which `error` tells: mend what raised; the same "
        "sweep tries it again",
    )
    LAST_EPOCH = (
        11,
        "robust training accuracy still rose at the last epoch: raise epochs to see it settle",
    )


# A run that ended as its protocol meant it to; means are over these.
SUCCEEDED = (Status.CONVERGED, Status.LEFT_BALL, Status.SETTLED, Status.LAST_EPOCH)


class State(NamedTuple):
    """A run between two steps. `log_loss` belongs to the position before the last update, and
    `level` is the log loss that it ended or paused for, once it has, -inf for a number of steps; of
    a flow that runs, that which it is led onto.

    `start` is w before the first step, where the protocol has a ball to stay in. Where it trains in
    mini-batches, `order` is that of the samples in this epoch, and `key` what orders are drawn by.
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


class Pause(NamedTuple):
    """Where a run is to pause next: at this log loss or below, or after so many steps.

    A run that is told of one, be it never, ends so that another can go on from there.
    """

    log_loss: Float[Array, ""]
    steps: Int[Array, ""]


def init(
    position: Params | GramParams, protocol: Protocol, key: PRNGKeyArray, samples: int
) -> State:
    """The state before the first step on so many samples, at a position that
    `representations.encode` made."""
    dtype = position.v.dtype
    # A copy, since the position's own memory is donated and written over.
    start = None if protocol.ball is None else jnp.array(position.w, copy=True)  # type: ignore[union-attr]
    batches = not protocol.full_batch(samples)
    order = jnp.zeros(samples + (protocol.batch_size or 0), jnp.int32) if batches else None
    return State(
        position=position,
        start=start,
        optimizer=protocol.rule.transformation().init(position),
        steps=jnp.zeros((), jnp.int32),
        log_loss=jnp.full((), jnp.inf, dtype),
        level=jnp.full((), -jnp.inf, dtype),
        status=jnp.array(int(Status.RUNNING), jnp.int32),
        key=key if batches else None,
        order=order,
    )


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
        status = jnp.where(begins, Status.RUNNING, status).astype(jnp.int32)
    running = state.status == Status.RUNNING
    return status, jnp.where(running, ended_for, state.level).astype(state.level.dtype)


def is_flow(state: Any) -> bool:
    """Whether a run of such a state is led onto its level."""
    return isinstance(state, State) and isinstance(state.optimizer, LogLossTimeState)


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


def lead(state: State, data: Dataset | GramDataset, protocol: Protocol) -> State:
    """A flow at `state.level`, where it ended or paused for that: its next step might have passed
    it, and steps no longer than what is left lead within the shortest of it. It may end otherwise
    on the way."""
    if not is_flow(state):
        return state
    there = jax.lax.while_loop(
        lambda one: one.status == Status.RUNNING,
        lambda one: step(one, data, protocol),
        to_be_led(state),
    )
    return led(state, there)


def evaluate(state: State, data: Dataset | GramDataset, protocol: Protocol) -> Evaluation:
    """The gradient of the samples of the next step, all or a mini-batch, and their log loss."""
    loss, fixed = LOSSES[protocol.loss], _fixed(protocol)
    if protocol.full_batch(data.y.shape[0]):
        here = representations.gradient(state.position, data, loss, fixed)
        return Evaluation(here, here.log_loss, _aim(state, here.log_loss), None)
    assert isinstance(data, Dataset)
    batch, order, first, complete = _mini_batch(state, data, protocol)
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


def _fixed(protocol: Protocol) -> list[str]:
    return [name for name in ALL_PARAMETERS if name not in protocol.trained]


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
    moved, optimizer_state = _updated(state, evaluation.here, protocol)
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
    # `finish` takes a part of its next step (a ball).
    whole = keep or protocol.ball is not None
    if flow:
        trace = optimizer_state.trace
        trace = stays(trace, state.optimizer.trace) if whole else trace
        optimizer_state = of_flow._replace(trace=trace)
    elif whole:
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


def _updated(
    state: State,
    here: representations.Gradient,
    protocol: Protocol,
) -> tuple[Any, Any]:
    """The position after an update by this gradient, and the optimizer's state. A flow's step aims
    no lower than the level that it is led onto."""
    rule = optax.with_extra_args_support(protocol.rule.transformation())
    updates, optimizer_state = rule.update(
        here.gradient,
        state.optimizer,
        state.position,
        log_loss=here.log_loss,
        squared_norm=here.squared_norm,
        samples=here.samples,
        **({"level": state.level} if is_flow(state) else {}),
    )
    fixed = _fixed(protocol)
    if fixed:  # not by weight decay either
        updates = updates._replace(**{n: jnp.zeros_like(getattr(updates, n)) for n in fixed})
    # Where an optimizer keeps its updates, as momentum does, a CPU would compute them twice. An
    # accelerator writes them and the position in one pass.
    if any(leaf.ndim for leaf in jax.tree.leaves(optimizer_state)):
        updates, optimizer_state = jax.lax.platform_dependent(
            (updates, optimizer_state),
            cpu=jax.lax.optimization_barrier,
            default=lambda same: same,
        )
    return optax.apply_updates(state.position, updates), optimizer_state


def _outside(position: Params, start: Array, ball: float | Array) -> Array:
    """Whether a neuron is further from its start than its ball allows."""
    squared = jnp.sum((position.w - start) ** 2, axis=1)
    return jnp.any(squared > (ball * position.v) ** 2)


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
    status = jnp.where(capped, _at_cap(least), state.status).astype(jnp.int32)
    return state._replace(log_loss=total, status=status)


def _on_edge(state: State, data: Dataset, protocol: Protocol) -> Params:
    """Where the next step leaves the ball: |w_j + t u_j - start_j| = ball |v_j| for the first
    neuron j that leaves, by the root t in [0, 1] of a quadratic. Of a step that is not finite
    nothing is taken."""
    running = state._replace(status=jnp.array(int(Status.RUNNING), jnp.int32))
    after, _ = _updated(running, evaluate(running, data, protocol).here, protocol)
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
    # Of the two forms of the root the one that subtracts nothing.
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
    return init(position, protocol, key, data.y.size), encoded


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


def status_at(
    evaluation: Evaluation, steps: Array, max_steps: int | Array, target: float | Array
) -> Array:
    """How a run stands after so many steps: RUNNING, or the `Status` that it ends with here."""
    here, reached = evaluation.here, evaluation.aim <= target
    status = jnp.where(steps >= max_steps, _at_cap(here.min_margin), Status.RUNNING)
    status = jnp.where(here.dead, Status.STALLED, status)
    status = jnp.where(reached, Status.CONVERGED, status)
    return jnp.where(jnp.isfinite(here.log_loss), status, Status.DIVERGED).astype(jnp.int32)


def _at_cap(min_margin: Array) -> Array:
    return jnp.where(min_margin > 0, Status.STEP_CAP, Status.NOT_SEPARABLE)


def _mini_batch(
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
