"""What JAX traced, kept between processes beside what it compiled.

To trace a program and to write it down for the compiler takes longer than to read it compiled.
"""

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, TypeVar

import jax
from jax import export

from jaxkkt.caching import make_private
from jaxkkt.engine.devices import environment
from jaxkkt.loaded import is_as_written
from jaxkkt.specs.optimizers import Optax

log = logging.getLogger("jaxkkt")

T = TypeVar("T")

FOLDER = "traces"
MOST_BYTES = 2**28
# Whose functions and classes a name tells: the environment has the versions of these, and the
# package's code.
TOLD_BY_NAME = frozenset(("jaxkkt", "jax", "jaxlib", "optax", "numpy", "builtins"))
# JAX's settings that have these in their names say where it computes, keeps and tells.
WHERE = "cache", "device", "dump", "log"
DIGEST_BYTES = sha256().digest_size


class Program(NamedTuple):
    """A function to be compiled for arrays like these arguments. What `donates` may overwrite the
    first of them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donates: bool = False

    def lowered(self) -> Any:
        donated = 0 if self.donates else ()
        return jax.jit(self.function, donate_argnums=donated).lower(*self.arguments)


class Traced(NamedTuple):
    """A program's StableHLO, and the structures of what it is given and returns."""

    code: bytes
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

        exported = export.export(jax.jit(of_leaves))(*leaves)
        return cls(bytes(exported.serialize()), given, returned[0], program.donates)

    def lowered(self) -> Any:
        exported = export.deserialize(bytearray(self.code))

        def call(*arguments: Any) -> Any:
            found = exported.call(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(self.returned, found)

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
    with _told("a trace cannot be read"):
        if (found := _read(path)) is not None:
            beside, parts = found
            return beside, {name: ready(name, one) for name, one in parts.items()}
    beside, programs = make()
    done, parts = dict[str, Any](), dict[str, Traced]()
    for name, program in programs.items():
        if path is not None:
            with _told("a trace is not kept"):
                traced = Traced.of(program)
                done[name] = ready(name, traced)
                parts[name] = traced
        if name not in done:
            done[name] = ready(name, program)
    if parts.keys() == done.keys():
        _write(path, (beside, parts))
    return beside, done


def kept(asked: Any, make: Callable[[], T]) -> T:
    """What follows from what is `asked` for and from JAX's settings, as `make` makes it.

    Where JAX keeps compiled programs in a folder it is made once, and read from there by other
    processes. Not so where what is asked for holds functions or classes from elsewhere, for a name
    does not tell what those compute; nor where the package is no more what its files say. What
    cannot be read is made, and what cannot be written is not kept.
    """
    path = _path(asked)
    with _told("a trace cannot be read"):
        if (found := _read(path)) is not None:
            return found
    made = make()
    _write(path, made)
    return made


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What raises is told to who looks for it, and nothing else becomes of it."""
    try:
        yield
    except Exception as error:
        log.debug("%s: %s", what, error)


class _Teller(pickle.Pickler):
    """Writes what is asked for; raises where that holds what a name does not tell."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type) and issubclass(thing, Optax) and thing is not Optax:
            return thing.made_as
        if callable(thing):
            module = str(getattr(thing, "__module__", None) or "builtins")
            if module.split(".")[0] not in TOLD_BY_NAME:
                raise pickle.PicklingError(f"{thing!r} is not told by its name")
        return NotImplemented


def _path(asked: Any) -> Path | None:
    """The file of what is asked for; None where nothing is kept."""
    config: Any = jax.config
    folder = config.jax_compilation_cache_dir
    if not folder or "://" in folder or not config.jax_enable_compilation_cache:
        return None
    told = BytesIO()
    try:
        _Teller(told).dump(asked)
        if not is_as_written():
            return None
        make_private(Path(folder) / FOLDER)
        settings = {
            name: getattr(config, name, value)
            for name, value in config.values.items()
            if not any(word in name for word in WHERE)
        }
    except (pickle.PicklingError, AttributeError, TypeError, OSError) as error:
        log.debug("a trace is not kept: %s", error)
        return None
    told.write(repr((environment(), sorted(settings.items()))).encode())
    return Path(folder) / FOLDER / sha256(told.getvalue()).hexdigest()


def _read(path: Path | None) -> Any:
    """What was written there; None where nothing was, not all of it, or another's."""
    if path is None or not path.exists():
        return None
    content = path.read_bytes()
    os.utime(path)
    digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return pickle.loads(rest) if digest == _digest(path, rest) else None


def _write(path: Path | None, made: Any) -> None:
    """Whole or not at all; those that were not used for longest make room."""
    if path is None:
        return
    with _told("a trace is not kept"):
        content = pickle.dumps(made)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(_digest(path, content) + content)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        size = 0
        for one in sorted(path.parent.iterdir(), key=_last_used, reverse=True):
            size += one.stat().st_size
            if size > MOST_BYTES:
                one.unlink(missing_ok=True)


def _digest(path: Path, content: bytes) -> bytes:
    return sha256(path.name.encode() + content).digest()


def _last_used(path: Path) -> int:
    return path.stat().st_mtime_ns
