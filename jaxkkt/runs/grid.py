"""Every combination of the values of any fields, as runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import signature
from itertools import product
from numbers import Real
from typing import Any

import jax
import numpy as np
import optax

from jaxkkt.process.garbage import uncollected
from jaxkkt.protocols import PROTOCOLS, Protocol
from jaxkkt.runs.parts import Changes, Made, Part
from jaxkkt.runs.run import Curve, Run, measurements
from jaxkkt.specs import data, initializations, optimizers
from jaxkkt.specs.base import Spec, unknown_field
from jaxkkt.specs.data import Data
from jaxkkt.specs.identity import short_name
from jaxkkt.specs.initializations import Initialization
from jaxkkt.specs.networks import ReLU2
from jaxkkt.specs.optimizers import Optimizer, Transformation

# The kinds that a grid knows by name.
DATA: dict[str, type[Data]] = {
    "sphere": data.Sphere,
    "unit sphere": data.UnitSphere,
    "gaussian": data.Gaussian,
    "digits": data.Digits,
    "mnist": data.Mnist,
    "clusters": data.Clusters,
    "span": data.Span,
}
INITIALIZATIONS: dict[str, type[Initialization]] = {
    "torch": initializations.Torch,
    "gaussian": initializations.Gaussian,
    "lazy": initializations.Lazy,
    "spanned": initializations.Spanned,
}
OPTIMIZERS: dict[str, type[Optimizer]] = {
    "flow": optimizers.Flow,
    "paper": optimizers.PaperSchedule,
    "descent": optimizers.Descent,
}


@uncollected()
def grid(*, measure: Any = None, curve: Curve | None = None, **axes: Any) -> list[Run]:
    """Every combination of the axes, as runs: `jk.grid(d=[20, 40], alpha=0.5, seed=range(2))`.

    An axis is any field of any spec, with one value or a list of them. Kinds are axes too: `data`
    (a name of `grid.DATA`, a spec or its class, a function (key, samples, dim) -> x, y, or a pair
    x, y of arrays), `initialization` (likewise), `protocol`, `optimizer` and `network`. An axis
    that belongs to some of the kinds applies to these alone: `momentum` beside an optimizer without
    it. Where two parts have a field of one name, and for initializations always, the part comes
    first: `init_scale`.

    `measure` is one or more measurements, all made of every run (default: `jk.Flips()`), `curve`
    the moments on the way at which runs are measured. Sample counts come by `alpha`
    (round(d^alpha)) or by `samples`; width is 1000 and seeds are 0 to 4 unless they are given.
    Raises ValueError for an empty axis, and for a field that no part has, with the nearest.
    """
    values = {name: _values(name, value) for name, value in axes.items()}
    empty = [name for name, some in values.items() if not some]
    if empty:
        raise ValueError(f"the grid is empty: no values for {', '.join(empty)}")
    kinds = {name: values.pop(name, [default]) for name, default in _DEFAULTS.items()}
    seeds = values.pop("seed", list(range(5)))
    common = {} if measure is None else {"measure": measurements(measure)}
    combinations = [dict(zip(kinds, some, strict=True)) for some in product(*kinds.values())]
    each = [_parts(combination, common.get("measure")) for combination in combinations]
    owned = [{name: o for name in values if (o := _owner(name, parts))} for parts in each]
    for name in values:
        if isinstance(axes[name], tuple) and _is_one_value(axes[name], name, each, owned):
            values[name] = [axes[name]]
    for name in values:
        if not any(name in owners for owners in owned):
            if name in ("d", "samples", "alpha") and any(map(_has_arrays, each)):
                raise ValueError(f"the data are arrays, which have their own {name}: leave it out")
            known = {known for parts in each for known in _names(parts)}
            told = unknown_field(name, {*_DEFAULTS, "seed", "measure", "curve", *known})
            if name in _LETTERS:
                told = f"no field is called {name!r}; did you mean {_LETTERS[name]!r}?"
            raise ValueError(_no_field(name, each) or told)
    for owners in owned:
        _require_one_axis_a_field(owners)
    runs: list[Run] = []
    for parts, owners in zip(each, owned, strict=True):
        fields = [name for name in axes if name in owners]
        width = {} if "width" in owners or "network" in axes else {"width": (0, 1000)}
        made = Made(parts)
        for chosen in product(*(enumerate(values[name]) for name in fields)):
            changes: Changes = {"network": dict(width)}
            for name, numbered in zip(fields, chosen, strict=True):
                part, field = owners[name]
                changes.setdefault(part, {})[field] = numbered
            first = made.run(changes, seeds[0], curve)
            runs += [first, *map(first.with_seed, seeds[1:])]
    return runs


# What the papers, and others, call fields.
_LETTERS = {"m": "samples", "n": "samples", "k": "width", "lr": "learning_rate"}
_DEFAULTS: dict[str, Any] = {
    "data": "sphere",
    "network": ReLU2,
    "initialization": "torch",
    "protocol": None,
    "optimizer": None,
}


def _values(name: str, value: Any) -> list[Any]:
    if isinstance(value, Mapping):  # it would be its names
        raise ValueError(f"{name} takes a value, or a list of several, got a dictionary")
    if name == "data" and (_is_pair(value) or _are_arrays(value)):
        return [value]
    if isinstance(value, str | Spec | type | bool) or callable(value):
        return [value]
    if isinstance(value, jax.Array):
        value = np.asarray(value)
    if isinstance(value, optax.GradientTransformation) or not isinstance(value, Iterable):
        return [value]
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = [value]
    return [_plain(v) for v in value]


def _is_one_value(value: tuple[Any, ...], name: str, each: Any, owned: Any) -> bool:
    """Whether a tuple is one value of the field that an axis stands for, not several."""
    owners = (
        (parts, owners[name]) for parts, owners in zip(each, owned, strict=True) if name in owners
    )
    depths = {parts[part].kind.depth(field) for parts, (part, field) in owners}
    return _depth(value) in depths


def _depth(value: Any) -> int:
    if not isinstance(value, tuple | list):
        return 0
    return 1 + max(map(_depth, value), default=0)


def _plain(value: Any) -> Any:
    """A number of NumPy or JAX as Python's own; anything else as it is."""
    if isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0:
        return value.item()
    return value


def _is_pair(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2 or isinstance(value[0], tuple):
        return False  # a tuple of pairs is an axis of several data
    return np.ndim(value[0]) == 2


def _are_arrays(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(a, np.ndarray | jax.Array) for a in value)


def _has_arrays(parts: dict[str, Part]) -> bool:
    return isinstance(parts["data"].made_from, data.Arrays)


def _parts(kinds: dict[str, Any], measure: Any) -> dict[str, Part]:
    protocol = kinds["protocol"]
    if isinstance(protocol, str):
        protocol = _named("protocol", protocol, PROTOCOLS)
    if protocol is None:
        protocol = Protocol()
    elif not isinstance(protocol, Spec | type) and callable(protocol):
        protocol = protocol()
    parts = {
        "data": Part(*_data(kinds["data"])),
        "network": Part(kinds["network"]),
        "init": Part(*_initialization(kinds["initialization"])),
        "protocol": Part(protocol),
    }
    rule = kinds["optimizer"]
    if rule is None:
        rule = getattr(protocol, "optimizer", None)
    if rule is not None:
        parts["optimizer"] = Part(_optimizer(rule))
    for i, one in enumerate(measurements(measure) if measure is not None else Run.measure):
        parts[f"measure{i}" if i else "measure"] = Part(one)
    return parts


def _names(parts: dict[str, Part]) -> Iterator[str]:
    """Every name by which a grid knows a field of these parts."""
    for part, template in parts.items():
        for field in template.known:
            if part != "init":
                yield field
            yield f"{part}_{field}"


def _no_field(name: str, each: Iterable[dict[str, Part]]) -> str:
    """Why a name that looks like a field of these parts, or of other kinds, is none of theirs."""
    for parts in each:
        for part, template in parts.items():
            own: Any = dict(template.fields).get("function")
            if own is not None and name in signature(own).parameters:
                return (
                    f"{name!r} is a parameter of the function {short_name(own)}, and functions "
                    f"have no axes: write a class with the field `{name}: jk.Number = ...` instead"
                )
            value = getattr(template.kind, name, None)
            if isinstance(value, Real) and not isinstance(value, bool):
                return (
                    f"{template.kind.__name__}.{name} is no field of the {part}: an annotation "
                    f"makes it one, `{name}: jk.Number = {value}`"
                )
    kinds: dict[str, Mapping[str, Any]]
    kinds = {"data": DATA, "initialization": INITIALIZATIONS, "optimizer": OPTIMIZERS}
    owners = [
        f"{kind}={one!r}"
        for kind, known in kinds.items()
        for one, cls in known.items()
        if name in cls.grid_fields()
    ]
    if not owners:
        return ""
    rules = [parts["optimizer"].made_from for parts in each if "optimizer" in parts]
    if any(isinstance(rule, Transformation) for rule in rules):
        return (
            f"{name!r} is no field of a transformation that is made already: pass what makes it, "
            f"optimizer=jk.optimizer(optax.adam), and {name}=..."
        )
    return f"{name!r} is a field of {' or '.join(owners)}, and no run here has that: give it, too"


def _owner(name: str, parts: dict[str, Part]) -> tuple[str, str] | None:
    """The part and the field that an axis stands for; None where these parts have none."""
    found = [
        (part, field)
        for part, template in parts.items()
        for field in template.known
        if name == f"{part}_{field}" or (name == field and part != "init")
    ]
    if len(found) > 1:
        choices = ", ".join(f"{part}_{field}" for part, field in found)
        raise ValueError(f"{name!r} is a field of several parts of a run: choose from {choices}")
    return found[0] if found else None


def _require_one_axis_a_field(owners: Mapping[str, tuple[str, str]]) -> None:
    axes = {owner: name for name, owner in owners.items()}
    twice = [(name, axes[owner]) for name, owner in owners.items() if axes[owner] != name]
    for name, other in twice:
        raise ValueError(f"{name!r} and {other!r} are axes of the same field: give one of them")


def _named(what: str, name: str, known: Mapping[str, Any], or_else: str = "") -> Any:
    if name not in known:
        others = f", {or_else}" if or_else else ""
        raise ValueError(f"unknown {what} {name!r}: choose from {sorted(known)}{others}")
    return known[name]


def _data(value: Any) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    if isinstance(value, str):
        return _named("data", value, DATA), ()
    if isinstance(value, Data) or (isinstance(value, type) and issubclass(value, Data)):
        return value, ()
    if _is_pair(value):
        return data.Arrays(*value), ()
    if callable(value):
        _require_takes("data", value, "key", "samples", "dim")
        return data.Function, (("function", value),)
    got = repr(value)
    if _are_arrays(value):
        shapes = ", ".join(str(np.shape(array)) for array in value)
        got = (
            f"arrays of shapes {shapes}: x is (samples, dimension), one row a point, and y "
            "(samples,); held-out points are given by jk.data.Arrays(x, y, x_test, y_test)"
        )
    elif isinstance(value, list):
        got = "a list in a list: several data are a list of tuples, data=[(x, y), (x2, y2)]"
    elif shape := np.shape(value):
        got = (
            f"one array, of shape {shape}: give points and labels as a tuple, data=(x, y); a list "
            "is an axis of several data"
        )
    raise ValueError(
        "data must be a name, a spec, a function (key, samples, dim) -> x, y or a pair of arrays, "
        f"got {got}"
    )


def _initialization(value: Any) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    if isinstance(value, str):
        return _named("initialization", value, INITIALIZATIONS), ()
    own = Initialization
    if isinstance(value, own) or (isinstance(value, type) and issubclass(value, own)):
        return value, ()
    if callable(value):
        _require_takes("initialization", value, "key", "width", "dim")
        return initializations.Function, (("function", value),)
    raise ValueError(
        f"initialization must be a name, a spec or a function (key, width, dim), got {value!r}"
    )


def _require_takes(what: str, function: Callable[..., Any], *names: str) -> None:
    """Raises ValueError for a function that cannot be called with so many arguments."""
    try:
        takes = signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # as of some that are built in
        return
    given = [one for one in takes.parameters if one in names]
    if len(given) == len(names) and given != list(names):
        raise ValueError(
            f"a function for {what} is called as f({', '.join(names)}), in this order, but "
            f"{short_name(function)} takes ({', '.join(given)})"
        )
    try:
        takes.bind(*names)
    except TypeError as error:
        raise ValueError(
            f"a function for {what} is called as f({', '.join(names)}), but "
            f"{short_name(function)}{takes} takes something else: {error}"
        ) from error


def _optimizer(value: Any) -> Any:
    if isinstance(value, str):
        optax_one = "or one of optax's, such as jk.optimizer(optax.adam, learning_rate=0.01)"
        return _named("optimizer", value, OPTIMIZERS, optax_one)
    if isinstance(value, type) and issubclass(value, Optimizer):
        return value
    return optimizers.optimizer(value)
