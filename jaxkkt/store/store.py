"""The folder where rows land: segments of rows, kept networks, checkpoints of long runs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from warnings import warn

from jaxkkt.networks import Params
from jaxkkt.process.files import named
from jaxkkt.store.arrays import read_arrays, write_arrays
from jaxkkt.store.lock import WHOLE, only_writer
from jaxkkt.store.segments import SUFFIX, Newer, Segment, Writer, read

# What is in a store's folder beside its own: a sweep's table, and its runs under way.
RESULTS, CHECKPOINTS = "results.nc", "checkpoints"


class Record(NamedTuple):
    """A row as it landed: its name, what it says, and the segment that says what wrote it."""

    name: str
    value: Any
    segment: Segment


class Store:
    """Rows by name, in `segments/` of a folder; networks in `networks/`.

    Reading needs nothing but the folder. What a row's bits depend on beside its name are the
    `settings` of its segment: other versions, devices or flags. All rows of all who ever wrote are
    kept; which of them count is for `landed` to say. A ~ at the front is the home folder. Raises
    ValueError for a folder without a name.
    """

    def __init__(self, folder: str | Path) -> None:
        if folder == "":
            raise ValueError("a store needs a folder, got '': for the current one give '.'")
        self.folder = Path(folder).expanduser()
        if self.folder.is_file():
            raise ValueError(f"a store is a folder, and {folder} is a file: name another place")
        self._networks = self.folder / "networks"

    @classmethod
    def existing(cls, folder: str | Path) -> "Store":
        """A store that is there already; ValueError where there is none."""
        store = cls(folder)
        if not (store.folder / "segments").is_dir():
            store._refuse_old()
            raise ValueError(f"{folder} is no store: it has no folder `segments`")
        return store

    def paths(self) -> list[Path]:
        """The segments' files, those that were begun first first."""
        return sorted((self.folder / "segments").glob(f"*{SUFFIX}"))

    def segments(self) -> list[Segment]:
        """All segments; a warning for each damaged line, whose row is as if it had not landed."""
        found = []
        for path in self.paths():
            try:
                segment = read(path)
            except Newer:
                raise
            except ValueError as error:
                warn(f"{error}. Its rows count as missing", stacklevel=3)
                continue
            if segment.damaged:
                lines = ", ".join(map(str, segment.damaged[:5]))
                warn(
                    f"{path} is damaged in {len(segment.damaged)} lines ({lines}): their rows "
                    f"count as missing. `jaxkkt store repair {self.folder}` takes them out",
                    stacklevel=3,
                )
            found.append(segment)
        return found

    def records(self) -> list[Record]:
        """All rows, in the order in which they landed."""
        return [Record(name, value, s) for s in self.segments() for name, value in s.rows]

    def landed(
        self, names: Iterable[str], settings: Mapping[str, Any], mix: bool = False
    ) -> dict[str, list[Record]]:
        """The rows of these names, each name's in the order in which they landed. Where no row is
        there nobody asks for a name.

        Raises ValueError naming what differs where one of them was computed with other settings,
        unless they may `mix`: then such rows come before those of the same settings.
        """
        self._refuse_old()
        records = self.records()
        wanted, same = set(names) if records else set(), plain(settings)
        mine = [record for record in records if record.name in wanted]
        segments = {id(record.segment): record.segment for record in mine}
        ours = {key for key, segment in segments.items() if segment.about["settings"] == same}
        others = [record for record in mine if id(record.segment) not in ours]
        if others and not mix:
            differing = differences(others[0].segment.about["settings"], same)
            raise ValueError(
                f"{self.folder} holds {len({record.name for record in others})} of these rows, "
                "computed with other settings. Name another folder (--out, store=), delete this "
                "one, take the same settings to go on with them, or say that they may mix (--mix, "
                "mix=True). What differs:\n  " + "\n  ".join(differing)
            )
        found: dict[str, list[Record]] = {}
        for record in sorted(mine, key=lambda r: id(r.segment) in ours):
            found.setdefault(record.name, []).append(record)
        return found

    @contextmanager
    def writing(
        self, settings: Mapping[str, Any], part: str = WHOLE, **about: Any
    ) -> Iterator[Writer]:
        """A segment for new rows, of the whole store or of a part that this process alone writes.

        Raises OSError, naming the file, where none can be written or another process writes here:
        before any work is lost on rows.
        """
        self._refuse_old()
        with named(self.folder):
            (self.folder / "segments").mkdir(parents=True, exist_ok=True)
        with self.alone(part):
            writer = Writer(self.folder / "segments", {"settings": plain(settings), **about})
            try:
                yield writer
            finally:
                writer.close()

    @contextmanager
    def alone(self, part: str = WHOLE) -> Iterator[None]:
        """`only_writer` of the store, or of a part, without files that were cut short before."""
        with only_writer(self.folder, part):
            if part == WHOLE:
                self._tidy()
            yield

    def save_network(self, name: str, network: str, params: Params) -> None:
        """Keeps the network of a row, by the row's name and the network's hash."""
        with named(self._networks):
            self._networks.mkdir(exist_ok=True)
        path = self._network(name, network)
        write_arrays(path, path.stem, params._asdict())

    def has_network(self, name: str, network: str) -> bool:
        return self._network(name, network).is_file()

    def load_network(self, name: str, network: str) -> Params:
        """The parameters that `save_network` wrote; ValueError where there are none, or they are
        damaged."""
        path = self._network(name, network)
        try:
            arrays: Any = read_arrays(path, path.stem)
        except FileNotFoundError as error:
            raise ValueError(f"{path} is gone") from error
        return Params(**{field: arrays[field] for field in Params._fields})

    def load_networks(self, names: Sequence[str]) -> Iterator[Params]:
        """What the last row of each name measured, one after the other; of a name without a row the
        one that is kept.

        Raises ValueError at once where that is not kept; and later where one is damaged. The folder
        is listed, and rows are looked through, once.
        """
        kept: dict[str, list[str]] = {}
        for path in self._networks.glob("*.npz"):
            name, _, network = path.stem.rpartition("-")
            kept.setdefault(name, []).append(network)
        if missing := [name for name in names if name not in kept]:
            raise ValueError(
                f"{self.folder} keeps no network of {missing[0]}, but those of {len(kept)} other "
                "runs: sweep it with keep='params', or with the run among those to keep"
            )
        asked = set(names)
        last = {name: kept[name][0] for name in names if len(kept[name]) == 1}
        last |= {
            record.name: record.value["network"]
            for record in self.records()
            if record.name in asked and _measured(record.value)
        }
        if other := [name for name in names if last.get(name) not in kept[name]]:
            name = other[0]
            raise ValueError(
                f"{self.folder} keeps a network of {name}, but no row that counts says that it "
                "measured that: sweep it again, with keep='params'"
            )
        return (self.load_network(name, last[name]) for name in names)

    def _network(self, name: str, network: str) -> Path:
        return self._networks / f"{name}-{network}.npz"

    def _tidy(self) -> None:
        """Removes this store's own files that were cut short."""
        for leftover in [
            *self._networks.glob("*.npz*.part"),
            *(self.folder / CHECKPOINTS).glob("*.npz*.part"),
            *(self.folder / "locks").glob("*.json*.part"),
            *self.folder.glob(f"{RESULTS}*.part"),
        ]:
            leftover.unlink(missing_ok=True)

    def _refuse_old(self) -> None:
        if (self.folder / "settings.json").exists() and (self.folder / "rows").is_dir():
            raise ValueError(
                f"{self.folder} is a store of jaxkkt 0.7.0 or before, with a file for each row: "
                "open it with that version, or give another folder"
            )


def _measured(value: Any) -> bool:
    """Whether a row says which network it measured: one that raised measured none."""
    return isinstance(value, dict) and "network" in value and "error" not in value.get("ending", ())


def plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


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
        if not gone and not come:  # in another order
            return []
        return [
            f"{name[1:]}: {len(old)} {where[0]}, {len(new)} {where[1]}; "
            f"only {where[0]}: {gone[:3]}, only {where[1]}: {come[:3]}"
        ]
    return [f"{name[1:]}: {old!r} {where[0]}, {new!r} {where[1]}"]
