"""Names of what is measured, known before anything runs."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxkkt.engine.draws import asked_for
from jaxkkt.engine.packing import Layout, numbers
from jaxkkt.engine.traces import kept
from jaxkkt.engine.trained import network_like, points_like
from jaxkkt.measurements import Measurement, measured, require_axes
from jaxkkt.runs.columns import names_of_columns
from jaxkkt.runs.run import Run

# Names that the engine gives to how a run ended, and to the moments of a curve.
ENDING = ("log_loss", "steps", "status", "error")
CURVE = "curve_"


def names_of(
    run: Run, measurements: Sequence[Measurement], shape: tuple[int, int, int]
) -> dict[str, Measurement]:
    """The names that the measurements return, without running them. Those that take padding are
    traced at the `shape` (samples, d, width) that they are compiled for.

    Raises ValueError where two return the same name, or one that the engine gives itself, and where
    the dimensions that they name do not fit.
    """
    owners: dict[str, Measurement] = {}
    fields = run.fields()
    for one in measurements:
        if one.on_host:
            continue
        shapes = _example(run, one, shape)
        try:
            asked = "returned", Layout.of(numbers(one)), shapes
            returned = kept(asked, partial(jax.eval_shape, measured, one, *shapes))
        except jax.errors.JAXTypeError as error:
            raise ValueError(
                f"the measurement {one.label!r} cannot be traced by JAX: write it with jax.numpy, "
                "or make it a jk.Measurement with `on_host = True`, which is not compiled. "
                f"{error}"
            ) from error
        require_axes(one, returned)
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


def dimensions_of(run: Run) -> set[str]:
    """What its measurements call the dimensions of their arrays."""
    some = (*run.measure, *(() if run.curve is None else run.curve.measure))
    return {dim for one in some for along in one.axes().values() for dim in along}


def require_free_names(
    runs: Sequence[Run], returned: Collection[str], dimensions: Collection[str]
) -> None:
    """Raises ValueError where a field of a run, or a dimension that a measurement names, would be
    called what a table calls something else: how runs end, their fields and curves, or what their
    measurements return."""
    moments = {run.curve.dimension for run in runs if run.curve is not None}
    columns = names_of_columns(runs)
    taken = {*columns, *ENDING, *moments, *returned, "environment", "run", "seed"}
    for name in sorted(taken.intersection(dimensions)):
        raise ValueError(
            f"a measurement names a dimension {name!r}, but the table of results has that already: "
            "call the dimension something else in its `axes`"
        )
    for name in sorted(columns):
        own = name in (*ENDING, "environment", *moments) or name.startswith(CURVE)
        if own or name in returned:
            whose = "the engine's own name" if own else "returned by a measurement"
            raise ValueError(
                f"a run has a field {name!r}, but in the table of results this is {whose}: call "
                "the field something else"
            )


def _example(run: Run, one: Measurement, shape: tuple[int, int, int]) -> list[Any]:
    m, d, k = shape if one.padded else (run.samples, run.d, run.width)
    params = network_like(k, d)
    asked = {"params": params, "start": params, "data": points_like(m, d)}
    asked["protocol"] = run.protocol
    test = asked_for("test", run, [one])
    asked["test"] = None if test is None else points_like(test.y.size, d)
    asked["truth"] = _like(asked_for("truth", run, [one]))
    return [asked[name] for name in one.needs()]


def _like(arrays: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)
