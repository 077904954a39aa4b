"""Running one bucket: lanes of a compiled batch take runs from a queue until it is empty."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import networks, representations, training
from jaxkkt.datasets import DATASETS, Dataset
from jaxkkt.engine.buckets import Bucket
from jaxkkt.engine.specs import Run
from jaxkkt.measurements import Measurement
from jaxkkt.networks import INITIALIZATIONS, Params
from jaxkkt.representations import Representation
from jaxkkt.training import Protocol, State, Status

# A chunk of steps lasts about this long: progress is shown, and a signal heard, between chunks.
CHUNK_SECONDS = 0.5
FIRST_CHUNK = 20

MeasureFunction = Callable[[Params, Dataset], dict[str, Array]]


class Row(NamedTuple):
    """A finished run: what was measured, and how it ended, as Python numbers."""

    run: Run
    values: dict[str, float | int]


@dataclass
class Tally:
    """What a sweep has done so far, for progress bars and reports."""

    runs_done: int = 0
    progress: float = 0.0  # expected share of the bucket's running runs that is done, in runs
    lane_steps: int = 0
    useful_steps: int = 0
    run_seconds: float = 0.0
    busy_lanes: int = 0
    lanes: int = 0
    steps_per_second: float = 0.0
    log_losses: tuple[float, float] = (float("nan"), float("nan"))

    def useful_share(self) -> float:
        """Share of lane-steps that advanced a run; the rest went over finished or empty lanes."""
        return self.useful_steps / self.lane_steps if self.lane_steps else 1.0


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


class _Lane(NamedTuple):
    run: Run
    params: Params
    data: Dataset


def compile_bucket(
    bucket: Bucket, protocol: Protocol, measurements: Iterable[Measurement]
) -> Programs:
    """Compiles what `run_bucket` needs; may run in another thread, ahead of its turn."""
    protocol = replace(protocol, loss=bucket.loss)  # type: ignore[arg-type]
    _draw_lane(bucket.runs[0], bucket)  # compiles the draws, too
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
        measure=_compiled_measure(functions, *map(_round_up, (m, d, k))),
    )


def run_bucket(
    bucket: Bucket,
    runs: Iterable[Run],
    programs: Programs,
    expected_steps: int,
    tally: Tally,
    show: Callable[[Tally], None] = lambda _: None,
) -> Iterator[Row]:
    """Trains and measures `runs` (some or all of the bucket's), yielding each as it ends.

    A run's numbers do not depend on its lane, on the runs beside it or on the chunk length.
    """
    queue = deque(runs)
    lanes: list[_Lane | None] = [None] * bucket.lanes
    batch: tuple[State, Any] | None = None
    chunk = FIRST_CHUNK
    while queue or any(lanes):
        for i in range(bucket.lanes):
            if lanes[i] is None and queue:
                lanes[i] = lane = _draw_lane(queue.popleft(), bucket)
                loaded = programs.load(lane.params, lane.data, lane.run.shuffle_key())
                batch = programs.empty(loaded) if batch is None else batch
                batch = programs.place(batch, loaded, np.int32(i))
        assert batch is not None
        busy = sum(lane is not None for lane in lanes)
        started = perf_counter()
        # While runs wait, come back as soon as a lane falls free; after that, when all have ended.
        least = np.int32(busy if queue else 1)
        batch, trips = programs.advance(batch, np.int32(chunk), least)
        states = batch[0]
        ended, steps, log_loss = jax.device_get((states.status, states.steps, states.log_loss))
        seconds, trips = perf_counter() - started, int(trips)
        if trips == chunk:
            chunk = max(1, int(chunk * np.clip(CHUNK_SECONDS / seconds, 0.25, 4)))

        occupied = [i for i, lane in enumerate(lanes) if lane is not None]
        tally.run_seconds += seconds
        tally.lane_steps += trips * bucket.lanes
        tally.lanes, tally.busy_lanes = bucket.lanes, busy
        tally.steps_per_second = trips * busy / seconds
        tally.log_losses = (float(log_loss[occupied].min()), float(log_loss[occupied].max()))
        tally.progress = float(np.minimum(steps[occupied] / expected_steps, 0.95).sum())
        show(tally)
        for i in occupied:
            done = lanes[i]
            if done is None or ended[i] == Status.RUNNING:
                continue
            trained, ending = programs.decode(batch, np.int32(i), done.params, done.data)
            measured = programs.measure(trained, _rounded(done.data))
            values = jax.device_get({**measured, **ending})
            lanes[i] = None
            tally.runs_done += 1
            tally.useful_steps += int(steps[i]) + 1
            yield Row(done.run, {name: value.item() for name, value in values.items()})


def draw(run: Run) -> tuple[Params, Dataset]:
    """A run's initial parameters and data, from the run's own fields alone, as NumPy arrays."""
    lane = _draw_lane(run, run)
    return lane.params, lane.data


def _draw_lane(run: Run, shape: Bucket | Run) -> _Lane:
    rows, width, columns = _round_up(run.samples), _round_up(run.width), _round_up(run.d)
    draw_data = _compiled(DATASETS[run.data], (rows, columns))
    draw_start = _compiled(INITIALIZATIONS[run.initialization], (width, columns))
    drawn = draw_data(run.data_key(), run.samples, run.d)
    start = draw_start(run.init_key(), run.width, run.d, run.init_scale)
    m, d, k = shape.samples, shape.d, shape.width
    data, start = jax.tree.map(np.asarray, (drawn, start))
    return _Lane(
        run,
        Params(_fit(start.w, k, d), _fit(start.b, k), _fit(start.v, k)),
        Dataset(_fit(data.x, m, d), _fit(data.y, m)),
    )


@cache
def _compiled(function: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    return jax.jit(partial(function, shape=shape))


def _spec(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))


def _round_up(size: int) -> int:
    """The size that draws and measurements are compiled for: few, and not much larger."""
    return 256 if size <= 256 else -(-size // 1024) * 1024


def _rounded(data: Dataset) -> Dataset:
    m, d = map(_round_up, data.x.shape)
    return Dataset(_fit(data.x, m, d), _fit(data.y, m))


def _fit(array: Any, *shape: int) -> Any:
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])


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
    return networks.pad(trained, _round_up(k), _round_up(d)), ending


@cache
def _compiled_measure(
    functions: tuple[MeasureFunction, ...], m: int, d: int, k: int
) -> Callable[[Params, Dataset], dict[str, Array]]:
    def measure(params: Params, data: Dataset) -> dict[str, Array]:
        return {name: value for f in functions for name, value in f(params, data).items()}

    params = Params(_spec(k, d), _spec(k), _spec(k))
    return jax.jit(measure).lower(params, Dataset(_spec(m, d), _spec(m))).compile()
