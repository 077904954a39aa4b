"""What the engine trains by, whatever the kind of training: Protocol's own steps, or those that
another kind brings."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import representations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.representations import Representation
from jaxkkt.specs.training import Training
from jaxkkt.training.ending import finish
from jaxkkt.training.state import Pause, init
from jaxkkt.training.status import Status
from jaxkkt.training.steps import step


def load(
    protocol: Training,
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    representation: Representation,
) -> tuple[Any, Any]:
    """The state of a run before its first step, and the data as its steps read them."""
    if not isinstance(protocol, Protocol):
        own = _begun(protocol, protocol.begin(params, data, key), params)
        return Held(own, jnp.array(int(Status.RUNNING), jnp.int32)), data
    position, encoded = representations.encode(params, data, representation)
    return init(position, encoded, protocol, key), encoded


class Held(NamedTuple):
    """A run of an own kind of training between two steps: its state, and how the run stands, by
    what the state says or PAUSED."""

    own: Any
    status: Any

    @property
    def steps(self) -> Any:
        return self.own.steps

    @property
    def log_loss(self) -> Any:
        return self.own.log_loss


def advance(protocol: Training, state: Any, data: Any, pause: Pause | None) -> Any:
    """The state after one step; as it was where its status is not RUNNING.

    With a `pause` a run of an own kind of training pauses at the first state whose `log_loss` or
    `steps` have come so far, be it its last.
    """
    if isinstance(protocol, Protocol):
        return step(state, data, protocol, pause)

    def going(on: Array, after: Any, before: Any) -> Any:
        return jax.tree.map(partial(jnp.where, on), after, before)

    own, here = state.own, _standing(state.own, pause)
    after = _after(protocol, own, protocol.step(own, data))
    own = going(here == int(Status.RUNNING), after, own)
    held = Held(own, _standing(own, pause))
    return going(state.status == int(Status.RUNNING), held, state)


def _standing(own: Any, pause: Pause | None) -> Array:
    """How the run of a state stands: by its own status, or PAUSED here."""
    if pause is None:
        return own.status
    # At -inf there is no pause, though a loss of 0 comes to it.
    here = (own.log_loss <= pause.log_loss) & (pause.log_loss > -jnp.inf)
    here |= own.steps >= pause.steps
    here &= own.status != int(Status.DIVERGED)
    return jnp.where(here, int(Status.PAUSED), own.status).astype(jnp.int32)


def unload(
    protocol: Training,
    state: Any,
    encoded: Any,
    params: Params,
    data: Dataset,
    representation: Representation,
) -> tuple[Params, dict[str, Array]]:
    """The trained parameters, and how the run ended or stands."""
    more: dict[str, Array] = {}
    if isinstance(protocol, Protocol):
        state = finish(state, encoded, protocol)
        trained = representations.decode(state.position, params, data, representation)
    else:
        trained, more = state.own.params, outcomes(protocol, state.own)
    ended = {"log_loss": state.log_loss, "steps": state.steps, "status": state.status}
    return trained, {**more, **ended}


def outcomes(kind: Training, state: Any) -> dict[str, Array]:
    """What an own kind of training tells of a run's end; ValueError where that is no number by
    name."""
    found, name = kind.outcomes(state), f"`outcomes` of {type(kind).__name__}"
    if not isinstance(found, dict):
        raise ValueError(f"{name} must return a dictionary, got {type(found).__name__}")
    try:
        arrays = {key: jnp.asarray(value) for key, value in found.items()}
    except TypeError as error:
        raise ValueError(f"{name} must return numbers or arrays: {error}") from error
    for key, array in arrays.items():
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise ValueError(f"{name} returns {key!r} of {array.dtype}: return real numbers")
    return arrays


# What the engine reads of a state, beside `params`.
_READ = ("status", "steps", "log_loss")


def _begun(kind: Training, state: Any, params: Params) -> Any:
    """A state of an own kind of training, as arrays of the types that the engine reads."""
    wanted = ("params", *_READ)
    if not hasattr(state, "_replace") or not all(hasattr(state, name) for name in wanted):
        raise ValueError(
            f"`begin` of {type(kind).__name__} must return a NamedTuple with the fields "
            f"{', '.join(wanted)}, got {type(state).__name__} with "
            f"{', '.join(getattr(state, '_fields', ())) or 'none'}"
        )
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state.params)]
    if not isinstance(state.params, Params) or shapes != [leaf.shape for leaf in params]:
        raise ValueError(
            f"`begin` of {type(kind).__name__} must keep the shapes of the network's jk.Params"
        )
    return _typed(jax.tree.map(jnp.asarray, state), kind)


def _typed(state: Any, kind: Training) -> Any:
    for name in ("status", "steps"):
        if not jnp.issubdtype(jnp.result_type(getattr(state, name)), jnp.integer):
            raise ValueError(f"{name} of {type(kind).__name__} must be a whole number")
    dtypes = (jnp.int32, jnp.int32, state.params.w.dtype)
    typed = (jnp.asarray(getattr(state, name), t) for name, t in zip(_READ, dtypes, strict=True))
    return state._replace(**dict(zip(_READ, typed, strict=True)))


def _after(kind: Training, state: Any, after: Any) -> Any:
    """What a step made of a state; ValueError where that is of other shapes or types."""
    name = f"`step` of {type(kind).__name__}"
    returned: Any = jax.tree.structure(after)
    if returned != jax.tree.structure(state):
        raise ValueError(f"{name} must return what it is given, changed, got {returned}")
    after = jax.tree.map(jnp.asarray, _typed(after, kind))
    paths, new = jax.tree.leaves_with_path(state), jax.tree.leaves(after)
    for (path, was), now in zip(paths, new, strict=True):
        if (now.shape, now.dtype) != (was.shape, was.dtype):
            raise ValueError(
                f"{name} makes {now.dtype} of shape {now.shape} of {jax.tree_util.keystr(path)[1:]}"
                f", which was {was.dtype} of shape {was.shape}: each must keep its own"
            )
    return after
