"""Initial weights and data of runs, drawn from their own fields alone, at any padded shape."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxkkt.datasets import Dataset
from jaxkkt.engine.machine import traces
from jaxkkt.engine.machine.batches import over
from jaxkkt.engine.machine.devices import Here, here
from jaxkkt.engine.machine.once import once
from jaxkkt.engine.machine.packing import Layout, numbers
from jaxkkt.engine.machine.traces import Program
from jaxkkt.measurements import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.compiling import quick_options
from jaxkkt.numerics.truths import all_of, any_of
from jaxkkt.runs.run import Run
from jaxkkt.specs.data import Arrays, Data, checked
from jaxkkt.specs.initializations import Initialization, started
from jaxkkt.specs.same import by_identity

# So many own arrays stay on a device for the next draw, also after their sweep.
MOST_OWN_ON_DEVICE = 16


def draw(run: Run) -> tuple[Params, Dataset]:
    """A run's initial parameters and data, as NumPy arrays; ValueError for what is no run."""
    _require_run("draw", run)
    return _start_of(run), _points_of(run)


def _start_of(run: Run) -> Params:
    """What the host draws, own code perhaps; ValueError where that is no start of this run."""
    drawn = run.initialization.draw_start(run.seed, run.width, run.d)
    return started(run.initialization, drawn, run.width, run.d)


def _points_of(run: Run) -> Dataset:
    """The same of points: others than the run says would be padded, or cut, to its sizes."""
    return checked(run.data, *run.data.draw_training(run.seed), run.samples, run.d)


def held_out(run: Run) -> Dataset:
    """Points of the run's source that it does not train on, the same for all widths and scales.

    Of images those of their own split, in whole; of a distribution 256 draws by another key; of own
    arrays the points given for it. What a distribution draws beside points, a teacher for instance,
    is drawn anew with them, unless its class takes it from `data_key` in `draw_test`.
    Raises ValueError where there are none, and for what is no run.
    """
    _require_run("held_out", run)
    found = _held_out_of(run)
    if found is None:
        raise _has_no("test", run.data)
    return found


def _held_out_of(run: Run) -> Dataset | None:
    found = run.data.draw_held_out(run.seed)
    return found and checked(run.data, *found, np.shape(found[1])[0], run.d)


def truth(run: Run) -> Any:
    """What the run's points were made of; raises ValueError where its data do not tell."""
    found = run.data.draw_truth(run.seed)
    if found is None:
        raise _has_no("truth", run.data)
    return found


def _require_run(name: str, run: Any) -> None:
    if not isinstance(run, Run):
        raise ValueError(f"{name} takes one jk.Run, of those that jk.grid makes, got {run!r:.80}")


def _has_no(name: str, data: Data) -> ValueError:
    what, who_has = {
        "test": ("held-out points", "jk.data.Arrays(x, y, x_test, y_test) takes them"),
        "truth": (
            "the truth behind the points",
            "jk.data.Clusters has, and any distribution with a method draw_truth(seed)",
        ),
    }[name]
    return ValueError(f"a measurement asks for {what}, and {data.label!r} has none: {who_has}")


def require_what_is_asked(run: Run) -> None:
    """Raises as `held_out` and `truth` do, as far as that is known without a draw."""
    for measurements in (run.measure, () if run.curve is None else run.curve.measure):
        required = _required(measurements)
        if "test" in required and not run.data.may_hold_out:
            raise _has_no("test", run.data)
        if "truth" in required and not run.data.may_tell_truth:
            raise _has_no("truth", run.data)
        if "curve" in required and run.curve is None:
            raise ValueError(
                "a measurement asks for the networks on a run's way, and the run has no curve: "
                "curve=jk.Curve([-10, -30]) has two"
            )


@by_identity
def _required(measurements: Sequence[Measurement]) -> set[str]:
    return {name for one in measurements for name in one.requires()}


def asked_for(name: str, run: Run, measurements: Sequence[Measurement]) -> Any:
    """Held-out points ("test") or the "truth" of a run, where a measurement asks for them.

    None where the run has none and no measurement requires it, else `held_out` and `truth` raise.
    """
    if any(name in one.requires() for one in measurements):
        return held_out(run) if name == "test" else truth(run)
    if not any(name in one.needs() for one in measurements):
        return None
    return _held_out_of(run) if name == "test" else run.data.draw_truth(run.seed)


class Sizes(NamedTuple):
    """The first words of a run's row: its slot in the batch, its number in the order in which runs
    came to their slots, its seed, its own sizes."""

    slot: Any
    number: Any
    seed: Any
    samples: Any
    d: Any
    width: Any


_WHOLE = np.int32(0)
SIZES = Layout.of(Sizes(_WHOLE, _WHOLE, np.uint32(0), _WHOLE, _WHOLE, _WHOLE))


class Drawing(NamedTuple):
    """How runs are drawn alike at a shape (samples, d, width): what the device draws by itself.

    `specs` are the structures of initialization and data, None where the host has to draw: own
    arrays and images, draws that cannot be traced, those of one size where the shape is another.
    """

    shape: tuple[int, int, int]
    specs: tuple[Layout | None, Layout | None]

    @property
    def words(self) -> int:
        return sum(layout.words for layout in self.specs if layout is not None)

    def packed(self, runs: Sequence[Run]) -> np.ndarray:
        """The numbers of each run's initialization and data, as a row of words."""
        rows = np.zeros((len(runs), 0), np.int32)
        for_init, for_data = self.specs
        if for_init is not None:
            some = for_init.pack_on_host([run.initialization for run in runs])
            rows = np.concatenate([rows, some], axis=1)
        if for_data is not None:
            some = for_data.pack_on_host([run.data.sizeless() for run in runs])
            rows = np.concatenate([rows, some], axis=1)
        return rows


def drawn_on_device(init: Initialization, data: Data, own_size: bool) -> tuple[bool, bool]:
    """Whether start and points are such as the device draws, at the run's own size or a larger
    one: some specs are drawn at their own size only. Others would have other numbers at each size
    without `jax_threefry_partitionable`; there the host draws them."""
    config: Any = jax.config
    whatever_size = bool(config.jax_threefry_partitionable)

    def by_device(spec: Any) -> bool:
        return spec.traceable and (whatever_size if spec.any_size else own_size)

    return by_device(init), by_device(data)


def drawing_of(run: Run, shape: tuple[int, int, int]) -> Drawing:
    """How the run is drawn at this shape."""
    m, d, k = shape
    init, data = run.initialization, run.data
    start, points = drawn_on_device(init, data, (run.samples, run.d, run.width) == shape)
    as_start = _traced(init, (k, d)) if start else None
    as_points = _traced(data.sizeless(), (m, d)) if points else None
    return Drawing(shape, (as_start, as_points))


def _traced(spec: Any, shape: tuple[int, int]) -> Layout | None:
    """The structure of a spec that the device draws; None where that raises, as it does again where
    it is the turn of its run."""
    with suppress(Exception):
        layout = Layout.of(numbers(spec))
        try_to_trace(layout, shape, here())
        return layout
    return None


@once
def try_to_trace(layout: Layout, shape: tuple[int, int], here: Here) -> None:
    """Raises what drawing of specs of this structure raises."""

    def drawn(words: Array, rest: Array) -> Any:
        at = SIZES.unpack(words)
        return layout.unpack(rest).draw_at(at.seed, at.samples, at.d, shape)

    words = [jax.ShapeDtypeStruct((n,), np.int32) for n in (SIZES.words, layout.words)]
    traces.kept(("drawn", layout, shape), lambda: jax.eval_shape(drawn, *words))


class Drawn(NamedTuple):
    """Stacked weights and points of several runs, and whether they are such as can be trained."""

    start: Params
    data: Dataset
    valid: Bool[Array, " n"]


def draw_batch(
    drawing: Drawing, rows: Array, runs: Sequence[Run], slots: int, side_by_side: bool
) -> Drawn:
    """The weights and points of some runs, padded and stacked on the device.

    Each has a row of words: `Sizes`, and the numbers of its specs. Rows whose slot is not below
    `slots` belong to no run. What the host draws raises as `draw` does.
    """
    found = draw_program(drawing, rows.shape, slots, side_by_side, here())(rows)
    m, d, k = drawing.shape
    start, data, valid = found
    if start is None:
        start = stacked([pad_params(_start_of(run), k, d) for run in runs], len(rows))
    if data is None:
        own = runs[0].data
        if isinstance(own, Arrays) and all(own == run.data for run in runs):
            one = own_on_device(own, m, d, here())
            data = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(rows), *a.shape)), one)
        else:
            data = stacked([pad_data(_points_of(run), m, d) for run in runs], len(rows))
    return Drawn(start, data, valid)


@lru_cache(MOST_OWN_ON_DEVICE)
def own_on_device(own: Arrays, samples: int, dim: int, here: Here) -> Dataset:
    """Own arrays, padded to these sizes: the same for every run, so they cross once."""
    return jax.device_put(pad_data(own.draw_training(0), samples, dim), here.device)


@once
def draw_program(
    drawing: Drawing,
    rows: tuple[int, int],
    slots: int,
    side_by_side: bool,
    here: Here,
) -> Callable[..., tuple[Params | None, Dataset | None, Array]]:
    """The compiled program that draws what the device can."""
    m, d, k = drawing.shape
    for_init, for_data = drawing.specs

    def one(words: Int[Array, " w"]) -> tuple[Params | None, Dataset | None, Array]:
        at, rest = SIZES.unpack(words), words[SIZES.words :]
        start = data = None
        valid = jnp.array(True)
        dtype = jax.dtypes.canonicalize_dtype(float)
        if for_init is not None:
            start = for_init.unpack(rest).draw_at(at.seed, at.width, at.d, (k, d))
            start = jax.tree.map(lambda a: jnp.asarray(a, dtype), start)
            rest = rest[for_init.words :]
        if for_data is not None:
            data = for_data.unpack(rest).draw_at(at.seed, at.samples, at.d, (m, d))
            data = jax.tree.map(lambda a: jnp.asarray(a, dtype), data)
            valid = _is_valid(data, at.samples)
        return start, data, valid

    def draw_all(rows: Int[Array, "n w"]) -> Any:
        return over(one, (rows,), rows[:, 0] < slots, len(rows) if side_by_side else 0)

    def make() -> tuple[None, dict[str, Program]]:
        return None, {"draw": Program(draw_all, (jax.ShapeDtypeStruct(rows, np.int32),))}

    asked, quick = ("draw", drawing, rows, slots, side_by_side), quick_options(here.device.platform)
    _, programs = traces.compiled(asked, make, lambda _: quick)
    return programs["draw"]


def _is_valid(data: Dataset, samples: Any) -> Array:
    """Whether these are finite points and labels of both classes."""
    real = jnp.arange(data.y.shape[0], dtype=jnp.int32) < samples
    labels = jnp.where(real, jnp.abs(data.y) == 1, data.y == 0)
    both = any_of(data.y > 0) & any_of(data.y < 0)
    return all_of(jnp.isfinite(data.x)) & all_of(labels) & both


def stacked(items: Sequence[Any], count: int) -> Any:
    """Arrays of each item along a new leading axis of this length, the last ones zeros."""

    def stack(*leaves: Any) -> Any:
        found = np.zeros((count, *leaves[0].shape), leaves[0].dtype)
        for i, leaf in enumerate(leaves):
            found[i] = leaf
        return found

    return jax.device_put(jax.tree.map(stack, *items))


def pad_params(params: Params, width: int, dim: int) -> Params:
    """The same numbers, with zero neurons and coordinates up to the sizes given."""
    return Params(_fit(params.w, width, dim), _fit(params.b, width), _fit(params.v, width))


def pad_data(data: Dataset, samples: int, dim: int) -> Dataset:
    """The same numbers, with zero samples and coordinates up to the sizes given."""
    return Dataset(_fit(data.x, samples, dim), _fit(data.y, samples))


def _fit(array: Any, *shape: int) -> Any:
    if np.shape(array) == shape:
        return array
    kept = array[tuple(slice(n) for n in shape)]
    return np.pad(kept, [(0, n - have) for n, have in zip(shape, kept.shape, strict=True)])
