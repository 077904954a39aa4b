"""The lazy regime: networks whose neurons stay in small balls around where they started.

f(x) = k^(-1/2) sum_j a_j relu(w_j . x), a_j = +-1 fixed, is a network with v_j = a_j / sqrt(k);
its initialization is `networks.lazy`. The lazy ball asks of every neuron j that
|w_j - w_j,0| <= C0 / sqrt(k) = C0 |v_j|. Wang et al. (2022), Definition 2.1.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxkkt.networks import Params, checked_network
from jaxkkt.numerics.arithmetic import lengths, ratio
from jaxkkt.numerics.requirements import one_or_each, require_not_negative, require_precision
from jaxkkt.protocols import Protocol
from jaxkkt.specs.base import Number
from jaxkkt.specs.optimizers import Descent, Flow

# Below what any network in a ball of sensible size reaches: the ball ends the run.
NO_TARGET = -1e30


def distances(params: Params, start: Params) -> Float[Array, " k"]:
    """|w_j - w_j,0| for every neuron. Raises ValueError for networks that do not fit together."""
    return lengths(_moved(params, start))


def project(
    params: Params,
    start: Params,
    weight_radius: float | Float[Array | np.ndarray, ""] | Float[Array | np.ndarray, " k"],
) -> Params:
    """The nearest network with |w_j - w_j,0| <= V = `weight_radius` for every j, each on its own.

    The radius is one for all neurons, or one for each. b and v stay as they are. Raises ValueError
    for networks that do not fit together, and a radius that is negative or not finite, or neither
    one nor one for each neuron.
    Wang et al. (2022), Algorithm 1, line 11, for V = C0 / sqrt(k).
    """
    require_not_negative(weight_radius=weight_radius)
    moved = _moved(params, start)
    largest = one_or_each("weight_radius", weight_radius, params.v, "neuron")[:, None]
    length = lengths(moved)[:, None]
    inside = start.w + moved * ratio(largest, length)
    return params._replace(w=jnp.where(length > largest, inside, params.w))


def _moved(params: Params, start: Params) -> Float[Array, "k d"]:
    """w - w_0."""
    params, start = checked_network(params), checked_network(start)
    require_precision(w=params.w, start=start.w)
    if params.w.shape != start.w.shape:
        raise ValueError(
            f"a network and its start must have the same shape, got w {params.w.shape} and "
            f"{start.w.shape}"
        )
    return params.w - start.w


def lazy_flow(
    ball: Number = 10.0, biases: bool = False, delta: Number = 0.02, max_steps: int = 20_000
) -> Protocol:
    """Gradient flow of the logistic loss in log-loss time, up to the edge of the ball.

    ball: C0. Moves w, and b with `biases`. The flow lowers log L at unit pace for as long as there
    is a gradient, so it comes to the edge of any ball, and is a descent's path there: descent
    itself slows down as the loss fades. `delta`: the step at the start, as in `jk.Flow`; the fewer
    steps lead to the edge of a small ball, the shorter they should be.
    """
    return Protocol(
        Flow(delta=delta),
        loss="logistic",
        trained=_trained(biases),
        ball=ball,
        target_log_loss=NO_TARGET,
        max_steps=max_steps,
        expected_steps=max(1, min(max_steps, _steps_guess(delta))),
    )


def lazy_sgd(
    ball: Number = 10.0,
    biases: bool = False,
    learning_rate: Number = 0.1,
    batch_size: int = 64,
    max_steps: int = 20_000,
) -> Protocol:
    """Stochastic descent on the mean logistic loss of a batch, up to the edge of the ball.

    Wang et al. (2022), Section 5.1, with a learning rate of 0.1; they state neither the batch size
    nor how long they wait for a network that stays in its ball: that is STEP_CAP here.
    """
    return Protocol(
        Descent(learning_rate=learning_rate, reduction="mean"),
        loss="logistic",
        batch_size=batch_size,
        trained=_trained(biases),
        ball=ball,
        target_log_loss=NO_TARGET,
        max_steps=max_steps,
        expected_steps=max(1, min(max_steps // 2, 3_000)),
    )


def _steps_guess(delta: Number) -> int:
    """For planning: what MNIST's networks take up to C0 = 10 to 40, by a step of the flow."""
    return 110 if isinstance(delta, jax.Array) else int(min(2 / delta + 10, 20_000))


def _trained(biases: bool) -> tuple[str, ...]:
    return ("w", "b") if biases else ("w",)
