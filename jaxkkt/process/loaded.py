"""Whether the package that is loaded is what its files say: by those is told what is kept of it
between processes."""

import sys
from collections.abc import Iterator, Mapping
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = __name__.split(".")[0]
# What Python itself adds to classes.
_PYTHONS = {"__dict__", "__weakref__", "__annotations__", "__annotations_cache__", "__slotnames__"}


def _about(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino


class _Noted:
    """What a module, a class or a table held when this was made."""

    def __init__(self, names: Mapping[Any, Any]) -> None:
        self._names, self._last = names, dict(names)
        self._held = _without_pythons(self._last)

    def holds(self) -> bool:
        """Whether it holds the very same now."""
        now = dict(self._names)
        # At once where nothing at all has changed, as nearly always.
        if all(map(is_, now.values(), self._last.values())) and list(now) == list(self._last):
            return True
        found, held = _without_pythons(now), self._held
        if found.keys() != held.keys() or not all(map(is_, map(found.get, held), held.values())):
            return False
        self._last = now
        return True


def _without_pythons(names: Mapping[Any, Any]) -> dict[Any, Any]:
    """Without what Python adds itself, and without modules, which are noted by themselves."""
    module = "__spec__" in names
    return {
        name: value
        for name, value in names.items()
        if not (name in _PYTHONS or isinstance(value, ModuleType))
        and not (module and name.startswith("__"))
    }


# As the import began; none where the package is in an archive.
_FILES = {path: _about(path) for path in Path(__file__).parents[1].rglob("*.py")}
_noted: dict[ModuleType, list[_Noted]] = {}
_changes: set[str] = set()


def remember() -> None:
    """Notes what the package's modules hold, once all are imported; once in a process."""
    if not _noted:
        mine = [one for name, one in sys.modules.items() if name.split(".")[0] == _PACKAGE]
        _noted.update({one: list(map(_Noted, _namespaces(one))) for one in mine})


def is_as_written() -> bool:
    """Whether no file of the package has changed since its import began, and nothing was replaced
    that its modules held after it: a function or a class's, a number, an entry of a public table.
    """
    found = _has_its_files() and _holds_the_same()
    if not found:
        _changes.add("seen")
    return found


def was_always_so() -> bool:
    """Whether `is_as_written` has always been True, up to `forget_changes`: JAX remembers traces of
    what was there meanwhile."""
    return not _changes


def forget_changes() -> None:
    """For who makes JAX forget its traces."""
    _changes.clear()


def _has_its_files() -> bool:
    try:
        return bool(_FILES) and all(_about(path) == about for path, about in _FILES.items())
    except OSError:
        return False


def _holds_the_same() -> bool:
    there = all(sys.modules.get(module.__name__) is module for module in _noted)
    return bool(_noted) and there and all(one.holds() for some in _noted.values() for one in some)


def _namespaces(module: ModuleType) -> Iterator[Mapping[Any, Any]]:
    """What a module, its classes and its public tables hold."""
    names = vars(module)
    yield names
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield vars(value)
        elif isinstance(value, dict) and not name.startswith("_"):
            yield value
