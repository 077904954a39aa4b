"""The compiled functions that train a bucket's lanes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import networks, training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.devices import device, settings, using
from jaxkkt.engine.draws import draw
from jaxkkt.engine.measuring import compile_measurements
from jaxkkt.networks import Params
from jaxkkt.protocols import Training
from jaxkkt.representations import Representation
from jaxkkt.runs.run import Run
from jaxkkt.specs.data import round_up
from jaxkkt.training import Pause, Status


class Lane(NamedTuple):
    """What a lane holds: a run's state, its data as steps read them, how it trains, and where it
    pauses next, where runs of its bucket do. Stacked, one of each a lane."""

    state: Any
    data: Any
    protocol: Training
    pause: Pause | None


class Programs(NamedTuple):
    """A bucket's compiled functions.

    `idle` makes a batch of empty lanes, `place` puts a run on one of them, `advance` trains all,
    `decode` takes one out, `resume` lets one go on that has paused.
    """

    idle: Callable[[], Lane]
    place: Callable[..., Lane]
    advance: Callable[..., tuple[Lane, Array]]
    decode: Callable[..., tuple[Params, dict[str, Array]]]
    resume: Callable[..., Lane] | None


def compile_bucket(bucket: Bucket) -> Programs:
    """Compiles what `run_bucket` needs; may run in another thread, ahead of its turn.

    Draws and measurements are compiled beside, in a thread of their own. What raises there raises
    again where it is the turn of its run.
    """
    here, place = settings(), device()

    def beside() -> None:
        with using(here, place), suppress(Exception):
            draw(bucket.runs[0])
            for run in bucket.kinds():
                compile_measurements(run, bucket.measured_at)

    with ThreadPoolExecutor(1) as other:
        measurements = other.submit(beside)
        programs = _compile_training(bucket)
        measurements.result()
    return programs


def _compile_training(bucket: Bucket) -> Programs:
    number = jax.ShapeDtypeStruct((), jnp.int32)
    params, data = _shapes(bucket.samples, bucket.d, bucket.width)
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = numbers_of(bucket.runs[0])
    protocol, pause = one
    load = partial(_load, representation=bucket.representation)
    lane = jax.eval_shape(load, params, data, key, protocol, pause)
    batch = jax.tree.map(lambda a: _shape(bucket.lanes, *a.shape, dtype=a.dtype), lane)
    fixed: dict[str, Any] = {"representation": bucket.representation}
    resume = None if pause is None else _resume.lower(batch, number, pause).compile()
    return Programs(
        idle=partial(_idle, batch),
        place=_place.lower(batch, number, params, data, key, protocol, pause, **fixed).compile(),
        advance=_advance.lower(batch, number, number).compile(),
        decode=_decode.lower(batch, number, params, data, **fixed).compile(),
        resume=resume,
    )


def numbers_of(run: Run, moment: int = 0) -> tuple[Training, Pause | None]:
    """How a run trains, and its pause at this moment of its curve, as arrays of the lane's types.

    Past the last moment there is no more pause.
    """

    def array(leaf: Any) -> np.ndarray:
        whole = np.issubdtype(np.asarray(leaf).dtype, np.integer)
        return np.asarray(leaf, np.int32 if whole else jax.dtypes.canonicalize_dtype(float))

    if run.curve is None:
        return jax.tree.map(array, run.protocol), None
    after = [*run.curve.moments[moment:], None][0]
    by_loss = run.curve.dimension == "level"
    level = -np.inf if after is None or not by_loss else after
    step = np.iinfo(np.int32).max if after is None or by_loss else int(after)
    pause: Any = Pause(np.asarray(level, float), np.asarray(step))  # type: ignore[arg-type]
    return jax.tree.map(array, (run.protocol, pause))


def _shape(*shape: int, dtype: Any = None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype or jax.dtypes.canonicalize_dtype(float))


def _shapes(m: int, d: int, k: int) -> tuple[Any, Any]:
    return Params(_shape(k, d), _shape(k), _shape(k)), Dataset(_shape(m, d), _shape(m))


def _load(
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    protocol: Training,
    pause: Pause | None,
    *,
    representation: Representation,
) -> Lane:
    protocol = jax.tree.map(jnp.asarray, protocol)
    state, encoded = training.load(protocol, params, data, key, representation)
    return Lane(state, encoded, protocol, pause)


def _idle(batch: Lane) -> Lane:
    """Arrays of the shapes in `batch`, in which no lane is running."""

    def zeros(spec: Any) -> Any:
        if jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), spec.shape)
        return jax.device_put(np.zeros(spec.shape, spec.dtype))  # compiles nothing

    lanes = jax.tree.map(zeros, batch)
    ended = lanes.state.status + int(Status.STEP_CAP)
    return lanes._replace(state=lanes.state._replace(status=ended))


@partial(jax.jit, static_argnames="representation", donate_argnums=0)
def _place(
    batch: Lane,
    lane: Array,
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    protocol: Training,
    pause: Pause | None,
    *,
    representation: Representation,
) -> Lane:
    one = _load(params, data, key, protocol, pause, representation=representation)
    put = partial(jax.lax.dynamic_update_index_in_dim, index=lane, axis=0)
    return jax.tree.map(put, batch, one)


@partial(jax.jit, donate_argnums=0)
def restore(batch: Lane, lane: Array, state: Any) -> Lane:
    """The run on a lane goes on from another state of its own."""
    put = partial(jax.lax.dynamic_update_index_in_dim, index=lane, axis=0)
    return batch._replace(state=jax.tree.map(put, batch.state, state))


@partial(jax.jit, donate_argnums=0)
def _resume(batch: Lane, lane: Array, pause: Pause) -> Lane:
    """The lane goes on, up to its next pause."""
    status = batch.state.status.at[lane].set(int(Status.RUNNING))
    pauses = jax.tree.map(lambda all_, one: all_.at[lane].set(one), batch.pause, pause)
    return batch._replace(state=batch.state._replace(status=status), pause=pauses)


@partial(jax.jit, donate_argnums=0)
def _advance(batch: Lane, limit: Array, least_running: Array) -> tuple[Lane, Array]:
    def going(carry: tuple[Array, Any]) -> Array:
        trips, states = carry
        running = jnp.sum(states.status == Status.RUNNING, dtype=jnp.int32)
        return (trips < limit) & (running >= least_running)

    def one(state: Any, lane: Lane) -> Any:
        return training.advance(lane.protocol, state, lane.data, lane.pause)

    def trip(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        trips, states = carry
        return trips + 1, jax.vmap(one)(states, fixed)

    fixed = batch._replace(state=None)
    trips, states = jax.lax.while_loop(going, trip, (jnp.zeros((), jnp.int32), batch.state))
    return batch._replace(state=states), trips


@partial(jax.jit, static_argnames="representation")
def _decode(
    batch: Lane, lane: Array, params: Params, data: Dataset, *, representation: Representation
) -> tuple[Params, dict[str, Array]]:
    """A lane's trained parameters, padded to the size of its measurement, and how it ended."""
    one = jax.tree.map(lambda leaf: leaf[lane], batch)
    trained, ending = training.unload(
        one.protocol, one.state, one.data, params, data, representation
    )
    k, d = params.w.shape
    return networks.pad(trained, round_up(k), round_up(d)), ending
