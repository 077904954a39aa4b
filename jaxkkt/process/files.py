"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


def write_whole(path: Path, content: bytes, at_once: bool = True) -> None:
    """Writes a file so that after a crash at any time it holds all of it, or is as it was.

    Unless it is to be on the disk `at_once` that is true of a crash of this process: one of the
    machine may leave a part. That takes less than half as long. Of several who write it at once,
    the last to end has it. Raises OSError naming the file where it cannot be written.
    """
    part = path.with_name(f"{path.name}.{token_hex(8)}.part")
    with named(path):
        try:
            with open(part, "wb") as file:
                file.write(content)
                if at_once:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if at_once:
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A file that was made or renamed in the folder is there after a crash of the machine, too."""
    if os.name == "nt":  # where a folder cannot be opened, and needs no fsync
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """OSErrors from within name this file and what to do."""
    try:
        yield
    except OSError as error:
        why = f"cannot be written ({error.strerror or error}): see to the disk and permissions"
        raise OSError(error.errno, why, str(path)) from error
