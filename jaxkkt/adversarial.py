"""Adversarial training in the lazy ball: Algorithm 1 of Wang et al. (2022)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt import datasets, training
from jaxkkt.datasets import Dataset
from jaxkkt.lazy import project
from jaxkkt.networks import Params, value_and_pullback
from jaxkkt.numerics.requirements import (
    require_not_negative,
    require_positive,
    require_whole,
)
from jaxkkt.numerics.truths import all_of
from jaxkkt.perturbations import pgd
from jaxkkt.perturbations.pgd import STEPS
from jaxkkt.specs.fields import Count, Number, described
from jaxkkt.specs.training import Training
from jaxkkt.training import Status

# The share of its least value by which the robust loss has to fall to count as progress.
FALL = 0.01


class AdversarialProtocol(Training):
    """Descent on points moved by `pgd` within `radius`, projected onto a ball after each epoch.

    An epoch attacks all points, takes floor(n / batch_size) steps of learning_rate times the
    gradient of the logistic loss summed over a batch of the moved points, and projects every w_j
    onto the ball of radius V = `weight_radius` around its start. The lazy ball has
    V = C0 / sqrt(k). `radius` is a distance of inputs, V one of weights. A radius of 0 trains on
    the points themselves, as a baseline.

    Training stops when robust training accuracy has not risen for `patience` epochs, or after
    `epochs`. Below an accuracy of 1 a robust loss that falls by 1% counts as a rise, for at first
    no point is robust and accuracy stands still. The accuracy is that of projected networks; with
    `judged_before_projecting`, as in the code that was published with the paper, that of the
    network before its projection, for one more attack an epoch. The paper states neither batch_size
    nor patience. v is fixed, and b unless `biases`.

    The variable `robust_training_accuracy` of a sweep's table is the largest over all epochs, while
    the network and all that is measured of it are those of the last.

    Raises ValueError for numbers that are out of range. Wang et al. (2022), Algorithm 1.
    """

    radius: Number = described("|delta| of the attacks", "units of the input", default=0.1)
    weight_radius: Number = described("V: largest distance of a neuron from its start", default=1.0)
    learning_rate: Number = described("learning rate", default=0.01)
    batch_size: int = described("samples of a step", "samples", default=64)
    epochs: Count = described("most epochs", "epochs", default=100)
    patience: Count = described(
        "epochs without a rise after which training stops", "epochs", default=10
    )
    attack_steps: Count = described("steps of an attack", "steps", default=STEPS)
    biases: bool = described("whether b is trained", default=False)
    normalized_attack: bool = described("whether attacks go along the unit gradient", default=False)
    judged_before_projecting: bool = described(
        "whether accuracy is that before projection", default=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(radius=self.radius)
        require_positive(weight_radius=self.weight_radius, learning_rate=self.learning_rate)
        for name in ("epochs", "patience", "attack_steps", "batch_size"):
            count = getattr(self, name)
            if not isinstance(count, jax.core.Tracer):
                require_whole(name, count, 1)

    @property
    def guessed_steps(self) -> int:
        return min(50, int(self.epochs))

    @property
    def gradients_per_step(self) -> int:
        return int(self.attack_steps) + 1

    @property
    def trained(self) -> tuple[str, ...]:
        return ("w", "b") if self.biases else ("w",)

    @property
    def label(self) -> str:
        return "adversarial"

    def full_batch(self, samples: int) -> bool:
        return True  # attacks see all samples at once

    def require_batches(self, samples: int) -> None:
        size = self.batch_size
        if size > samples:
            raise ValueError(f"batch_size must be from 1 to the {samples} samples, got {size}")

    def begin(self, params: Params, data: Dataset, key: PRNGKeyArray) -> "State":
        return init(params, key)

    def step(self, state: "State", data: Dataset) -> "State":
        return epoch(state, data, self)

    def outcomes(self, state: "State") -> dict[str, Array]:
        known = state.best >= 0  # it is -1 before the first epoch
        return {"robust_training_accuracy": jnp.where(known, state.best, jnp.nan)}

    def attributes(self) -> dict[str, dict[str, str]]:
        return {
            "log_loss": {
                "long_name": "natural logarithm of the loss summed over the samples, each moved by "
                "the last attack",
                "units": "1",
            },
            "steps": {"long_name": "epochs", "units": "1"},
            "robust_training_accuracy": {
                "long_name": "share of the samples classified after an attack, the largest of all "
                "epochs",
                "units": "1",
            },
        }


class AdversariallyTrained(NamedTuple):
    """params: the network after the last epoch, in the ball. epochs: how many were trained.

    accuracy, best: robust training accuracy of the last network attacked, and the largest.
    status: `Status`, SETTLED when accuracy has stopped rising, LAST_EPOCH where that was not yet
    certain at the last one. Means count both.
    """

    params: Params
    epochs: Int[Array, "*lanes"]
    accuracy: Float[Array, "*lanes"]
    best: Float[Array, "*lanes"]
    status: Int[Array, "*lanes"]


class State(NamedTuple):
    """A run between two epochs. `steps` are epochs, `log_loss` is that of the points attacked,
    summed over them."""

    params: Params
    start: Float[Array, "k d"]
    steps: Int[Array, ""]
    log_loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    best: Float[Array, ""]
    least_loss: Float[Array, ""]
    since: Int[Array, ""]
    status: Int[Array, ""]
    key: PRNGKeyArray


def init(params: Params, key: PRNGKeyArray) -> State:
    """The state before the first epoch."""
    count, number = jnp.zeros((), jnp.int32), jnp.zeros((), params.w.dtype)
    return State(
        params=params,
        start=jnp.array(params.w, copy=True),
        steps=count,
        log_loss=number + jnp.inf,
        accuracy=number,
        best=number - 1,
        least_loss=number + jnp.inf,
        since=count,
        status=count + int(Status.RUNNING),
        key=key,
    )


def epoch(state: State, data: Dataset, protocol: AdversarialProtocol) -> State:
    """One epoch."""
    x, y = data
    n, size = x.shape[0], protocol.batch_size

    def attacked(params: Params) -> tuple[Array, Array, Array]:
        attack = protocol.attack_steps
        found = pgd(params, x, y, protocol.radius, attack, protocol.normalized_attack)
        loss = jnp.sum(jax.nn.softplus(-found.margins))
        return found.last, jnp.mean(found.margins > 0, dtype=x.dtype), loss

    moved, accuracy, loss = attacked(state.params)
    order = jax.random.permutation(jax.random.fold_in(state.key, state.steps), n)
    batches = order[: n // size * size].reshape(-1, size)

    def descend(params: Params, rows: Array) -> tuple[Params, None]:
        return _descend(params, moved[rows], y[rows], protocol), None

    params = jax.lax.scan(descend, state.params, batches)[0]
    if protocol.judged_before_projecting:
        _, accuracy, loss = attacked(params)
    numbers = jnp.concatenate([loss[None], *(leaf.ravel() for leaf in params)])
    finite = all_of(jnp.isfinite(numbers))
    params = project(params, params._replace(w=state.start), protocol.weight_radius)

    falling = (accuracy < 1) & (loss < state.least_loss * (1 - FALL))
    since = jnp.where((accuracy > state.best) | falling, 0, state.since + 1)
    status = jnp.where(state.steps + 1 >= protocol.epochs, Status.LAST_EPOCH, Status.RUNNING)
    status = jnp.where(since >= protocol.patience, Status.SETTLED, status)
    status = jnp.where(finite, status, Status.DIVERGED).astype(jnp.int32)
    return State(
        params=params,
        start=state.start,
        steps=state.steps + 1,
        log_loss=jnp.log(loss),
        accuracy=accuracy,
        best=jnp.maximum(accuracy, state.best),
        least_loss=jnp.minimum(loss, state.least_loss),
        since=since.astype(jnp.int32),
        status=status,
        key=state.key,
    )


def adversarial_training(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    protocol: AdversarialProtocol,
    key: PRNGKeyArray,
) -> AdversariallyTrained:
    """Trains one network by `AdversarialProtocol`, until its stopping rule.

    Under `jax.vmap` over networks, numbers of the protocol or keys a batch trains until its last
    lane stops. Raises ValueError for data or parameters that do not fit, and another protocol.
    """
    if not isinstance(protocol, AdversarialProtocol):
        got = type(protocol).__name__
        raise ValueError(f"adversarial_training takes an AdversarialProtocol, got {got}")
    data = datasets.validate_for(params, x, y)
    protocol.require_batches(data.y.shape[0])
    return _train(params, data, protocol, key)


@jax.jit
def _train(
    start: Params, data: Dataset, protocol: AdversarialProtocol, key: PRNGKeyArray
) -> AdversariallyTrained:
    state = jax.lax.while_loop(
        lambda state: state.status == Status.RUNNING,
        lambda state: training.advance(protocol, state, data, None),
        training.load(protocol, start, data, key, "plain")[0],
    ).own
    return AdversariallyTrained(state.params, state.steps, state.accuracy, state.best, state.status)


def _descend(params: Params, x: Array, y: Array, protocol: AdversarialProtocol) -> Params:
    """One step on the logistic loss summed over the points."""
    outputs, pullback = value_and_pullback(params, x)
    step = pullback(protocol.learning_rate * y * jax.nn.sigmoid(-y * outputs))
    b = params.b + step.b if protocol.biases else params.b
    return Params(params.w + step.w, b, params.v)
