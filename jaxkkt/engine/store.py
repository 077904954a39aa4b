"""The folder where a study's rows land, one file each, written whole or not at all."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np

from jaxkkt.files import write_whole
from jaxkkt.networks import Params

FORMAT = 3


class Store:
    """Rows by name, of one sweep or study, in a folder: `settings.json` and `rows/<name>.json`.

    Opening a folder that holds one with other settings raises ValueError naming each field that
    differs. A row that was cut short, altered or renamed is set aside and computed again.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._rows, self._networks = self.folder / "rows", self.folder / "networks"
        settings = json.loads(json.dumps({"format": FORMAT, **settings}))
        path = self.folder / "settings.json"
        if path.exists():
            differing = differences(_read(path), settings)
            if differing:
                raise ValueError(
                    f"{self.folder} holds rows of other settings; give another folder, or the "
                    "same settings to go on with them. What differs:\n  " + "\n  ".join(differing)
                )
        elif self._rows.exists() and any(self._rows.iterdir()):
            raise ValueError(
                f"{self.folder} holds rows but no settings.json: not the folder of a sweep or "
                "study, or a damaged one; give another folder"
            )
        else:
            self._rows.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(settings, indent=1).encode())

    @classmethod
    def of(cls, folder: str | Path) -> "Store":
        """A store that is there already, to be read; ValueError where there is none."""
        store = cls.__new__(cls)
        store.folder = Path(folder)
        store._rows, store._networks = store.folder / "rows", store.folder / "networks"
        if not (store.folder / "settings.json").is_file():
            raise ValueError(f"{folder} is no store: it has no settings.json")
        return store

    def prepare(self) -> None:
        """Removes this store's own files that were cut short, and sees whether rows can be written:
        OSError naming the folder where not. Only for the one that writes here."""
        own = [*self._rows.glob("*.json.part"), *self._networks.glob("*.npz.part")]
        own += [self.folder / "settings.json.part", self.folder / "results.nc.part"]
        for leftover in own:
            leftover.unlink(missing_ok=True)
        probe = self._rows / "probe.json.part"  # no row has such a name
        write_whole(probe, b"")
        probe.unlink()

    def load(self, names: Iterable[str]) -> dict[str, Any]:
        """The rows that have landed."""
        found = {}
        for name in names:
            path = self._rows / f"{name}.json"
            if not path.exists():
                continue
            try:
                checksum, values = path.read_text().split("\n", 1)
                if checksum != _checksum(name, values):
                    raise ValueError("the checksum does not match")
                found[name] = json.loads(values)
            except ValueError as error:
                path.replace(path.with_suffix(".damaged"))
                warn(
                    f"{path} is damaged ({error}): set aside, to be computed again",
                    stacklevel=2,
                )
        return found

    def save(self, name: str, row: Any) -> None:
        """Writes what JSON can hold."""
        values = json.dumps(row)
        text = f"{_checksum(name, values)}\n{values}"
        write_whole(self._rows / f"{name}.json", text.encode())

    def save_network(self, name: str, params: Params) -> None:
        """Writes a network's parameters as NumPy's npz, without pickle."""
        self._networks.mkdir(exist_ok=True)
        content = BytesIO()
        np.savez(content, **params._asdict())
        write_whole(self._networks / f"{name}.npz", content.getvalue())

    def has_network(self, name: str) -> bool:
        return (self._networks / f"{name}.npz").is_file()

    def load_network(self, name: str) -> Params:
        """The parameters that `save_network` wrote; ValueError where there are none."""
        path = self._networks / f"{name}.npz"
        if not path.is_file():
            kept = len(list(self._networks.glob("*.npz")))
            raise ValueError(
                f"{self.folder} keeps no network of this run, but {kept} of others: sweep it with "
                "keep='params', or with the run among those to keep"
            )
        with np.load(path, allow_pickle=False) as arrays:
            return Params(**{field: arrays[field] for field in Params._fields})


def _read(settings: Path) -> Any:
    try:
        return json.loads(settings.read_text())
    except ValueError as error:
        raise ValueError(
            f"{settings} was cut short or altered ({error}) and no longer tells what the rows "
            "beside it are of: bring it back from a copy, or give another folder"
        ) from error


def _checksum(name: str, values: str) -> str:
    """Of a row and what it is called: a file that was renamed does not match."""
    return sha256(f"{name}\n{values}".encode()).hexdigest()


def differences(
    old: Any, new: Any, where: tuple[str, str] = ("in the folder", "now"), name: str = ""
) -> list[str]:
    """A line for each field, at any depth, that is not the same in `old` and `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in differences(old.get(k), new.get(k), where, f"{name}.{k}")]
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list):
        gone = [v for v in old if v not in new]
        come = [v for v in new if v not in old]
        return [
            f"{name[1:]}: {len(old)} {where[0]}, {len(new)} {where[1]}; "
            f"only {where[0]}: {gone[:3]}, only {where[1]}: {come[:3]}"
        ]
    return [f"{name[1:]}: {old!r} {where[0]}, {new!r} {where[1]}"]
