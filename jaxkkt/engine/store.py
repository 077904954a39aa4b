"""The folder where a study's rows land, one file each, written whole or not at all."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import warn

from jaxkkt.files import write_whole

FORMAT = 1


class Store:
    """Rows by name, of one sweep or study, in a folder: `settings.json` and `rows/<name>.json`.

    Opening a folder that holds one with other settings raises ValueError naming each field that
    differs. A row that was cut short or altered is set aside and computed again.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._rows = self.folder / "rows"
        settings = json.loads(json.dumps({"format": FORMAT, **settings}))
        path = self.folder / "settings.json"
        if path.exists():
            differing = differences(json.loads(path.read_text()), settings)
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

    def tidy(self) -> None:
        """Removes files that were cut short; only for the one sweep that writes here."""
        for leftover in self.folder.rglob("*.part"):
            leftover.unlink()

    def load(self, names: Iterable[str]) -> dict[str, Any]:
        """The rows that have landed."""
        found = {}
        for name in names:
            path = self._rows / f"{name}.json"
            if not path.exists():
                continue
            try:
                checksum, values = path.read_text().split("\n", 1)
                if checksum != _checksum(values):
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
        text = f"{_checksum(values)}\n{values}"
        write_whole(self._rows / f"{name}.json", text.encode())


def _checksum(text: str) -> str:
    return sha256(text.encode()).hexdigest()


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
