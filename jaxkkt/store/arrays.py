"""Arrays in a file that knows whose they are, written whole or not at all, read without pickle."""

import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from jaxkkt.files import write_whole

_OWNER = "owner"


def write_arrays(path: Path, owner: str, arrays: Mapping[str, Any]) -> None:
    """Writes NumPy's npz; OSError naming the file where it cannot be written."""
    content = BytesIO()
    np.savez(content, **{_OWNER: np.asarray(owner)}, **arrays)  # type: ignore[arg-type]
    write_whole(path, content.getvalue())


def read_arrays(path: Path, owner: str) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote for this owner.

    Raises ValueError for a file that is damaged or somebody else's; nothing in it is executed.
    """
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        whose = str(arrays.pop(_OWNER, ""))
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        raise ValueError(
            f"{path} is damaged ({error}): remove it, and what it held is computed again"
        ) from error
    if whose != owner:
        raise ValueError(f"{path} holds the arrays of {whose!r}: it was renamed; remove it")
    return arrays
