"""Whether the package that is loaded is what its files say: by those is told what is kept of it
between processes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = __name__.split(".")[0]
# What Python itself adds to classes.
_PYTHONS = "__dict__", "__weakref__", "__annotations__", "__annotations_cache__", "__slotnames__"

_Place = tuple[str, ...]


def _about(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino


# As the import began; none where the package is in an archive.
_FILES = {path: _about(path) for path in Path(__file__).parent.rglob("*.py")}
_remembered: dict[_Place, Any] = {}
_changes: set[str] = set()


def remember() -> None:
    """Notes what the package's modules hold, once all are imported; once in a process."""
    if not _remembered:
        _remembered.update(_held([name for name in sys.modules if name.split(".")[0] == _PACKAGE]))


def is_as_written() -> bool:
    """Whether no file of the package has changed since its import began, and nothing was replaced
    that its modules held after it: a function or a class's, a number, an entry of a public table,
    what a function does for some type."""
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
    modules = list({module for module, *_ in _remembered})
    if not modules or any(module not in sys.modules for module in modules):
        return False
    now = dict(_held(modules))
    return now.keys() == _remembered.keys() and all(
        now[place] is value for place, value in _remembered.items()
    )


def _held(modules: list[str]) -> Iterator[tuple[_Place, Any]]:
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
            elif hasattr(value, "register") and hasattr(value, "registry"):
                inside = list(value.registry.items())
            for key, one in inside:
                yield (module, name, str(key)), one
