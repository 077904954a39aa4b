"""What JAX traced, kept between processes beside what it compiled.

To trace a program and to write it down for the compiler takes longer than to read it compiled.
"""

import logging
import os
import pickle
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax import export

from jaxkkt.engine.machine.devices import device, environment
from jaxkkt.process.caching import make_private
from jaxkkt.process.files import write_whole
from jaxkkt.process.loaded import is_as_written, was_always_so
from jaxkkt.specs.optimizers import Optax

log = logging.getLogger("jaxkkt")

T = TypeVar("T")

FOLDER = "jaxkkt-traces"
MOST_BYTES = 2**28
# Whose functions and classes a name tells: the versions of these are known, and the package's code.
LIBRARIES = "jax", "jaxlib", "optax", "numpy"
TOLD_BY_NAME = {"builtins", "jaxkkt", *LIBRARIES}
# JAX's settings that have these in their names say where it computes, keeps and tells.
WHERE = "cache", "device", "dump", "log"
DIGEST_BYTES = sha256().digest_size


class Program(NamedTuple):
    """A function to be compiled for arrays like these arguments. What `donates` may overwrite the
    first of them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donates: bool = False

    @property
    def name(self) -> str:
        """That of the function, by which JAX tells it."""
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return str(function.__name__)

    def lowered(self) -> Any:
        donated = 0 if self.donates else ()
        return jax.jit(self.function, donate_argnums=donated).lower(*self.arguments)


class Traced(NamedTuple):
    """A program's StableHLO, its name, and the structures of what it is given and returns."""

    code: bytes
    name: str
    given: Any
    returned: Any
    donates: bool

    @classmethod
    def of(cls, program: Program) -> "Traced":
        leaves, given = jax.tree.flatten(program.arguments)
        returned = []

        def of_leaves(*leaves: Any) -> list[Any]:
            result = program.function(*jax.tree.unflatten(given, leaves))
            found, structure = jax.tree.flatten(result)
            returned.append(structure)
            return found

        platforms = ["cpu"] if device().platform == "cpu" else None  # JAX's default is a GPU's
        exported = export.export(jax.jit(of_leaves), platforms=platforms)(*leaves)
        code = bytes(exported.serialize())
        return cls(code, program.name, given, returned[0], program.donates)

    def lowered(self) -> Any:
        exported = export.deserialize(bytearray(self.code))

        def call(*arguments: Any) -> Any:
            found = exported.call(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(self.returned, found)

        call.__name__ = call.__qualname__ = self.name
        leaves = [jax.ShapeDtypeStruct(like.shape, like.dtype) for like in exported.in_avals]
        return Program(call, jax.tree.unflatten(self.given, leaves), self.donates).lowered()


def compiled(
    asked: Any,
    make: Callable[[], tuple[T, Mapping[str, Program]]],
    options: Callable[[str], Mapping[str, Any]],
) -> tuple[T, dict[str, Any]]:
    """Programs by name, compiled with the `options` of each, and what `make` gives beside them.

    They are `kept` as they were traced. One is compiled before the next is traced: other threads
    trace theirs meanwhile.
    """

    def ready(name: str, one: Program | Traced) -> Any:
        return one.lowered().compile(compiler_options=dict(options(name)))

    path = _path(asked)
    try:
        if (found := _read(path)) is not None:
            beside, parts = found
            return beside, {name: ready(name, one) for name, one in parts.items()}
    except Exception as error:
        log.info("a trace cannot be read: %s", error)
    beside, programs = make()
    done, parts = dict[str, Any](), dict[str, Traced]()
    keeps = path is not None and was_always_so()
    for name, program in programs.items():
        if keeps:
            try:
                traced = Traced.of(program)
                done[name] = ready(name, traced)
                parts[name] = traced
            except Exception as error:  # what JAX cannot write down
                log.info("a trace is not kept: %s", error)
                keeps = False
        if name not in done:
            done[name] = ready(name, program)
    if keeps:
        _write(asked, path, (beside, parts))
    return beside, done


def kept(asked: Any, make: Callable[[], T]) -> T:
    """What follows from what is `asked` for and from JAX's settings, as `make` makes it.

    Where JAX keeps compiled programs in a folder it is made once, and read from there by other
    processes. Not so where what is asked for holds functions or classes from elsewhere, for a name
    does not tell what those compute; nor where the package is not what its files say. What cannot
    be read is made, and what cannot be written is not kept.
    """
    path = _path(asked)
    try:
        if (found := _read(path)) is not None:
            return found
    except Exception as error:
        log.info("a trace cannot be read: %s", error)
    made = make()
    _write(asked, path, made)
    return made


class _Teller(pickle.Pickler):
    """Writes what is asked for; raises where that holds what a name does not tell."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type) and issubclass(thing, Optax) and thing is not Optax:
            make, arguments = thing.made_as
            if make(*arguments) is thing:
                return thing.made_as
        if callable(thing):
            module = str(getattr(thing, "__module__", None) or "builtins")
            if module.split(".")[0] not in TOLD_BY_NAME:
                raise pickle.PicklingError(f"{thing!r} is not told by its name")
        return NotImplemented


def _path(asked: Any) -> Path | None:
    """The file of what is asked for; None where nothing is kept."""
    if not is_as_written():
        return None
    config: Any = jax.config
    folder = config.jax_compilation_cache_dir
    if not folder or "://" in folder or not config.jax_enable_compilation_cache:
        return None
    told, home = BytesIO(), Path(folder) / FOLDER
    try:
        _Teller(told).dump(asked)
        if home.is_symlink():
            raise PermissionError(f"{home} is a link")
        make_private(home)
        settings = {
            name: getattr(config, name, value)
            for name, value in config.values.items()
            if not any(word in name for word in WHERE)
        }
    except Exception as error:
        log.debug("a trace is not kept: %s", error)
        return None
    told.write(repr((environment(), _libraries(), sorted(settings.items()))).encode())
    return home / sha256(told.getvalue()).hexdigest()


@cache
def _libraries() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def _read(path: Path | None) -> Any:
    """What was written there; None where nothing was, not all of it, or another's."""
    if path is None or not path.exists():
        return None
    content = path.read_bytes()
    digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if digest != _digest(path, rest):
        return None
    with suppress(OSError):
        os.utime(path)
    return pickle.loads(rest)


def _write(asked: Any, path: Path | None, made: Any) -> None:
    """Whole or not at all, and only where it is still what the file's name tells."""
    if path is None or not was_always_so() or _path(asked) != path:
        return
    try:
        content = pickle.dumps(made)
        write_whole(path, _digest(path, content) + content)
        _make_room(path.parent)
    except Exception as error:  # what cannot be pickled, a full disk
        log.info("a trace is not kept: %s", error)


def _digest(path: Path, content: bytes) -> bytes:
    return sha256(path.name.encode() + content).digest()


def _make_room(folder: Path) -> None:
    """Those that were not used for longest go, and parts that a killed process left."""
    found = list[tuple[int, int, Path]]()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process makes room, too
            about = path.stat()
            if re.fullmatch(r"[0-9a-f]{64}(\.[0-9a-f]+\.part)?", path.name):
                found.append((about.st_mtime_ns, about.st_size, path))
    size = 0
    for _, bytes_, path in sorted(found, reverse=True):
        size += bytes_
        if size > MOST_BYTES:
            path.unlink(missing_ok=True)
