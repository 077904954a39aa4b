"""Who writes to a store: one process for the whole of it, or one for each shard."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from jaxkkt.process.files import named, write_whole

WHOLE = "whole"
# Looking whether somebody holds a lock takes it for a moment: one who looks at the same time waits.
SECONDS_TO_LOOK = 2.0


class Busy(OSError):
    """Another process writes to the store."""


@contextmanager
def only_writer(folder: Path, part: str = WHOLE) -> Iterator[None]:
    """Holds a part of the store, or the whole, until the end of the block or of the process.

    Shards such as 3-of-16 and 4-of-16 can be held at a time; one and the whole, or one of another
    number of shards, cannot. The
    system knows who holds what: a process that is stopped, and goes on later, has held it all the
    time. Raises Busy, which says who does.
    """
    locks = folder / "locks"
    with named(locks):
        locks.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(_held(locks, part, 0))
        for other in sorted({WHOLE, *(path.stem for path in locks.glob("*.lock"))} - {part}):
            if _side_by_side(part, other):
                continue
            with _held(locks, other, SECONDS_TO_LOOK):
                pass
        date = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"process": os.getpid(), "host": socket.gethostname(), "since": date}
        holder = locks / f"{part}.json"
        held.callback(holder.unlink, missing_ok=True)
        write_whole(holder, json.dumps(about).encode())
        yield


def _side_by_side(part: str, other: str) -> bool:
    """Whether two shards are of one number of shards, and so have no run in common."""
    counts = [name.rpartition("-of-")[2] for name in (part, other)]
    return WHOLE not in (part, other) and counts[0] == counts[1]


@contextmanager
def _held(locks: Path, part: str, seconds: float) -> Iterator[None]:
    lock = FileLock(locks / f"{part}.lock", timeout=seconds)
    try:
        with named(locks / f"{part}.lock"):
            lock.acquire()
    except OSError as error:
        if not isinstance(error.__cause__, Timeout):
            raise
        raise Busy(
            f"{locks.parent} is being written by {_told(locks, part)}: wait until that has ended, "
            "or let several processes share the work, each with a shard of it (shard=, --shard)"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _told(locks: Path, part: str) -> str:
    shard = "" if part == WHOLE else f", which has the shard {part}"
    try:
        about = json.loads((locks / f"{part}.json").read_text(encoding="utf-8"))
        return f"process {about['process']} of {about['host']} since {about['since']}{shard}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"another process{shard}"
