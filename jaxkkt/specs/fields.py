"""What the fields of a spec are: what their types say, and what is kept of a value."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from math import copysign
from numbers import Integral, Real
from operator import is_
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import jax
import numpy as np
from jaxtyping import Array, Float, Int

# Fields of these types ride along with a lane: other values of them compile nothing anew. Fields
# of any other type are structure, which makes programs.
Number = Annotated[float | Float[Array, ""], "a number of a lane"]
Count = Annotated[int | Int[Array, ""], "a number of a lane"]
_TRACED = {Number: float, Count: int}
_SCALARS: tuple[tuple[Any, type], ...] = (
    (bool, bool),
    (float, float),
    (int, int),
    (float | None, float),
    (int | None, int),
)
# The largest `Count`: lanes hold them in 32 bits.
MOST = 2**31 - 1


def described(
    long_name: str,
    units: str = "1",
    *,
    default: Any,
    shown: bool = True,
    identity: bool = True,
) -> Any:
    """A field with what results say about it: its `long_name` and `units`.

    Tables leave it out unless `shown`. Without `identity` it changes no number of a run.
    """
    about = {"long_name": long_name, "units": units, "shown": shown, "identity": identity}
    return field(default=default, compare=identity, metadata=about)


@dataclass(frozen=True)
class FieldType:
    """What the annotation of a field says of its values."""

    traced: type | None = None  # float where it is a `Number`, int where a `Count`
    scalar: type | None = None  # bool, float or int
    items: Any = None  # the annotation of its tuples, where it may hold some

    @property
    def depth(self) -> int:
        """How deep tuples are in each other in a value; 0 where it is none."""
        hint, deep = self.items, 0
        while get_origin(hint) is tuple:
            hint, deep = get_args(hint)[0] if get_args(hint) else None, deep + 1
        return deep

    def kept(self, name: str, value: Any) -> Any:
        """What a spec keeps of a value of its field `name`; ValueError where it fits none."""
        if self.traced is not None:
            return _number(name, value, self.traced)
        if self.scalar is bool and not isinstance(value, bool | np.bool_):
            # Any text counts as true, 'no' as well.
            raise ValueError(f"{name} must be True or False, got {value!r}")
        if self.scalar is float and is_number(value):
            return float(value) + 0.0
        if self.scalar is int and is_number(value):  # 3.0 equals 3, and is computed with otherwise
            if not isinstance(value, Integral):
                raise ValueError(f"{name} must be an integer, got {value!r}")
            return int(value)
        return _plain(value, self.items)


def field_types(cls: type) -> dict[str, FieldType]:
    """The types of the fields of a dataclass, by name."""
    hints: dict[str, Any] = {}
    for parent in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(parent):  # of others annotations are no fields
            hints |= _own_hints(parent)
    return {f.name: _field_type(hints[f.name]) for f in fields(cls)}


def _own_hints(cls: type) -> dict[str, Any]:
    own = get_annotations(cls)
    if not any(isinstance(hint, str) for hint in own.values()):
        return own
    try:
        evaluated = get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ValueError(
            f"the types of {cls.__name__}'s fields cannot be evaluated: {error}. Define what they "
            "name in the class's module, or leave the quotes out"
        ) from error
    return {name: evaluated[name] for name in own}


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number of this kind: True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def types_of(value: Any) -> Any:
    """Tells values apart that are equal: by their types, and by the sign of 0."""
    if isinstance(value, tuple):
        return (type(value), *map(types_of, value))
    if isinstance(value, float):
        return type(value), copysign(1, value)
    return type(value)


def _field_type(hint: Any) -> FieldType:
    traced = next((kind for marked, kind in _TRACED.items() if _mentions(hint, marked)), None)
    scalar = next((kind for one, kind in _SCALARS if hint == one), None)
    tuples = (one for one in (hint, *get_args(hint)) if get_origin(one) is tuple)
    return FieldType(traced, scalar, next(tuples, None))


def _mentions(hint: Any, marked: Any) -> bool:
    if hint == marked:
        return True
    return not hasattr(hint, "__metadata__") and any(_mentions(h, marked) for h in get_args(hint))


def _number(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """A value of a `Number` or `Count`: None and traced ones as they are."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        value = value.item() if value.ndim == 0 else value
    if value is None or isinstance(value, jax.Array):
        return value
    if not is_number(value, Real if kind is float else Integral):
        what = "a number" if kind is float else "an integer"
        raise ValueError(f"{name} must be {what}, got {value!r}")
    number = kind(value)
    if kind is int and number > MOST:
        raise ValueError(f"{name} must be at most {MOST}, got {number}")
    if kind is int and number < -MOST - 1:
        raise ValueError(f"{name} must be at least {-MOST - 1}, got {number}")
    return number + kind(0)  # -0.0 has the hash of 0.0


def _plain(value: Any, hint: Any = None) -> Any:
    """NumPy's numbers and texts as Python's own, in tuples, too; in one of floats, or of whole
    numbers, all as these. So equal values have one type."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is not tuple:
        return value
    of: Any = get_args(hint)[0] if get_origin(hint) is tuple and get_args(hint) else None
    wanted: Any = {float: Real, int: Integral}.get(of)
    numbers = wanted is not None and all(is_number(one, wanted) for one in value)
    plain = tuple(of(one) + of(0) if numbers else _plain(one, of) for one in value)
    same = all(map(is_, plain, value))
    return value if same else plain
