"""Measuring a trained network: each measurement at the run's own size, or at a padded one."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkkt.compiling import quick_options
from jaxkkt.datasets import Dataset
from jaxkkt.engine.devices import device
from jaxkkt.engine.draws import Seen, asked_for, seen
from jaxkkt.engine.once import once
from jaxkkt.measurements import Measurement, measured
from jaxkkt.networks import Params
from jaxkkt.runs.run import Run
from jaxkkt.specs.data import round_up

# Names that the engine gives to how a run ended, and to the moments of a curve.
ENDING = ("log_loss", "steps", "status", "error")
CURVE = "curve_"
Values = dict[str, Any]


def measure(
    run: Run,
    measurements: Sequence[Measurement],
    params: Params,
    start: Params,
    data: Dataset,
    padded_to: tuple[int, int, int],
    curve: Params | None = None,
) -> list[Values]:
    """What each of the measurements returns for a network, by name, as NumPy arrays.

    `params`, `start` and `data` are at the run's own size. Those that are `padded` share a program
    at a size that holds it, (samples, d, width); every other has one of its own at the run's size.
    """
    everything = seen(run, params, start, data, measurements)
    if everything.protocol is not None:
        everything = everything._replace(protocol=jax.tree.map(_array, everything.protocol))
    found: dict[int, Values] = {}
    together = {i: one for i, one in enumerate(measurements) if one.padded}
    if together:
        tests = 0 if everything.test is None else everything.test.y.size
        some = tuple(together.values())
        numbers, padded = jax.tree.map(_array, some), everything.padded(*padded_to, tests)
        values = _compiled(together_structure(some), _shapes(padded))(numbers, padded)
        found.update(zip(together, values, strict=True))
    for i, one in enumerate(measurements):
        if one.padded:
            continue
        if one.on_host:
            asked = {**everything._asdict(), "curve": curve}
            found[i] = measured(one, *(asked[name] for name in one.needs()))
        else:
            numbers = jax.tree.map(_array, (one,))
            program = _compiled(together_structure((one,)), _shapes(everything))
            (found[i],) = program(numbers, everything)
    return jax.device_get([found[i] for i in range(len(measurements))])


def names_of(run: Run, measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The names that the measurements return, without running them.

    Raises ValueError where two return the same name, or one that the engine gives itself.
    """
    owners: dict[str, Measurement] = {}
    fields = run.fields()
    for one in measurements:
        if one.on_host:
            continue
        shapes = _example(run, one)
        try:
            returned = jax.eval_shape(measured, one, *shapes)
        except jax.errors.JAXTypeError as error:
            raise ValueError(
                f"the measurement {one.label!r} cannot be traced by JAX: write it with jax.numpy, "
                "or make it a jk.Measurement with `on_host = True`, which is not compiled. "
                f"{error}"
            ) from error
        for name in returned:
            taken = "the engine's own name" if name in ENDING or name.startswith(CURVE) else ""
            if taken or name in fields:
                raise ValueError(
                    f"the measurement {one.label!r} returns {name!r}, which is "
                    f"{taken or 'a field of the run'}: call it something else"
                )
            if name in owners:
                raise ValueError(
                    f"the measurements {owners[name].label!r} and {one.label!r} both return "
                    f"{name!r}: call one of them something else"
                )
            owners[name] = one
    return owners


def compile_measurements(run: Run, padded_to: tuple[int, int, int]) -> None:
    """Compiles ahead what measuring this run will take, where runs of other sizes share it."""
    for some in (run.measure, () if run.curve is None else run.curve.measure):
        together = tuple(one for one in some if one.padded)
        if together:
            shapes = _padded_shapes(run, together, padded_to)
            _compiled(together_structure(together), shapes)


def together_structure(measurements: tuple[Measurement, ...]) -> Any:
    return jax.tree.structure(measurements), tuple(
        str(_array(leaf).dtype) for leaf in jax.tree.leaves(measurements)
    )


def _padded_shapes(
    run: Run, measurements: Sequence[Measurement], padded_to: tuple[int, int, int]
) -> Seen:
    needs = {name for one in measurements for name in one.needs()}
    m, d, k = padded_to
    params, data = _network(k, d), _points(m, d)
    test = asked_for("test", run, measurements)
    return Seen(
        params,
        data,
        None if test is None else _points(test.y.size, d),
        params if "start" in needs else None,
        _numbers(run.protocol) if "protocol" in needs else None,
        _like(asked_for("truth", run, measurements)),
    )


def _array(leaf: Any) -> np.ndarray:
    return np.asarray(
        leaf, np.int32 if np.issubdtype(np.asarray(leaf).dtype, np.integer) else _dtype()
    )


def _dtype() -> Any:
    return jax.dtypes.canonicalize_dtype(float)


def _shapes(everything: Seen) -> Seen:
    sized = jax.tree.map(lambda a: _shape(*np.shape(a)), everything._replace(truth=None))
    numbers, made_of = _numbers(everything.protocol), _like(everything.truth)
    return sized._replace(protocol=numbers, truth=made_of)


def _numbers(protocol: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), _array(leaf).dtype), protocol)


def _like(arrays: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)


def _network(width: int, dim: int) -> Any:
    return Params(_shape(width, dim), _shape(width), _shape(width))


def _points(samples: int, dim: int) -> Any:
    return Dataset(_shape(samples, dim), _shape(samples))


def _shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, _dtype())


def _example(run: Run, one: Measurement) -> list[Any]:
    m, d, k = run.samples, run.d, run.width
    if one.padded:  # what is traced for the names is of use when it is compiled
        m, d, k = round_up(m), round_up(d), round_up(k)
    params = _network(k, d)
    asked = {"params": params, "start": params, "data": _points(m, d)}
    asked["protocol"] = run.protocol
    test = asked_for("test", run, [one])
    asked["test"] = None if test is None else _points(test.y.size, d)
    asked["truth"] = _like(asked_for("truth", run, [one]))
    return [asked[name] for name in one.needs()]


def _compiled(structure: Any, shapes: Seen) -> Callable[..., Sequence[Values]]:
    leaves, tree = jax.tree.flatten(shapes)
    return _program(structure, tree, tuple((a.shape, str(a.dtype)) for a in leaves), device())


def forget() -> None:
    """Lets go of all programs compiled so far, and of their memory: of certificates and polished
    networks half a GB for each size of the data. What is asked for again compiles anew."""
    jax.clear_caches()
    _program.cache_clear()


@once
def _program(
    structure: Any, tree: Any, leaves: tuple[Any, ...], here: jax.Device
) -> Callable[..., Sequence[Values]]:
    def compute(measurements: tuple[Measurement, ...], everything: Seen) -> list[Values]:
        return [
            measured(one, *(getattr(everything, name) for name in one.needs()))
            for one in measurements
        ]

    kinds, dtypes = structure
    numbers = jax.tree.unflatten(kinds, [jax.ShapeDtypeStruct((), d) for d in dtypes])
    everything = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    lowered: Any = jax.jit(compute).lower(numbers, everything)
    return lowered.compile(compiler_options=quick_options(here.platform))
