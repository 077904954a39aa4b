"""Files that are whole or not there."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that after a crash at any time it holds all of it, or is as it was.

    Raises OSError naming the file where it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        why = f"cannot be written ({error.strerror or error}): see to the disk and permissions"
        raise OSError(error.errno, why, str(path)) from error
