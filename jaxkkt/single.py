"""Training one network, or a batch of them under `jax.vmap`: `train`, `train_through`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxkkt import datasets, training
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.numerics.derivatives import without_derivative
from jaxkkt.numerics.keys import key_of, unrolled
from jaxkkt.protocols import NO_TARGET, Protocol, flow_protocol
from jaxkkt.specs.training import Training
from jaxkkt.training import Status


class Result(NamedTuple):
    """A trained run: parameters, log L there, updates made, and how it ended (`Status`)."""

    params: Params
    log_loss: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]


def train(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence[Any],
    y: Float[Array | np.ndarray, " m"] | Sequence[Any],
    protocol: Training | None = None,
    key: PRNGKeyArray | None = None,
) -> Result:
    """Trains one network until its protocol's stopping rule; `flow_protocol()` by default.

    Under `jax.vmap` a batch of networks trains until the last one stops, each frozen at its own
    last step. `key` shuffles mini-batches, and is what another `jk.Training` draws by; it is needed
    for nothing else.
    Raises ValueError for data or parameters that do not fit; a run that fails says so in `status`.
    TypeError where its derivative is asked for: it has none, only what is computed of networks has.
    """
    protocol = flow_protocol() if protocol is None else protocol
    data = _checked(params, x, y, protocol, key)
    return _train(params, data, protocol, key_of(0) if key is None else key)


def train_through(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence[Any],
    y: Float[Array | np.ndarray, " m"] | Sequence[Any],
    levels: Sequence[float] | Float[Array | np.ndarray, " n"],
    protocol: Training | None = None,
    key: PRNGKeyArray | None = None,
) -> Result:
    """One run seen at several log losses: the `Result` has a leading axis over the n `levels`.

    Each entry is what `train` would return with that level as its target, the same run every time;
    the protocol's own target plays no part, and `max_steps` counts from the start of the run. A
    run that ends before a level shows how it ended from there on. One compilation serves all levels
    of the same number. Under `jax.vmap` a batch of networks waits at each level for its last one.
    Another `jk.Training` than a Protocol is seen at the first state whose `log_loss` is at a level
    or below, as CONVERGED, and ends by its own rule: `log_loss` says whether it came there.
    Raises ValueError as `train` does, and for levels that are not finite and falling, of which the
    shape alone is looked at where they are traced.
    """
    protocol = flow_protocol() if protocol is None else protocol
    data = _checked(params, x, y, protocol, key)
    dtype = params.v.dtype
    known = not isinstance(levels, jax.core.Tracer)
    with np.errstate(over="ignore"):  # told below
        targets: Any = (np if known else jnp).asarray(levels, dtype)
    falling = targets.ndim == 1 and targets.size > 0
    if falling and known:
        falling = bool((np.diff(targets) < 0).all() and np.isfinite(targets).all())
    if not falling:
        raise ValueError(
            f"levels must be log losses, finite in {dtype}, each below the one before, got "
            f"{np.asarray(levels).tolist() if known else levels}"
        )
    key = key_of(0) if key is None else key
    if isinstance(protocol, Protocol):
        protocol = replace(protocol, target_log_loss=NO_TARGET)
    return _train_through(params, data, jnp.asarray(targets), protocol, key)


def _checked(
    params: Params, x: Any, y: Any, protocol: Training, key: PRNGKeyArray | None
) -> Dataset:
    data = datasets.validate_for(params, x, y)
    m = data.y.shape[0]
    if not isinstance(protocol, Training):
        got = type(protocol).__name__
        raise ValueError(f"jk.train takes a jk.Protocol, or another jk.Training, got {got}")
    protocol.require_batches(m)
    if key is None and not isinstance(protocol, Protocol):
        raise ValueError(f"{type(protocol).__name__} may draw as it trains: give it a key")
    if key is None and not protocol.full_batch(m):
        raise ValueError(f"{m} samples train in mini-batches: give a key to shuffle with")
    if key is not None:
        unrolled(key)  # raises for what is none
    return data


# XLA's compiler for CPUs would end the process (jaxlib 0.10.2).
_HAS_NONE = "training has no derivative: differentiate what is computed of the trained network"


@jax.jit
@without_derivative(_HAS_NONE)
def _train(params: Params, data: Dataset, protocol: Training, key: PRNGKeyArray) -> Result:
    representation = protocol.representation_for(*data.x.shape)
    state, encoded = training.load(protocol, params, data, key, representation)
    state = jax.lax.while_loop(
        lambda state: state.status == Status.RUNNING,
        lambda state: training.advance(protocol, state, encoded, None),
        state,
    )
    trained, told = training.unload(protocol, state, encoded, params, data, representation)
    return Result(trained, told["log_loss"], told["steps"], told["status"])


@jax.jit
@without_derivative(_HAS_NONE)
def _train_through(
    params: Params, data: Dataset, levels: Array, protocol: Training, key: PRNGKeyArray
) -> Result:
    representation = protocol.representation_for(*data.x.shape)
    start, encoded = training.load(protocol, params, data, key, representation)
    paused, running = int(Status.PAUSED), int(Status.RUNNING)

    # The run itself never ends at a level, so that it goes on as if there had been none.
    def onward(state: Any, level: Array) -> tuple[Any, Result]:
        pause = training.Pause(level, jnp.array(jnp.iinfo(jnp.int32).max))
        state = jax.lax.while_loop(
            lambda state: state.status == Status.RUNNING,
            lambda state: training.advance(protocol, state, encoded, pause),
            state._replace(status=jnp.where(state.status == paused, running, state.status)),
        )
        there = training.lead(state, encoded, protocol)
        trained, told = training.unload(protocol, there, encoded, params, data, representation)
        met = told["status"] == Status.PAUSED
        status = jnp.where(met, int(Status.CONVERGED), told["status"])
        return state, Result(trained, told["log_loss"], told["steps"], status)

    return jax.lax.scan(onward, start, levels)[1]
