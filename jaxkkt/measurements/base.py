"""What a measurement is: a function of a trained network, and of what it asks for by name."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.specs.base import Spec, jsonable
from jaxkkt.specs.fields import described
from jaxkkt.specs.identity import digest_of_array, short_name

# What a measurement may ask for, by the names of its parameters.
NEEDS = ("params", "data", "test", "start", "protocol", "curve", "truth")

# Measurements that have a most number of samples see multiples of so many, or what is padded less.
_SEEN = 256
# Up to here float64 holds all whole numbers.
_ALL_WHOLE = 2**53


class Measurement(Spec):
    """A function of a trained network, with numbers of its own as fields:

        class Flipped(jk.Measurement):
            size: jk.Number = 1.0

            def measure(self, params, data):
                moved = data.x - self.size * data.y[:, None] * some_direction
                return {"flipped": (jk.networks.margins(params, moved, data.y) < 0).mean()}

    `measure` is compiled. It gets what its parameters name, each at the run's own size. What it
    returns, a number, an array or a dictionary of them, becomes variables of the results; an array
    has dimensions of its own, NaN where those of another run are longer.
    """

    # Whether `measure` knows that samples with y = 0, and neurons and coordinates of zeros, are
    # padding. It then gets arrays of a size that runs of several sizes share, and so a program. A
    # class that brings a `measure` says so itself.
    padded: ClassVar[bool] = False
    # Whether `measure` runs as it is, on the host, instead of being compiled. It may then ask for
    # `curve`, too: the parameters at the moments of the run's curve, stacked. What it returns keeps
    # the precision of float64.
    on_host: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "measure" in vars(cls):  # another method, which may know nothing of padding
            cls.padded = vars(cls).get("padded", False)

    def measure(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @property
    def most_samples(self) -> int | None:
        """Up to how many samples `measure` takes, of one that is `padded`; None for any number.

        A run of no more is given no more, whatever runs are beside it.
        """
        return None

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """Attributes of the variables in the results: `long_name`, `units`, and by
        `ancillary_variables` the names of those that are 0 where a value counts in means."""
        return {}

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        found = super().to_json(digests, **sizes)
        if "computes" in found:  # what `measure` is given, and where it computes, is part of that
            found |= {"padded": self.padded, "on_host": self.on_host}
        return found

    def axes(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """For variables that are arrays: their dimensions by name, and the values along each.

        No value comes twice. An array that is shorter than its dimension is NaN at the end.
        """
        return {}

    def needs(self) -> tuple[str, ...]:
        """What `measure` asks for; ValueError where that is not among `NEEDS`.

        A parameter with a default, `test=None`, is given where the run has it.
        """
        return tuple(_needs(self.called(), self.label))

    def requires(self) -> tuple[str, ...]:
        """What `measure` cannot do without."""
        asked = _needs(self.called(), self.label).items()
        return tuple(name for name, one in asked if one.default is one.empty)

    def called(self) -> Callable[..., Any]:
        """The function that says what is recorded; ValueError where there is none."""
        if type(self).measure is Measurement.measure:
            raise ValueError(
                f"the measurement {self.label!r} has no method `measure(self, params, data)`, "
                "which says what is recorded"
            )
        return self.measure

    def computations(
        self,
        *,
        samples: int = 4,
        d: int = 3,
        width: int = 5,
        protocol: Any = None,
        truth: Any = None,
        tests: int | None = None,
        moments: int | None = 1,
    ) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        def spec(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))

        params = Params(spec(width, d), spec(width), spec(width))
        data = Dataset(spec(samples, d), spec(samples))
        test = None if tests == 0 else Dataset(spec(tests or samples, d), spec(tests or samples))
        known: dict[str, Any]
        known = {"params": params, "start": params, "data": data, "test": test}
        given = None if truth is None else jax.tree.unflatten(*truth)
        curve = None
        if moments is not None:
            curve = Params(*(spec(moments, *leaf.shape) for leaf in params))
        known |= {"protocol": protocol, "curve": curve, "truth": given}
        asked = [known[name] for name in self.needs()]

        def told(here: Measurement, *args: Any) -> dict[str, Any]:
            return {name: _traceable(value) for name, value in measured(here, *args).items()}

        yield told, (self, *asked)


class Function(Measurement):
    """An own function as a measurement; its name is that of the one number that it returns."""

    function: Callable[..., Any] = described("own function", default=None, shown=False)

    @property
    def label(self) -> str:
        return short_name(self.function)

    def called(self) -> Callable[..., Any]:
        return self.function

    def measure(self, *args: Any) -> Any:
        """Calls the function: by name after a star, or after what a `functools.partial` gives."""
        named, placed = dict[str, Any](), list[Any]()
        asked = _needs(self.function, self.label).items()
        for (name, one), value in zip(asked, args, strict=True):
            if one.kind is one.KEYWORD_ONLY:
                named[name] = value
            else:
                placed.append(value)
        return self.function(*placed, **named)

    @property
    def brought(self) -> Any:
        return self.function


def measurement(value: Any) -> Measurement:
    """A measurement from what a user gives: a spec, its class, or a function."""
    if isinstance(value, Measurement):
        return value
    if isinstance(value, type) and issubclass(value, Measurement):
        return value()
    if callable(value):
        return Function(function=value)
    raise ValueError(
        f"a measurement is a function, such as f(params, data), or a jk.Measurement, got {value!r}"
    )


def samples_seen(measurements: Iterable[Measurement], samples: int) -> int | None:
    """To how many samples a run's data may be padded for these measurements; None for any number.

    Those that take no more than `most_samples` take longer than in proportion to the samples.
    """
    bounds = [most for one in measurements if (most := one.most_samples) and most >= samples]
    return min([*bounds, -(-samples // _SEEN) * _SEEN]) if bounds else None


def measured(here: Measurement, *args: Any) -> dict[str, Array | np.ndarray]:
    """What a measurement returns, by name; ValueError where that is no real number or array, or has
    no name. Arrays of JAX where it is compiled; what the host measures keeps its own type."""
    found = here.measure(*args)
    if not isinstance(found, Mapping):
        if here.label == "<lambda>":
            raise ValueError(
                "a lambda has no name for what it returns: return a dictionary, {name: value}, or "
                "write a function"
            )
        found = {here.label.replace(" ", "_"): found}
    values = {}
    for name, value in found.items():
        told = f"the measurement {here.label!r} must return numbers or arrays, or a dictionary of "
        try:
            array = _of_host(value) if here.on_host else jnp.asarray(value)
        except _Inexact as error:
            raise ValueError(
                f"the measurement {here.label!r} returns {name!r} = {error.args[0]!r:.40}, but "
                "tables hold float64, which has no such number: return it rounded, or its parts "
                "by several names"
            ) from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{told}them, but {name!r} is {type(value).__name__}") from error
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise ValueError(f"{told}them, but {name!r} is a key: give its jax.random.key_data")
        if jnp.iscomplexobj(array):
            raise ValueError(
                f"{told}them, but {name!r} is {array.dtype}: give its real and imaginary parts"
            )
        values[_writable(str(name), here)] = array
    return values


def require_axes(one: Measurement, returned: Mapping[str, Any]) -> None:
    """Raises ValueError unless the dimensions that a measurement names fit the arrays that it
    returned, or their shapes."""
    for name, along in one.axes().items():
        shape = np.shape(returned[name]) if name in returned else None
        lengths = tuple(len(some) for some in along.values())
        told = f"`axes` of the measurement {one.label!r} names for {name!r}"
        for dim, some in along.items():
            _writable(dim, one)
            known = jsonable(list(some))
            if not all(isinstance(value, int | float | str) for value in known):
                raise ValueError(
                    f"{told} the values {list(some)} of {dim!r}, but those of a table's dimension "
                    "are numbers or texts"
                )
            if len({value if value == value else None for value in known}) < len(known):
                raise ValueError(f"{told} a value of {dim!r} twice: {list(some)}")
        if shape is None or (len(shape) == len(lengths) and all(map(int.__le__, shape, lengths))):
            continue
        dims = ", ".join(f"{dim!r} of {n} values" for dim, n in zip(along, lengths, strict=True))
        raise ValueError(
            f"{told} {dims or 'no dimension'}, but it is an array of shape {shape}: give every "
            "dimension of it a name, and at least as many values as it is long"
        )


def _writable(name: str, here: Measurement) -> str:
    """The name; ValueError where netCDF can give no variable, or dimension, that name."""
    if not name or "/" in name:
        raise ValueError(
            f"the measurement {here.label!r} calls a variable or a dimension {name!r}, but a table "
            "with that cannot be written: give it a name, without '/'"
        )
    return name


class _Inexact(Exception):
    """A number that float64 does not hold."""


def _of_host(value: Any) -> Array | np.ndarray:
    """As an array of its own type; of JAX where it is traced. Raises TypeError or ValueError for
    what is no number, and `_Inexact` for one that float64 does not hold."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return jnp.asarray(value)
    array = np.asarray(value)
    whole = array.dtype == object and all(isinstance(one, int) for one in array.flat)
    if isinstance(value, np.ma.MaskedArray) or not (whole or _is_number(array.dtype)):
        raise TypeError
    if array.dtype.kind in "iu":
        if array.itemsize > 4:
            beyond = (array > _ALL_WHOLE) | (array < -_ALL_WHOLE)
            _require_exact(map(int, array[beyond]))
        return array
    if whole or array.dtype.char == "g":  # longer than float64
        _require_exact(array.flat)
        return array.astype(float)
    return array


def _is_number(dtype: np.dtype[Any]) -> bool:
    known = jnp.issubdtype(dtype, jnp.number) or dtype.kind == "b"
    return known and dtype.kind != "m"  # a time, which NumPy takes for a whole number


def _require_exact(numbers: Iterable[Any]) -> None:
    """Raises `_Inexact` for one that float64 does not hold."""
    for one in numbers:
        try:
            same = one != one or type(one)(float(one)) == one
        except OverflowError:
            same = False
        if not same:
            raise _Inexact(one)


def _traceable(value: Any) -> Any:
    """Numbers that the host knows without its arguments are told by their bits: a traced program
    would round them."""
    if not isinstance(value, np.ndarray):
        return value
    return np.frombuffer(bytes.fromhex(digest_of_array(value)), np.uint8)


def _needs(function: Callable[..., Any], label: str) -> Mapping[str, inspect.Parameter]:
    names = dict(inspect.signature(function).parameters)
    bound = inspect.unwrap(function)  # as by jax.jit(partial(...))
    for name in bound.keywords if isinstance(bound, partial) else ():
        names.pop(name, None)
    unknown = [name for name in names if name not in NEEDS]
    if unknown:
        raise ValueError(
            f"the measurement {label!r} asks for {', '.join(map(repr, unknown))}: its parameters "
            f"may be {', '.join(map(repr, NEEDS))}"
        )
    return names
