"""The compiled functions that a bucket's lanes need."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import networks, representations, training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.devices import device
from jaxkkt.engine.draws import Seen, draw, held_out, round_up, seen
from jaxkkt.engine.specs import Run
from jaxkkt.measurements import Measurement
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.representations import GramDataset, Representation
from jaxkkt.training import State, Status

MeasureFunction = Callable[..., dict[str, Array]]
Batch = tuple[State, Dataset | GramDataset]  # stacked, one of each a lane


class Programs(NamedTuple):
    """A bucket's compiled functions.

    `idle` makes a batch of empty lanes, `place` puts a run on one of them, `advance` trains all,
    `decode` takes one out, `measure` measures it, given its run, initial parameters and data.
    """

    idle: Callable[[], Batch]
    place: Callable[..., Batch]
    advance: Callable[..., tuple[Batch, Array]]
    decode: Callable[..., tuple[Params, dict[str, Array]]]
    measure: Callable[[Params, Run, Params, Dataset], dict[str, Array]]


def compile_bucket(
    bucket: Bucket, protocol: Protocol, measurements: Iterable[Measurement]
) -> Programs:
    """Compiles what `run_bucket` needs; may run in another thread, ahead of its turn."""
    protocol = replace(protocol, loss=bucket.loss)  # type: ignore[arg-type]
    draw(bucket.runs[0])  # compiles the draws, too
    number = jax.ShapeDtypeStruct((), jnp.int32)
    m, d, k = bucket.samples, bucket.d, bucket.width
    params, data = _specs(m, d, k)
    key = jax.eval_shape(lambda: jax.random.key(0))
    settings: dict[str, Any] = {"protocol": protocol, "representation": bucket.representation}
    functions = tuple((measurement.function, measurement.needs) for measurement in measurements)
    needs = frozenset(name for _, names in functions for name in names)
    tests = max(held_out(run).y.size for run in bucket.runs) if "test" in needs else 0
    trained, seen_data = _specs(*map(round_up, (m, d, k)))
    sight = Seen(
        seen_data,
        _specs(tests, round_up(d), 0)[1] if "test" in needs else None,
        trained if "start" in needs else None,
    )
    compiled = _compiled_measure(functions, trained, sight, device())

    def measure(trained: Params, run: Run, start: Params, data: Dataset) -> dict[str, Array]:
        return compiled(trained, seen(run, start, data, needs, tests))

    one = jax.eval_shape(partial(_load, **settings), params, data, key)
    batch = jax.tree.map(lambda a: _spec(bucket.lanes, *a.shape, dtype=a.dtype), one)
    return Programs(
        idle=partial(_idle, batch),
        place=_place.lower(batch, number, params, data, key, **settings).compile(),
        advance=_advance.lower(batch, number, number, protocol=protocol).compile(),
        decode=_decode.lower(batch, number, params, data, **settings).compile(),
        measure=measure,
    )


def _spec(*shape: int, dtype: Any = None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype or jax.dtypes.canonicalize_dtype(float))


def _specs(m: int, d: int, k: int) -> tuple[Any, Any]:
    return Params(_spec(k, d), _spec(k), _spec(k)), Dataset(_spec(m, d), _spec(m))


def _load(
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    *,
    protocol: Protocol,
    representation: Representation,
) -> tuple[State, Dataset | GramDataset]:
    position, encoded = representations.encode(params, data, representation)
    return training.init(position, protocol, key), encoded


def _idle(batch: Batch) -> Batch:
    """Arrays of the shapes in `batch`, in which no lane is running."""

    def zeros(spec: Any) -> Any:
        if jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), spec.shape)
        return jnp.asarray(np.zeros(spec.shape, spec.dtype))

    states, data = jax.tree.map(zeros, batch)
    return states._replace(status=states.status + int(Status.STEP_CAP)), data


@partial(jax.jit, static_argnames=("protocol", "representation"), donate_argnums=0)
def _place(
    batch: Batch,
    lane: Array,
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    *,
    protocol: Protocol,
    representation: Representation,
) -> Batch:
    one = _load(params, data, key, protocol=protocol, representation=representation)
    put = partial(jax.lax.dynamic_update_index_in_dim, index=lane, axis=0)
    return jax.tree.map(put, batch, one)


@partial(jax.jit, static_argnames="protocol", donate_argnums=0)
def _advance(
    batch: Batch, limit: Array, least_running: Array, *, protocol: Protocol
) -> tuple[Batch, Array]:
    states, data = batch

    def going(carry: tuple[Array, State]) -> Array:
        trips, states = carry
        running = jnp.sum(states.status == Status.RUNNING, dtype=jnp.int32)
        return (trips < limit) & (running >= least_running)

    def trip(carry: tuple[Array, State]) -> tuple[Array, State]:
        trips, states = carry
        return trips + 1, jax.vmap(lambda s, d: training.step(s, d, protocol))(states, data)

    trips, states = jax.lax.while_loop(going, trip, (jnp.zeros((), jnp.int32), states))
    return (states, data), trips


@partial(jax.jit, static_argnames=("protocol", "representation"))
def _decode(
    batch: Batch,
    lane: Array,
    params: Params,
    data: Dataset,
    *,
    protocol: Protocol,
    representation: Representation,
) -> tuple[Params, dict[str, Array]]:
    """A lane's trained parameters, padded to the size of its measurement, and how it ended."""
    state, encoded = jax.tree.map(lambda leaf: leaf[lane], batch)
    state = training.finish(state, encoded, protocol)
    trained = representations.decode(state.position, params, data, representation)
    k, d = params.w.shape
    ending = {"log_loss": state.log_loss, "steps": state.steps, "status": state.status}
    return networks.pad(trained, round_up(k), round_up(d)), ending


@cache
def _compiled_measure(
    functions: tuple[tuple[MeasureFunction, tuple[str, ...]], ...],
    params: Params,
    sight: Seen,
    _: jax.Device,
) -> MeasureFunction:
    def measure(params: Params, sight: Seen) -> dict[str, Array]:
        return {
            name: value
            for function, needs in functions
            for name, value in function(params, *(getattr(sight, n) for n in needs)).items()
        }

    return jax.jit(measure).lower(params, sight).compile()
