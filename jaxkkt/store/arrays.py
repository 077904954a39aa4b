"""Arrays in a file that knows whose they are, written whole or not at all, read without pickle."""

from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from jaxkkt.process.files import write_whole

_OWNER, _CHECKSUM = "owner", "checksum"


def write_arrays(path: Path, owner: str, arrays: Mapping[str, Any], at_once: bool = True) -> None:
    """Writes NumPy's npz as `write_whole`; OSError naming the file where it cannot be written."""
    named = {_OWNER: np.asarray(owner), **{name: np.asarray(a) for name, a in arrays.items()}}
    content = BytesIO()
    np.savez(content, **named, **{_CHECKSUM: np.asarray(digest_of(named))})  # type: ignore[arg-type]
    write_whole(path, content.getvalue(), at_once)


def read_arrays(path: Path, owner: str) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote for this owner.

    Raises ValueError for a file that is damaged or somebody else's; nothing in it is executed.
    """
    content = BytesIO(path.read_bytes())
    try:
        with np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        checksum = str(arrays.pop(_CHECKSUM))
        if checksum != digest_of(arrays):
            raise ValueError("the checksum does not match")
        whose = str(arrays.pop(_OWNER))
    except Exception as error:  # of NumPy, zipfile and zlib, whatever the bytes are
        raise ValueError(
            f"{path} is damaged ({error}): remove it, and what it held is computed again"
        ) from error
    if whose != owner:
        raise ValueError(f"{path} holds the arrays of {whose!r}: it was renamed; remove it")
    return arrays


def digest_of(arrays: Mapping[str, Any]) -> str:
    """A hash of arrays by name: of their names, types, shapes and numbers."""
    hashed = sha256()
    for name, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array)
        hashed.update(f"{name} {values.dtype.str} {values.shape} ".encode())
        hashed.update(values.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()[:20]
