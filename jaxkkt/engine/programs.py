"""The compiled functions that a bucket's lanes need."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import networks, representations, training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.draws import draw, round_up
from jaxkkt.measurements import Measurement
from jaxkkt.networks import Params
from jaxkkt.representations import Representation
from jaxkkt.training import Protocol, State, Status

MeasureFunction = Callable[[Params, Dataset], dict[str, Array]]


class Programs(NamedTuple):
    """A bucket's compiled functions.

    `load` takes one run in, `place` puts it on a lane of the batch that `empty` made, `advance`
    trains all lanes, `decode` takes one out, `measure` measures it.
    """

    load: Callable[..., Any]
    empty: Callable[..., Any]
    place: Callable[..., Any]
    advance: Callable[..., Any]
    decode: Callable[..., Any]
    measure: Callable[..., Any]


def compile_bucket(
    bucket: Bucket, protocol: Protocol, measurements: Iterable[Measurement]
) -> Programs:
    """Compiles what `run_bucket` needs; may run in another thread, ahead of its turn."""
    protocol = replace(protocol, loss=bucket.loss)  # type: ignore[arg-type]
    draw(bucket.runs[0])  # compiles the draws, too
    number = jax.ShapeDtypeStruct((), jnp.int32)
    m, d, k = bucket.samples, bucket.d, bucket.width
    params = Params(_spec(k, d), _spec(k), _spec(k))
    data = Dataset(_spec(m, d), _spec(m))
    key = jax.eval_shape(lambda: jax.random.key(0))
    settings = {"protocol": protocol, "representation": bucket.representation}
    functions = tuple(m.function for m in measurements)
    one = jax.eval_shape(partial(_load, **settings), params, data, key)
    batch = jax.eval_shape(partial(_empty_lanes, lanes=bucket.lanes), one)
    return Programs(
        load=_load.lower(params, data, key, **settings).compile(),
        empty=_empty_lanes.lower(one, lanes=bucket.lanes).compile(),
        place=_place.lower(batch, one, number).compile(),
        advance=_advance.lower(batch, number, number, protocol=protocol).compile(),
        decode=_decode.lower(batch, number, params, data, **settings).compile(),
        measure=_compiled_measure(functions, *map(round_up, (m, d, k))),
    )


def _spec(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))


@partial(jax.jit, static_argnames=("protocol", "representation"))
def _load(
    params: Params,
    data: Dataset,
    key: PRNGKeyArray,
    *,
    protocol: Protocol,
    representation: Representation,
) -> tuple[State, Any]:
    position, encoded = representations.encode(params, data, representation)
    return training.init(position, protocol, key), encoded


@partial(jax.jit, static_argnames="lanes")
def _empty_lanes(one: tuple[State, Any], *, lanes: int) -> tuple[State, Any]:
    state, data = one
    idle = state._replace(status=jnp.array(int(Status.STEP_CAP), jnp.int32))
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (lanes, *a.shape)), (idle, data))


@partial(jax.jit, donate_argnums=0)
def _place(batch: tuple[State, Any], one: tuple[State, Any], lane: Array) -> tuple[State, Any]:
    return jax.tree.map(lambda all_, new: all_.at[lane].set(new), batch, one)


@partial(jax.jit, static_argnames="protocol", donate_argnums=0)
def _advance(
    batch: tuple[State, Any], limit: Array, least_running: Array, *, protocol: Protocol
) -> tuple[tuple[State, Any], Array]:
    states, data = batch

    def going(carry: tuple[Array, State]) -> Array:
        trips, states = carry
        return (trips < limit) & (jnp.sum(states.status == Status.RUNNING) >= least_running)

    def trip(carry: tuple[Array, State]) -> tuple[Array, State]:
        trips, states = carry
        return trips + 1, jax.vmap(lambda s, d: training.step(s, d, protocol))(states, data)

    trips, states = jax.lax.while_loop(going, trip, (jnp.zeros((), jnp.int32), states))
    return (states, data), trips


@partial(jax.jit, static_argnames=("protocol", "representation"))
def _decode(
    batch: tuple[State, Any],
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
    functions: tuple[MeasureFunction, ...], m: int, d: int, k: int
) -> Callable[[Params, Dataset], dict[str, Array]]:
    def measure(params: Params, data: Dataset) -> dict[str, Array]:
        return {name: value for f in functions for name, value in f(params, data).items()}

    params = Params(_spec(k, d), _spec(k), _spec(k))
    return jax.jit(measure).lower(params, Dataset(_spec(m, d), _spec(m))).compile()
