"""Looking after stores: is everything whole, taking out what is not, bringing several together."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxkkt.process.files import named, write_whole
from jaxkkt.store.arrays import read_arrays
from jaxkkt.store.lock import only_writer
from jaxkkt.store.segments import SUFFIX, Newer, Segment, intact_lines, read, together
from jaxkkt.store.store import CHECKPOINTS, Store, differences

DAMAGED = "damaged"


def stores(folder: str | Path) -> list[Path]:
    """The stores in a folder: itself, or those below it, as a study of several parts has them, by
    links, too. Each once. Raises ValueError where there is none.
    """
    folder, found, seen = Path(folder).expanduser(), [], set()
    for place, names, _ in os.walk(folder, followlinks=True):
        names.sort()
        if (real := os.path.realpath(place)) in seen:
            names.clear()
        elif "segments" in names and any(Path(place, "segments").glob(f"*{SUFFIX}")):
            found.append(Path(place))
        seen.add(real)
    if not found:
        raise ValueError(f"there is no store in {folder}: no folder `segments` with rows")
    return sorted(found)


def verify(folder: str | Path) -> list[str]:
    """What is wrong with a store, a line each; none where all is whole.

    A last line that was cut short is no fault: so a killed process leaves its segment.
    """
    store, problems, segments = Store.existing(folder), [], []
    for path in store.paths():
        try:
            segment = read(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        segments.append(segment)
        if segment.damaged:
            lines = ", ".join(map(str, segment.damaged[:5]))
            problems.append(f"{path}: {len(segment.damaged)} damaged lines ({lines})")
    problems += _contradictions(segments)
    return problems + [why for _, why in _damaged_arrays(store.folder)]


def repair(folder: str | Path) -> list[str]:
    """Takes damaged lines, segments and networks out of a store, into its folder `damaged`.

    Returns what was done, a line each. What was in them is as if it had not landed.
    """
    store, done = Store.existing(folder), []
    with only_writer(store.folder):
        for path in store.paths():
            try:
                segment = read(path)
            except Newer:
                raise
            except ValueError as error:
                done.append(f"{_copied_aside(path)}: {error}")
                path.unlink()
                continue
            if segment.damaged:
                whole = b"".join(line + b"\n" for line in intact_lines(path))
                done.append(f"{_copied_aside(path)}: {len(segment.rows)} rows kept")
                write_whole(path, whole)
        for path, why in _damaged_arrays(store.folder):
            done.append(f"{_copied_aside(path)}: {why}")
            path.unlink()
    return done


def merge(into: str | Path, sources: Sequence[str | Path]) -> list[str]:
    """Copies the rows and networks of other stores into one, which need not be there yet.

    Where a source holds stores in folders of its own, as a study of several parts does, so will
    the target. Rows keep what they say of where they were computed. The same again copies what is
    new. No row of the target is lost: of a segment that both have it gets the lines that it lacks,
    and what was damaged there is kept in its folder `damaged`. Returns what was done, a line a
    store. Raises ValueError where a source is damaged, and where two stores give one run, computed
    with the same settings, different numbers.
    """
    done = []
    for source in (Path(one).expanduser() for one in sources):
        for found in stores(source):
            target = Store(Path(into) / found.relative_to(source))
            if target.folder.resolve() == found.resolve():
                raise ValueError(f"{found} cannot be merged into itself")
            done.append(_merge(target, Store(found)))
    return done


def _merge(target: Store, source: Store) -> str:
    segments = [read(path) for path in source.paths()]
    bad = [str(s.path) for s in segments if s.damaged]
    bad += [str(path) for path, _ in _damaged_arrays(source.folder, "networks")]
    if bad:
        raise ValueError(f"{bad[0]} is damaged: repair {source.folder} first")
    with named(target.folder):
        (target.folder / "segments").mkdir(parents=True, exist_ok=True)
    with only_writer(target.folder):
        there = {segment.path: segment for segment in target.segments()}
        wrong = _contradictions([*there.values(), *segments])
        if wrong:
            raise ValueError(f"{source.folder} contradicts {target.folder}: {wrong[0]}")
        broken = {path for path, _ in _damaged_arrays(target.folder, "networks")}
        networks = rows = 0
        for path in sorted((source.folder / "networks").glob("*.npz")):
            copy = target.folder / "networks" / path.name
            if copy in broken:
                _copied_aside(copy)
            if copy in broken or not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                write_whole(copy, path.read_bytes())
                networks += 1
        for segment in segments:
            path = target.folder / "segments" / segment.path.name
            lines = together(path, segment.path) if segment.rows else None
            if lines is None:
                continue
            before = there.get(path)
            if path.exists() and (before is None or before.damaged):
                _copied_aside(path)
            write_whole(path, b"".join(line + b"\n" for line in lines))
            rows += len(read(path).rows) - (0 if before is None else len(before.rows))
    kept = f" and {networks} networks" if networks else ""
    return f"{target.folder}: {rows} rows{kept} of {source.folder}"


def _contradictions(segments: Sequence[Segment]) -> list[str]:
    """Rows of one name and settings, computed alike, that do not say the same."""
    first: dict[tuple[int, str, str], tuple[Segment, dict[str, object]]] = {}
    places: dict[str, int] = {}
    problems = []
    for segment in segments:
        settings = json.dumps(segment.about["settings"], sort_keys=True) if segment.rows else ""
        place = places.setdefault(settings, len(places))
        for name, value in segment.rows:
            said = _said(value)
            if said is None:
                continue
            there, before = first.setdefault(
                (place, str(value["computed_as"]), name), (segment, {})
            )
            for part, values in said.items():
                old = before.setdefault(part, values)
                if old is not values and json.dumps(old) != json.dumps(values):
                    told = differences(old, values, ("in one", "in the other"), f".{part}")
                    problems.append(
                        f"{there.path} and {segment.path} differ in {name}: {'; '.join(told[:3])}"
                    )
    return problems


def _said(value: Any) -> dict[str, Any] | None:
    """How a run ended and what was measured, of a row that is a run's and did not raise."""
    if not isinstance(value, dict) or not {"network", "computed_as"} <= value.keys():
        return None
    ending, measured = value.get("ending"), value.get("measured")
    if not isinstance(ending, dict) or not isinstance(measured, dict) or "error" in ending:
        return None
    return {"ending": ending, "network": value["network"], **measured}


def _damaged_arrays(folder: Path, *kinds: str) -> Iterator[tuple[Path, str]]:
    for kind in kinds or ("networks", CHECKPOINTS):
        for path in sorted((folder / kind).glob("*.npz")):
            try:
                read_arrays(path, path.stem)
            except FileNotFoundError:  # a checkpoint of a run that has landed meanwhile
                continue
            except ValueError as error:
                yield path, str(error)


def _copied_aside(path: Path) -> Path:
    """The place of a copy in the store's folder for what is damaged."""
    aside = path.parent.parent / DAMAGED
    with named(aside):
        aside.mkdir(exist_ok=True)
    number = 0
    while (place := aside / f"{path.name}.{number}").exists():
        number += 1
    write_whole(place, path.read_bytes())
    return place
