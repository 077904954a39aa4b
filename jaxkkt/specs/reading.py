"""Specs read back from JSON."""

import importlib
from typing import Any

from jaxkkt.specs.base import Spec
from jaxkkt.specs.identity import PACKAGE


def from_json(value: Any) -> Any:
    """What `Spec.to_json` wrote.

    It imports what the JSON names, and calls it: read none that you do not trust. Raises
    ValueError for a class or function that cannot be imported from where it was, for arrays, of
    which JSON holds the hash alone, and for anything else that `to_json` did not write.
    """
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"function"}:
        return _imported(value["function"])
    if not isinstance(value.get("kind"), str):
        raise ValueError(
            "from_json takes what `to_json` of a run or spec wrote, a dictionary with its 'kind' "
            f"and fields, got {value!r:.80}"
        )
    cls = _class_of(value["kind"])
    if not (isinstance(cls, type) and issubclass(cls, Spec)):
        raise ValueError(f"{value['kind']!r} is no kind of spec")
    known = {k: from_json(v) for k, v in value.items() if k not in ("kind", "computes")}
    return cls.from_fields(known)


def _class_of(kind: str) -> Any:
    if ":" in kind:
        return _imported(kind)
    module, _, name = kind.rpartition(".")
    for place in (f"{PACKAGE}.specs.{module}", f"{PACKAGE}.{module}"):
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            continue
    raise ValueError(f"no kind of spec is called {kind!r}: written by another version?")


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{name} cannot be imported here: put it into a module that can be imported"
        ) from error
    return found
