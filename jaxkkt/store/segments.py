"""Segments: append-only files of checksummed lines, one for each process that writes.

The first line says which segment it is and what wrote it, and is there twice. Each line after it is
a row, by its name, or a definition that rows of this segment refer to. A line's checksum covers the
first line's, so that a line counts in its own segment alone. A process never appends to another
one's segment: what a killed one left, its last line perhaps cut short, stays as it is.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from errno import ENOENT
from hashlib import sha256
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from jaxkkt.process.files import named, sync_folder

FORMAT = 4
SUFFIX = ".rows"
DATE = "%Y%m%dT%H%M%S.%f"
# All that a process leaves which is killed while it writes a segment's first line.
BEGINNING = re.compile(rb"[0-9a-f]{0,32}|[0-9a-f]{32} [ -~]*")
# Lines reach the system at once, and the disk at least so often: a machine that loses its power
# loses rows of so long, a killed process none.
SECONDS_BETWEEN_SYNCS = 1.0


class Newer(ValueError):
    """A segment that only a newer jaxkkt can read."""


class Segment(NamedTuple):
    """What a segment holds. `damaged` are the numbers of lines that do not match their checksum.
    A last line that was cut short is none of them: so a killed process leaves it."""

    path: Path
    about: Mapping[str, Any]
    definitions: Mapping[str, Any]
    rows: list[tuple[str, Any]]
    damaged: list[int]


class Writer:
    """Appends to a segment of its own, which is there, and on the disk, as soon as this is made.

    Threads may share it. Raises OSError naming the file where it cannot be written, and writes
    nothing more after that.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.path = folder / f"{_begun(folder):{DATE}}-{uuid4().hex[:12]}{SUFFIX}"
        self._lock, self._broken = Lock(), False
        self._defined: set[str] = set()
        with named(self.path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o666)
        header = json.dumps({"format": FORMAT, "segment": self.path.stem, **about})
        self._salt = _checksum("", header)
        self._end, self._synced = 0, monotonic()
        with self._lock:
            self._append(2 * f"{self._salt} {header}\n")
        self._begin = self._end
        self.sync()
        with named(self.path):
            sync_folder(folder)

    def add(self, name: str, row: Any, definitions: Mapping[str, Any] | None = None) -> None:
        """Appends a row; see `add_all`."""
        self.add_all([(name, row, definitions or {})])

    def add_all(self, rows: Iterable[tuple[str, Any, Mapping[str, Any]]]) -> None:
        """Appends rows of what JSON can hold, by name, each after the definitions that it brings
        and that are new here."""
        with self._lock:
            new: dict[str, Any] = {}
            lines: list[Any] = []
            before: Mapping[str, Any] = {}
            for name, row, definitions in rows:
                if definitions is not before:  # rows that are alike bring the same ones
                    before, known = definitions, (self._defined, new)
                    mine = {n: d for n, d in definitions.items() if all(n not in k for k in known)}
                    new |= mine
                    lines += [{"define": n, "as": d} for n, d in mine.items()]
                lines.append({"row": name, "is": row})
            self._append("".join(_line(self._salt, json.dumps(line)) for line in lines))
            self._defined.update(new)
        if monotonic() - self._synced > SECONDS_BETWEEN_SYNCS:
            self.sync()

    def sync(self) -> None:
        """What was appended is on the disk when this returns."""
        with self._lock, self._unbroken():
            os.fsync(self._file)
            if not os.fstat(self._file).st_nlink:
                raise FileNotFoundError(ENOENT, "it was removed while rows were written to it")
            self._synced = monotonic()

    def close(self) -> None:
        """Removes the segment if it has no row."""
        try:
            if not self._broken:
                self.sync()
        finally:
            empty = os.fstat(self._file).st_size <= self._begin
            os.close(self._file)
            if empty:
                self.path.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        with self._unbroken():
            while left:
                left = left[os.write(self._file, left) :]
            self._end += len(text.encode())

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """After an error within nothing more is written; a line that was begun is taken back."""
        if self._broken:
            raise OSError(f"{self.path} could not be written before: nothing is added to it")
        try:
            with named(self.path):
                yield
        except BaseException:
            self._broken = True
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise


def _begun(folder: Path) -> datetime:
    """Now, or right after the folder's last segment where a clock was ahead: what is written last
    counts, and the names tell the order."""
    now, last = datetime.now(UTC), max((p.name for p in folder.glob(f"*{SUFFIX}")), default="")
    with suppress(ValueError):  # of a name that is none of ours
        before = datetime.strptime(last.split("-")[0], DATE).replace(tzinfo=UTC)
        return max(now, before + timedelta(microseconds=1))
    return now


def read(path: Path) -> Segment:
    """What a segment holds, whoever wrote it. One that is gone held no row: its process took it.

    Raises ValueError where it was written by a newer version, or its first lines are damaged: what
    the others were made by is not known then.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        lines, rest = [], b""
    if not lines and BEGINNING.fullmatch(rest):
        return Segment(path, {}, {}, [], [])  # its process was killed as it began
    about, salt, first = _header(path, lines)
    definitions: dict[str, Any] = {}
    found, damaged = [], [] if first else [1]
    for number, line in enumerate(lines[2:], 3):
        text = _intact(salt, line)
        if text is None:
            damaged.append(number)
            continue
        try:
            value = json.loads(text)
            if "row" in value:
                found.append((number, str(value["row"]), value["is"]))
            else:
                definitions[str(value["define"])] = value["as"]
        except (ValueError, LookupError, TypeError, RecursionError):
            damaged.append(number)
    if len(lines) > 1 and lines[0] != lines[1] and first:
        damaged.insert(0, 2)
    known: dict[str, bool] = {}
    whole = [all(_is_whole(n, definitions, known) for n in _referred(row)) for _, _, row in found]
    rows = [(name, row) for (_, name, row), there in zip(found, whole, strict=True) if there]
    lacking = [number for (number, _, _), there in zip(found, whole, strict=True) if not there]
    return Segment(path, about, definitions, rows, sorted([*damaged, *lacking]))


def _referred(row: Any) -> Iterator[str]:
    """The definitions that a row refers to by itself."""
    if isinstance(row, dict):
        if isinstance(row.get("spec"), str):
            yield row["spec"]
        if isinstance(row.get("measured"), dict):
            yield from row["measured"]


def _is_whole(name: str, definitions: Mapping[str, Any], known: dict[str, bool]) -> bool:
    """Whether a definition is there, with those that it refers to in turn."""
    if name not in known:
        known[name] = name in definitions
        one = definitions.get(name)
        if isinstance(one, dict) and isinstance(one.get("columns"), dict):  # what a run is
            parts, curve = one.get("is"), one.get("curve")
            more = [one["about"]] if isinstance(one.get("about"), str) else []
            more += [one["variables"]] if isinstance(one.get("variables"), str) else []
            more += list(parts.values()) if isinstance(parts, dict) else []
            more += curve if isinstance(curve, list) else []
            known[name] = all(n in definitions for n in more if isinstance(n, str))
    return known[name]


def intact_lines(path: Path) -> Iterator[bytes]:
    """The lines of a segment that match their checksums, the first one twice, but for rows that
    lack what they refer to."""
    *lines, _ = path.read_bytes().split(b"\n")
    _, _, first = _header(path, lines)
    header = lines[0] if first else lines[1]
    yield from (header, header)
    damaged = set(read(path).damaged)
    yield from (line for number, line in enumerate(lines[2:], 3) if number not in damaged)


def together(path: Path, other: Path) -> list[bytes] | None:
    """The lines of a segment that need not be there, and of a copy of it that is whole, each in the
    order in which they were written; None where the segment has all of the copy's.

    Raises ValueError where the two are not copies of one segment, whatever they are called.
    """
    header, _, *theirs = intact_lines(other)
    there = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    heads = [line for line in there[:2] if _intact("", line) is not None]
    if any(line != header for line in heads):
        raise ValueError(
            f"{path} and {other} have one name, and are not of one process: rename one of them"
        )
    salt = header.split(b" ", 1)[0].decode()
    mine = [line for line in there if _intact(salt, line) is not None]
    places = {line: i for i, line in enumerate(mine)}
    if heads and places.keys() >= set(theirs):
        return None
    found, taken = [header, header], 0
    for line in theirs:
        if line not in places:
            found.append(line)
        elif places[line] >= taken:
            found += mine[taken : places[line] + 1]
            taken = places[line] + 1
    return found + mine[taken:]


def _header(path: Path, lines: list[bytes]) -> tuple[Mapping[str, Any], str, bool]:
    """What the first lines say, the checksum of that, and whether it is the very first."""
    for number, line in enumerate(lines[:2]):
        text = _intact("", line)
        if text is not None:
            about = _plausible(path, text)
            if about["format"] > FORMAT:
                raise Newer(
                    f"{path} is of format {about['format']}, written by a newer jaxkkt; this one "
                    f"reads up to {FORMAT}: update it"
                )
            return about, _checksum("", text), not number
    raise ValueError(
        f"{path} begins with neither of the two lines that say what wrote it: cut short, damaged, "
        "or no segment of a store"
    )


def _plausible(path: Path, text: str) -> Mapping[str, Any]:
    try:
        about = json.loads(text)
        if isinstance(about["format"], int) and isinstance(about.get("settings", {}), dict):
            return {"settings": {}, **about}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError(f"{path} does not say what wrote it: no segment of a store")


def _line(salt: str, text: str) -> str:
    return f"{_checksum(salt, text)} {text}\n"


def _intact(salt: str, line: bytes) -> str | None:
    """The text of a line that matches its checksum."""
    try:
        checksum, text = line.decode().split(" ", 1)
    except ValueError:
        return None
    return text if checksum == _checksum(salt, text) else None


def _checksum(salt: str, text: str) -> str:
    return sha256(f"{salt}{text}".encode()).hexdigest()[:32]
