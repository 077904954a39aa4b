"""The compiled functions that train a bucket's runs, in slots of a batch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxkkt import datasets, networks, training
from jaxkkt.datasets import Dataset
from jaxkkt.engine.machine import traces
from jaxkkt.engine.machine.batches import at, over, put
from jaxkkt.engine.machine.devices import Here, device, here, settings, using
from jaxkkt.engine.machine.once import once
from jaxkkt.engine.machine.packing import Layout
from jaxkkt.engine.machine.traces import Program
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.programs.draws import Drawn, draw_program, own_on_device
from jaxkkt.engine.programs.hashes import hash_words
from jaxkkt.engine.programs.measuring import compile_measurements
from jaxkkt.engine.programs.telling import How, Telling
from jaxkkt.engine.programs.trained import Trained, network_like, points_like, stacked_like
from jaxkkt.engine.programs.trips import make_trips
from jaxkkt.networks import Params
from jaxkkt.numerics.compiling import quick_options
from jaxkkt.process.loaded import forget_changes
from jaxkkt.runs.run import shuffle_key
from jaxkkt.specs.identity import forget_specs
from jaxkkt.specs.same import forget_results
from jaxkkt.training import Status

# The programs of a bucket that run long enough for the compiler to take its time.
OFTEN = ("advance", "lead")


class Slot(NamedTuple):
    """What a slot of a batch holds: a run's state and its data as steps read them, what it started
    from and trains on, and its row of words: sizes, seed, how it trains. Stacked, one a slot."""

    state: Any
    data: Any
    start: Params
    points: Dataset
    words: Any


class Programs(NamedTuple):
    """A bucket's compiled functions.

    `idle` makes a batch of empty slots, `place` puts runs into some of them, `advance` trains all,
    `decode` takes some out, `resume` lets some go on from where they stand. Of flows that may go on
    `lead` makes states that are led onto their levels, to be taken out. `telling` says how runs are
    told, `report` and `ending` how the device tells how they stand, and how they ended.
    """

    telling: Telling
    report: Layout
    ending: Layout
    idle: Callable[[], Slot]
    place: Callable[..., Slot]
    advance: Callable[..., tuple[Slot, Array]]
    decode: Callable[..., tuple[Trained, Array]]
    lead: Callable[..., Any] | None
    resume: Callable[..., Slot] | None

    def take_out(self, places: Any, batch: Any) -> tuple[Trained, Array]:
        """The runs in these slots, and what is told of them, as words."""
        return self.decode(places, batch, None if self.lead is None else self.lead(places, batch))


def compile_bucket(bucket: Bucket) -> Programs:
    """Compiles what `run_bucket` needs; may run in another thread, ahead of its turn.

    Draws and measurements are compiled beside, in a thread of their own. What raises there raises
    again where it is the turn of its run.
    """
    mode, place = settings(), device()
    telling = Telling.of(bucket)
    shape = bucket.turn, telling.words

    def beside() -> None:
        with using(mode, place):
            for drawing in set(telling.drawings.values()):
                with suppress(Exception):
                    draw_program(drawing, shape, bucket.slots, bucket.side_by_side, here())
            for run, some in bucket.measured():
                with suppress(Exception):
                    compile_measurements(
                        run,
                        some,
                        bucket.measured_at,
                        bucket.turn,
                        bucket.side_by_side,
                        bucket.starts,
                    )

    with ThreadPoolExecutor(1) as other:
        draws_and_measurements = other.submit(beside)
        programs = _compile_training(bucket, telling)
        draws_and_measurements.result()
    return programs


def _compile_training(bucket: Bucket, telling: Telling) -> Programs:
    shape = replace(bucket, trajectories=())
    return Programs(telling, *training_programs(shape, telling.how, telling.room, here()))


@once
def training_programs(bucket: Bucket, how: Layout, room: int, here: Here) -> tuple[Any, ...]:
    """What trains in a bucket of this shape, whatever its runs are."""
    asked = "training", bucket, how, room
    quick = quick_options(here.device.platform)
    (report, ending, batch), programs = traces.compiled(
        asked, partial(_traced, bucket, how, room), lambda name: {} if name in OFTEN else quick
    )
    names = "place", "advance", "decode", "lead", "resume"
    return report, ending, _idles(batch, bucket.side_by_side), *map(programs.get, names)


def _traced(
    bucket: Bucket, how: Layout, room: int
) -> tuple[tuple[Layout, Layout, Slot], dict[str, Program]]:
    """How its programs tell what becomes of runs, the shapes of a batch; and the programs."""
    telling = Telling(how, room, bucket.drawn_at, {}, bucket.resumes)
    turn, slots = bucket.turn, bucket.slots
    m, d, k = bucket.drawn_at
    row, valid = jax.ShapeDtypeStruct((telling.words,), np.int32), jax.ShapeDtypeStruct((), bool)
    of_one = row, Drawn(network_like(k, d), points_like(m, d), valid)  # type: ignore[arg-type]
    words, drawn = stacked_like(of_one, turn)
    places = jax.ShapeDtypeStruct((turn,), np.int32)
    limits = jax.ShapeDtypeStruct((2,), np.int32)
    one = jax.eval_shape(partial(_load, bucket=bucket, telling=telling), *of_one)
    batch = stacked_like(one, slots)
    log_losses = np.zeros(slots, jax.dtypes.canonicalize_dtype(float))
    whole = np.zeros(slots, np.int32), np.zeros(slots, np.int32), log_losses
    report = Layout.of(Report(*whole, np.int32(0)))
    ending = Layout.of(jax.eval_shape(partial(_ended, bucket=bucket, telling=telling), one)[1])

    leads = bucket.resumes and training.is_flow(batch.state)
    led = stacked_like(one.state, turn) if leads else None

    def program(function: Callable[..., Any], *args: Any, **fixed: Any) -> Program:
        filled = partial(function, bucket=bucket, telling=telling, **fixed)
        return Program(filled, args, donates=args[0] is batch)

    programs = {
        "place": program(_place, batch, words, drawn),
        "advance": program(_advance, batch, limits, report=report),
        "decode": program(_decode, places, batch, led, ending=ending),
    }
    if leads:
        programs["lead"] = program(_lead, places, batch)
    if bucket.resumes:
        programs["resume"] = program(_resume, batch, words)
    return (report, ending, batch), programs


def _load(words: Array, drawn: Drawn, *, bucket: Bucket, telling: Telling) -> Slot:
    """A run before its first step; RAISED where what was drawn cannot be trained on."""
    (m, d, k), (start, points, valid) = (bucket.samples, bucket.d, bucket.width), drawn
    start, points = networks.unpad(start, k, d), datasets.unpad(points, m, d)
    sizes, how = telling.unpack(words)
    protocol = jax.tree.map(jnp.asarray, how.protocol)
    key = shuffle_key(sizes.seed, sizes.samples, sizes.d)
    state, data = training.load(protocol, start, points, key, bucket.representation)
    status = jnp.where(valid, state.status, int(Status.RAISED)).astype(jnp.int32)
    return Slot(state._replace(status=status), data, start, points, words)


def _idle(batch: Slot, xp: Any) -> Slot:
    """Arrays of the shapes in `batch`, zeros of NumPy or of JAX, in which nothing is running."""

    def zeros(spec: Any) -> Any:
        if jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jnp.zeros(spec.shape, spec.dtype)
        return xp.zeros(spec.shape, spec.dtype)

    slots = jax.tree.map(zeros, batch)
    ended = slots.state.status + int(Status.STEP_CAP)
    return slots._replace(state=slots.state._replace(status=ended))


def _idles(batch: Slot, side_by_side: bool) -> Callable[[], Slot]:
    """What makes them: on a CPU without a program, and where they are large without the host."""
    if side_by_side:
        program: Any = jax.jit(partial(_idle, batch, jnp)).lower()
        return program.compile()
    return lambda: jax.device_put(_idle(batch, np))


def _place(batch: Slot, words: Array, drawn: Drawn, *, bucket: Bucket, telling: Telling) -> Slot:
    """Each row's run in its slot; rows beyond the slots, which come last, are left out."""
    places = words[:, 0]
    load = partial(_load, bucket=bucket, telling=telling)
    if bucket.side_by_side:
        return _put(batch, places, jax.vmap(load)(words, drawn))

    def place(i: Array, batch: Slot) -> Slot:
        one = load(*jax.tree.map(partial(at, i), (words, drawn)))
        return jax.tree.map(partial(put, places[i]), batch, one)

    return jax.lax.fori_loop(0, jnp.sum(places < bucket.slots, dtype=jnp.int32), place, batch)


def _put(batch: Any, places: Array, some: Any) -> Any:
    return jax.tree.map(lambda a, new: a.at[places].set(new, mode="drop"), batch, some)


@partial(jax.jit, donate_argnums=0)
def restore(batch: Slot, slot: Array, state: Any) -> Slot:
    """The run in a slot goes on from another state of its own."""
    return batch._replace(state=jax.tree.map(partial(put, slot), batch.state, state))


def _resume(batch: Slot, words: Array, *, bucket: Bucket, telling: Telling) -> Slot:
    """Each row's run goes on in its slot, up to the pause that the row tells."""
    places = words[:, 0]
    running = jnp.full(places.shape, int(Status.RUNNING), jnp.int32)
    status = _put(batch.state.status, places, running)
    return batch._replace(
        state=batch.state._replace(status=status), words=_put(batch.words, places, words)
    )


class Report(NamedTuple):
    """How the slots of a batch stand, and how many trips over its lanes were made."""

    status: Any
    steps: Any
    log_loss: Any
    trips: Any


def _advance(
    batch: Slot, limits: Array, *, bucket: Bucket, telling: Telling, report: Layout
) -> tuple[Slot, Array]:
    """The slots after about `limits[0]` trips; fewer where no run waits and `limits[1]` of those
    in lanes have ended."""

    def step(state: Any, fixed: tuple[Any, How]) -> Any:
        data, how = fixed
        return training.advance(how.protocol, state, data, how.pause)

    sizes, how = jax.vmap(telling.unpack)(batch.words)
    fixed, numbers, at_a_time = (batch.data, how), sizes.number, bucket.trips_at_a_time
    states, trips = make_trips(step, batch.state, fixed, numbers, bucket.lanes, limits, at_a_time)
    told = Report(states.status, states.steps, states.log_loss, trips)
    return batch._replace(state=states), report.pack(told)


class Ending(NamedTuple):
    """How a run ended or stands, and a hash of its network."""

    values: Any
    network: Any


def _ended(slot: Slot, *, bucket: Bucket, telling: Telling) -> tuple[Trained, Ending]:
    """A run at the size of its measurement, and what is told of it."""
    m, d, k = bucket.measured_at
    sizes, how = telling.unpack(slot.words)
    trained, ending = training.unload(
        how.protocol, slot.state, slot.data, slot.start, slot.points, bucket.representation
    )
    network = hash_words(trained, sizes.width, sizes.d)
    start = networks.pad(slot.start, k, d) if bucket.starts else None
    found = Trained(networks.pad(trained, k, d), start, datasets.pad(slot.points, m, d))
    return found, Ending(ending, network)


def _decode(
    places: Array, batch: Slot, states: Any, *, bucket: Bucket, telling: Telling, ending: Layout
) -> tuple[Trained, Array]:
    """The runs in these slots, by their `states` where these are given, and what is told of them,
    as words."""

    def one(place: Array, state: Any) -> tuple[Trained, Array]:
        slot = jax.tree.map(partial(at, place), batch)
        slot = slot if state is None else slot._replace(state=state)
        found, told = _ended(slot, bucket=bucket, telling=telling)
        return found, ending.pack(told)

    at_once = len(places) if bucket.side_by_side else 0
    return over(one, (places, states), places < bucket.slots, at_once)


def _lead(places: Array, batch: Slot, *, bucket: Bucket, telling: Telling) -> Any:
    """The states of the runs in these slots, led onto the levels that they ended or paused for, by
    the same steps in as many lanes as they were trained by; those in the batch stay."""
    some = jnp.minimum(places, bucket.slots - 1)
    states, data, words = jax.tree.map(lambda a: a[some], (batch.state, batch.data, batch.words))
    _, how = jax.vmap(telling.unpack)(words)
    start = jax.vmap(training.to_be_led)(states)
    status = jnp.where(places < bucket.slots, start.status, int(Status.STEP_CAP))

    def step(state: Any, fixed: tuple[Any, How]) -> Any:
        data, how = fixed
        return training.advance(how.protocol, state, data, None)

    lanes, forever = min(bucket.lanes, bucket.turn), jnp.iinfo(jnp.int32).max
    there, _ = make_trips(
        step,
        start._replace(status=status),
        (data, how),
        jnp.arange(bucket.turn, dtype=jnp.int32),
        lanes,
        jnp.array([forever, lanes], jnp.int32),
        bucket.trips_at_a_time,
    )
    return jax.vmap(training.led)(states, there)


def forget() -> None:
    """Lets go of all programs compiled so far, and of their memory: of certificates and polished
    networks half a GB for each size of the data; of own arrays on a device; and of what own
    functions computed. What is asked for again compiles anew."""
    jax.clear_caches()
    forget_changes()
    forget_specs()
    forget_results()
    own_on_device.cache_clear()
