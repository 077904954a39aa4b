"""Adversarial training in the lazy ball: Algorithm 1 of Wang et al. (2022)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt import datasets, networks
from jaxkkt.datasets import Dataset
from jaxkkt.lazy import project
from jaxkkt.networks import Params, value_and_pullback
from jaxkkt.outcomes import Outcome
from jaxkkt.perturbations import pgd
from jaxkkt.perturbations.pgd import STEPS
from jaxkkt.requirements import require_positive, require_precision


class AdversarialStatus(Outcome):
    """How adversarial training ended. `describe` gives each a sentence."""

    RUNNING = 0, "still training"
    SETTLED = 1, "robust training accuracy has stopped rising"
    EPOCH_CAP = 2, "robust training accuracy was still rising at the last epoch"
    NON_FINITE = 3, "the loss or a weight became NaN or infinite: lower the learning rate"


class AdversariallyTrained(NamedTuple):
    """params: the network after the last epoch, in the ball. epochs: how many were trained.

    accuracy, best: robust training accuracy of the last network attacked, and the largest.
    status: `AdversarialStatus`.
    """

    params: Params
    epochs: Int[Array, "*lanes"]
    accuracy: Float[Array, "*lanes"]
    best: Float[Array, "*lanes"]
    status: Int[Array, "*lanes"]


# The share of its least value by which the robust loss has to fall to count as progress.
FALL = 0.01


class _State(NamedTuple):
    params: Params
    epoch: Array
    accuracy: Array
    best: Array
    least_loss: Array
    since: Array
    status: Array


def adversarial_training(
    params: Params,
    x: Float[Array | np.ndarray, "n d"] | Sequence,
    y: Float[Array | np.ndarray, " n"] | Sequence,
    radius: float | Float[Array, ""],
    weight_radius: float | Float[Array, ""],
    key: PRNGKeyArray,
    *,
    biases: bool = False,
    learning_rate: float = 0.01,
    batch_size: int = 64,
    epochs: int = 100,
    patience: int = 10,
    attack_steps: int = STEPS,
    normalized: bool = False,
    judged_before_projecting: bool = False,
) -> AdversariallyTrained:
    """Descent on points moved by `pgd` within `radius`, projected onto a ball after each epoch.

    An epoch attacks all points, takes floor(n / batch_size) steps of learning_rate times the
    gradient of the logistic loss summed over a batch of the moved points, and projects every w_j
    onto the ball of radius V = `weight_radius` around its start, that of `params`. The lazy ball
    has V = C0 / sqrt(k). `radius` is a distance of inputs, V one of weights.

    Training stops when robust training accuracy has not risen for `patience` epochs, or after
    `epochs`. Below an accuracy of 1 a robust loss that falls by 1% counts as a rise, for at first
    no point is robust and accuracy stands still. The accuracy is that of projected networks; with
    `judged_before_projecting`, as in the code that was published with the paper, that of the
    network before its projection, for one more attack an epoch. The paper states neither batch_size
    nor patience. v is fixed, and b unless `biases`.

    Under `jax.vmap` over networks, both radii or keys a batch trains until its last lane stops.
    Raises ValueError for data or parameters that do not fit, and numbers that are out of range.
    Wang et al. (2022), Algorithm 1.
    """
    data = datasets.validate(x, y)
    networks.check_parameters(params, data.x.shape[1])
    require_precision(**params._asdict(), x=data.x)
    require_positive(radius=radius, weight_radius=weight_radius, learning_rate=learning_rate)
    for name, count in (("epochs", epochs), ("patience", patience), ("attack_steps", attack_steps)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    n = data.y.shape[0]
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size must be from 1 to the {n} samples, got {batch_size}")
    return _train(
        params,
        data,
        jnp.asarray(radius, params.w.dtype),
        jnp.asarray(weight_radius, params.w.dtype),
        key,
        jnp.asarray(learning_rate, params.w.dtype),
        jnp.asarray([epochs, patience, attack_steps], jnp.int32),
        batch_size,
        biases,
        normalized,
        judged_before_projecting,
    )


@partial(
    jax.jit,
    static_argnames=("batch_size", "biases", "normalized", "judged_before_projecting"),
)
def _train(
    start: Params,
    data: Dataset,
    radius: Array,
    weight_radius: Array,
    key: PRNGKeyArray,
    learning_rate: Array,
    counts: Array,
    batch_size: int,
    biases: bool,
    normalized: bool,
    judged_before_projecting: bool,
) -> AdversariallyTrained:
    epochs, patience, attack_steps = counts
    x, y = data
    n = x.shape[0]

    def attacked(params: Params) -> tuple[Array, Array, Array]:
        found = pgd(params, x, y, radius, attack_steps, normalized)
        loss = jnp.mean(jax.nn.softplus(-found.margins))
        return found.last, jnp.mean(found.margins > 0, dtype=x.dtype), loss

    def epoch(state: _State) -> _State:
        moved, accuracy, loss = attacked(state.params)
        order = jax.random.permutation(jax.random.fold_in(key, state.epoch), n)
        batches = order[: n // batch_size * batch_size].reshape(-1, batch_size)

        def descend(params: Params, rows: Array) -> tuple[Params, None]:
            return _descend(params, moved[rows], y[rows], learning_rate, biases), None

        params = jax.lax.scan(descend, state.params, batches)[0]
        if judged_before_projecting:
            _, accuracy, loss = attacked(params)
        finite = jnp.isfinite(networks.squared_norm(params)) & jnp.isfinite(loss)
        params = project(params, start, weight_radius)

        falling = (accuracy < 1) & (loss < state.least_loss * (1 - FALL))
        rose = (accuracy > state.best) | falling
        since = jnp.where(rose, 0, state.since + 1)
        settled = since >= patience
        status = jnp.where(settled, AdversarialStatus.SETTLED, AdversarialStatus.RUNNING)
        status = jnp.where(
            ~settled & (state.epoch + 1 >= epochs), AdversarialStatus.EPOCH_CAP, status
        )
        status = jnp.where(finite, status, AdversarialStatus.NON_FINITE).astype(jnp.int32)
        return _State(
            params=params,
            epoch=state.epoch + 1,
            accuracy=accuracy,
            best=jnp.maximum(accuracy, state.best),
            least_loss=jnp.minimum(loss, state.least_loss),
            since=since,
            status=status,
        )

    zero = jnp.zeros((), jnp.int32)
    nothing = jnp.zeros((), x.dtype)
    state = jax.lax.while_loop(
        lambda state: state.status == AdversarialStatus.RUNNING,
        epoch,
        _State(start, zero, nothing, nothing - 1, nothing + jnp.inf, zero, zero),
    )
    return AdversariallyTrained(state.params, state.epoch, state.accuracy, state.best, state.status)


def _descend(params: Params, x: Array, y: Array, learning_rate: Array, biases: bool) -> Params:
    """One step on the logistic loss summed over the points."""
    outputs, pullback = value_and_pullback(params, x)
    step = pullback(learning_rate * y * jax.nn.sigmoid(-y * outputs))
    return Params(params.w + step.w, params.b + step.b if biases else params.b, params.v)
