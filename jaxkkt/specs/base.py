"""What a spec is: a small frozen class whose type tells numbers from structure."""

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from dataclasses import replace as replaced
from difflib import get_close_matches
from functools import cache, wraps
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import numpy as np

from jaxkkt.specs.fields import FieldType, described, field_types, types_of
from jaxkkt.specs.identity import (
    PACKAGE,
    Used,
    digest_of,
    digest_of_code,
    function_name,
    package_of,
)

S = TypeVar("S", bound="Spec")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(described, field))
class Spec:
    """The base of all specs. A subclass is a frozen dataclass by itself, with keyword arguments:

        class Blobs(jk.data.Distribution):
            sigma: jk.Number = 1.0

            def draw(self, key, samples, dim): ...

    A spec is a pytree. Its leaves are the fields of type `Number` (real) or `Count` (whole), and
    those of the specs that it holds; the other fields are static. Under `jax.jit` and `jax.vmap`
    the leaves may be traced. Raises ValueError for a number that is none, a whole one that needs
    more than 32 bits, and a field of type `bool` that is neither True nor False. A whole number
    given for one of type `float` is that as a float, and -0.0 is 0.0: equal specs have one name.
    """

    # By class: `dataclasses.fields` looks for them anew each time, and specs are looked at often.
    _types: ClassVar[dict[str, FieldType]] = {}
    _all_fields: ClassVar[tuple[Field[Any], ...]] = ()

    def __init_subclass__(cls, kw_only: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):  # what it set would be in no run's name
            raise ValueError(
                f"{cls.__name__} has an __init__ of its own: give it fields, as `sigma: jk.Number "
                "= 1.0`, and check them in __post_init__"
            )
        check = vars(cls).get("__post_init__")
        if check is not None and cls.__module__.split(".")[0] != PACKAGE:
            cls.__post_init__ = _and_kept(check)  # type: ignore[assignment, method-assign]
        dataclass(frozen=True, kw_only=kw_only, eq=False)(cls)
        cls._all_fields = fields(cls)  # type: ignore[arg-type]
        cls._types = field_types(cls)
        jax.tree_util.register_pytree_with_keys(
            cls, _flatten_with_keys, lambda aux, children: _unflatten(cls, aux, children), _flatten
        )

    def __post_init__(self) -> None:
        for name in self.field_names():
            value = getattr(self, name)
            kept = self._types[name].kept(name, value)
            if kept is not value:
                object.__setattr__(self, name, kept)

    def __eq__(self, other: object) -> bool:
        """Equal are specs of one class whose fields have equal values of the same types: 1 is
        neither True nor 1.0, of which functions may make something else."""
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        found: int | None = vars(self).get("_hash")
        if found is None:
            found = hash((type(self), self._compared()))
            object.__setattr__(self, "_hash", found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickled without its hash, which is of one process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    def _compared(self) -> tuple[Any, ...]:
        compared = (getattr(self, f.name) for f in self._all_fields if f.compare)
        return tuple((value, types_of(value)) for value in compared)

    @property
    def label(self) -> str:
        """What this kind of spec is called in tables: `UnitSphere` is "unit sphere"."""
        return _words(type(self).__name__)

    def replace(self: S, **changes: Any) -> S:
        """The same spec with other values of some fields."""
        self.require_fields(changes)
        return replaced(self, **changes)  # type: ignore[type-var]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in cls._all_fields)

    @classmethod
    def grid_fields(cls) -> tuple[str, ...]:
        """The fields that a grid can vary."""
        return cls.field_names()

    @classmethod
    def depth(cls, name: str) -> int:
        """How deep tuples are in each other in a value of this field; 0 where it is none."""
        cls.require_fields([name])
        return cls._types[name].depth

    @classmethod
    def require_fields(cls, names: Any) -> None:
        """Raises ValueError unless all are fields of this spec."""
        for name in names:
            if name not in cls.field_names():
                raise ValueError(unknown_field(name, cls.field_names(), cls.__name__))

    def require_hashable(self) -> None:
        """Raises ValueError for a field whose value cannot be told from others by a hash."""
        with suppress(TypeError):
            hash(self)
            return
        for name in self.field_names():
            value = getattr(self, name)
            try:
                hash(value)
            except TypeError as error:
                if isinstance(value, Spec):
                    continue
                raise ValueError(
                    f"{name} of {self.label!r} is {value!r}, but a run has one value of each field "
                    "that can be hashed, a number, text or a tuple of them: several values are an "
                    f"axis of the grid, as in jk.grid({name}=[0.1, 0.2], ...), and arrays are for "
                    "functions that close over them"
                ) from error

    def values(self) -> dict[str, Any]:
        """The fields that tables show, by name: all that are no specs themselves."""
        return {
            f.name: getattr(self, f.name)
            for f in self._all_fields
            if f.metadata.get("shown", True) and not isinstance(getattr(self, f.name), Spec)
        }

    def describe_values(self) -> dict[str, dict[str, str]]:
        """`long_name` and `units` of the fields that have them."""
        return {
            f.name: {key: f.metadata[key] for key in ("long_name", "units")}
            for f in self._all_fields
            if "long_name" in f.metadata
        }

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        """The spec as JSON can hold it: its kind, and its fields; `from_json` reads it back.

        With `digests`, what functions and classes from outside the package compute is part of it,
        at these `sizes` of data and network. Then it is the spec's identity: two specs that
        compute different things have different JSON, whatever they are called. Raises ValueError
        where a function cannot be told from others.
        """
        found: dict[str, Any] = {"kind": kind_of(type(self))}
        package = package_of(self.brought)
        if digests and package_of(type(self)) is None:
            found["kind"] = type(self).__name__  # which may move to another module
        for f in self._all_fields:
            value = getattr(self, f.name)
            if digests and package is None and callable(value):
                continue  # told by what it computes, not by its name
            if not digests or f.metadata.get("identity", True):
                found[f.name] = jsonable(value, digests, sizes)
        if digests and package != PACKAGE:  # whose code is in the settings of every store
            found["computes"] = digest_of_code(package) if package else self.digest(**sizes)
        return found

    @property
    def brought(self) -> Any:
        """The class or function whose code says what the spec computes."""
        return type(self)

    @property
    def compiled_as(self) -> Hashable:
        """Tells what is compiled of the spec's own functions from what is of others."""
        return id(self.brought)

    def computations(self) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The functions that a subclass brings, with example arguments: its identity.

        It is given those of a run's sizes that its parameters name, as `width` and `d`.
        """
        raise ValueError(
            f"what {type(self).__name__} computes cannot be told: give it a method `computations` "
            "that yields its functions with example arguments, or go on without a store"
        )

    @property
    def told_by_values(self) -> bool:
        """Whether some of it is not compiled, and so told by what it gives at its own numbers."""
        return False

    def digest(self, **sizes: Any) -> str:
        """A hash of what this spec computes at these sizes: at any of its numbers, unless it is
        `told_by_values`."""
        return digest_of(Used.at(self, sizes))

    @classmethod
    def from_fields(cls, values: dict[str, Any]) -> "Spec":
        cls.require_fields(values)
        return cls(**values)


def unchecked(spec: S, **values: Any) -> S:
    """The same spec with other values, which nothing looks at: they are known to be right, or none
    for programs that do not need them."""
    found = object.__new__(type(spec))
    for f in spec._all_fields:
        object.__setattr__(found, f.name, values.get(f.name, getattr(spec, f.name)))
    return found


def kind_of(cls: type) -> str:
    """The name of a spec's class in JSON: "data.Sphere", or "module:Name" from outside."""
    if cls.__module__.split(".")[0] == PACKAGE:
        module = cls.__module__.split(".")[1:]
        if module[0] == "specs":
            module = module[1:2]  # "data", of whatever file in it
        if module[0] == "measurements":
            module = module[:1]
        return ".".join([*module, cls.__name__])
    return f"{cls.__module__}:{cls.__qualname__}"


def unknown_field(name: str, known: Any, where: str = "") -> str:
    """A sentence for a misspelled field, with the nearest that exists."""
    near = get_close_matches(name, known, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    place = f" of {where}" if where else ""
    return f"no field{place} is called {name!r}{hint or '.'} There are {', '.join(sorted(known))}"


def jsonable(value: Any, digests: bool = False, sizes: dict[str, Any] | None = None) -> Any:
    """What JSON can hold of a field's value."""
    if isinstance(value, Spec):
        return value.to_json(digests, **(sizes or {}))
    if isinstance(value, tuple | list):
        return [jsonable(item, digests, sizes) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, jax.Array) and value.ndim == 0:
        return value.item()
    if callable(value):
        return {"function": function_name(value)}
    raise ValueError(f"{value!r} cannot be written as JSON: no spec can hold it")


def _and_kept(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """A `__post_init__` from outside, after which fields are what a spec keeps of them, though it
    leaves out that of its parent: lanes would take 0.5 beside a 1 for a whole number, too."""

    @wraps(check)
    def __post_init__(self: Any) -> None:
        check(self)
        Spec.__post_init__(self)

    return __post_init__


def _parts(spec: Spec) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[tuple[Any, ...], ...]]:
    names, children, static = [], [], []
    for f in spec._all_fields:
        value = getattr(spec, f.name)
        if spec._types[f.name].traced or _holds_specs(value):
            names.append(f.name)
            children.append(value)
        else:
            static.append((f.name, value, types_of(value)))
    return tuple(names), tuple(children), tuple(static)


def _holds_specs(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(item, Spec) for item in value)
    return isinstance(value, Spec)


def _flatten(spec: Spec) -> tuple[tuple[Any, ...], Any]:
    names, children, static = _parts(spec)
    return children, (names, static)


def _flatten_with_keys(spec: Spec) -> tuple[Any, Any]:
    names, children, static = _parts(spec)
    keys = (jax.tree_util.GetAttrKey(name) for name in names)
    return tuple(zip(keys, children, strict=True)), (names, static)


def _unflatten(cls: type, aux: Any, children: Any) -> Any:
    names, static = aux
    spec: Any = object.__new__(cls)
    for name, value in zip(names, children, strict=True):
        object.__setattr__(spec, name, value)
    for name, value, _ in static:
        object.__setattr__(spec, name, value)
    return spec


@cache
def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
