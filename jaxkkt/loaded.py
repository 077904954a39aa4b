"""Whether the package that is loaded is what its files say: by those is told what is kept of it
between processes."""

import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from time import time_ns
from types import ModuleType
from typing import Any

_BEGAN = time_ns()
_FOLDER = Path(__file__).parent
_PACKAGE = __name__.split(".")[0]
# What Python itself adds to classes.
_PYTHONS = "__dict__", "__weakref__", "__annotations__", "__annotations_cache__", "__slotnames__"

_Place = tuple[str, ...]
_remembered: dict[_Place, Any] = {}


def remember() -> None:
    """Notes what the package's modules, classes and public tables hold, once all are imported."""
    _remembered.clear()
    _remembered.update(_held({name for name in sys.modules if name.split(".")[0] == _PACKAGE}))


def is_as_written() -> bool:
    """Whether no file of the package has changed since its import began, and nothing was replaced
    since in what `remember` noted: a function by another, a number, an entry of a table."""
    if not _remembered or max(path.stat().st_ctime_ns for path in _files()) > _BEGAN:
        return False
    now = dict(_held({module for module, *_ in _remembered}))
    return now.keys() == _remembered.keys() and all(
        now[place] is value for place, value in _remembered.items()
    )


@cache
def _files() -> list[Path]:
    return list(_FOLDER.rglob("*.py"))


def _held(modules: Collection[str]) -> Iterator[tuple[_Place, Any]]:
    for module in modules:
        for name, value in list(vars(sys.modules[module]).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            yield (module, name), value
            inside: list[tuple[Any, Any]] = []
            if isinstance(value, type) and value.__module__ == module:
                inside = [item for item in list(vars(value).items()) if item[0] not in _PYTHONS]
            elif isinstance(value, dict) and not name.startswith("_"):
                inside = list(value.items())
            for key, one in inside:
                yield (module, name, str(key)), one
