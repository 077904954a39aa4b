"""`jaxkkt store`: what is in a store, is it whole, and what becomes of it."""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import tyro

from jaxkkt.engine.tables.results import save
from jaxkkt.engine.tables.stored import read_rows, read_store
from jaxkkt.process.files import named
from jaxkkt.store import Store, care
from jaxkkt.training import SUCCEEDED, Status

Folder = Annotated[Path, tyro.conf.Positional]


def main(arguments: Sequence[str]) -> int:
    """Runs a command on stores; returns the exit code: 0, 1 for a store that is not whole or runs
    that failed, 2 for an error."""
    commands: dict[str, Callable[..., Any]] = {
        "list": list_,
        "failed": failed,
        "verify": verify,
        "repair": repair,
        "merge": merge,
        "export": export,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _say
            return tyro.extras.subcommand_cli_from_dict(
                commands, prog="jaxkkt store", description=__doc__, args=list(arguments)
            )
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _say(message: Warning | str, *args: Any, **more: Any) -> None:
    """A warning without the line of source that gave it."""
    print(f"warning: {message}", file=sys.stderr)


def list_(folder: Folder = Path("results")) -> int:
    """What is in the stores of a folder: runs, how they ended, what computed them, how much."""
    for path in care.stores(folder):
        store = Store(path)
        segments = store.segments()
        rows = read_rows(path) if any(s.rows for s in segments) else pd.DataFrame()
        print(path)
        ended = rows.drop_duplicates("run") if len(rows) else rows
        ends = Counter(Status(int(status)).name.lower() for status in ended.get("status", ()))
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ends.items())
        more = f" in {len(rows)} rows" if len(rows) > len(ended) else ""
        print(f"  {len(ended)} runs{more}{': ' if told else ''}{told}")
        for about in {str(_short(s.about)): _short(s.about) for s in segments if s.about}.values():
            print(f"  computed by {about}")
        kept = len(list((path / "networks").glob("*.npz")))
        size = sum(map(_size, path.rglob("*")))
        print(f"  {len(segments)} segments, {kept} networks, {size / 2**20:.1f} MiB")
    return 0


def _size(path: Path) -> int:
    """Bytes of a file; 0 of what is none, as one that a sweep has taken away meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def failed(folder: Folder = Path("results"), traceback: bool = False) -> int:
    """The runs that did not end as they were meant to, and why.

    Args:
        folder: a store, or a folder of stores.
        traceback: of runs that raised, the whole traceback instead of its last line.
    """
    found = 0
    for path in care.stores(folder):
        rows = read_rows(path)
        if "status" not in rows:
            continue
        ended = rows.drop_duplicates("run")  # a run has several rows where it was measured anew
        bad = ended[~ended["status"].isin([int(status) for status in SUCCEEDED])]
        found += len(bad)
        names = [name for name in ("samples", "d", "width", "seed") if name in bad]
        for _, row in bad.iterrows():
            status = Status(int(row["status"]))
            where = ", ".join(f"{name} = {row[name]}" for name in names)
            why = status.describe()
            if isinstance(row.get("error"), str) and row["error"]:
                why = row["error"] if traceback else row["error"].strip().splitlines()[-1]
            print(f"{path}: {where}: {status.name}: {why}")
    print(f"{found} runs failed")
    return 1 if found else 0


def verify(folder: Folder = Path("results")) -> int:
    """Reads everything in the stores of a folder and tells what is damaged."""
    problems = 0
    for path in care.stores(folder):
        for problem in care.verify(path):
            problems += 1
            print(problem)
    print(f"{problems} problems" if problems else "all is whole")
    return 1 if problems else 0


def repair(folder: Folder = Path("results")) -> int:
    """Takes what is damaged out of the stores of a folder, into their folder `damaged`: a sweep
    computes it again."""
    for path in care.stores(folder):
        for line in care.repair(path):
            print(line)
    return 0


def merge(into: Folder, sources: Annotated[tuple[Path, ...], tyro.conf.Positional]) -> int:
    """Copies the rows and networks of stores into one: of shards, or of other machines.

    Args:
        into: the store, or folder of stores, that gets them; it need not be there.
        sources: the stores, or folders of stores, that are copied.
    """
    if not sources:
        raise ValueError("name the stores to copy from, too: jaxkkt store merge INTO FROM ...")
    for line in care.merge(into, sources):
        print(line)
    return 0


def export(folder: Folder, file: Folder) -> int:
    """Writes all rows of a store to one file: netCDF (.nc), Parquet (.parquet) or CSV (.csv).

    Args:
        folder: a store.
        file: in netCDF a grid of runs has a dimension for each field that varies; the others have
            a row a run, and of arrays in CSV the numbers as JSON.
    """
    kinds = (".nc", ".parquet", ".csv")
    if file.suffix not in kinds:
        raise ValueError(f"a file is called {', '.join(f'*{kind}' for kind in kinds)}, got {file}")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} to write {file.name} to: make it first")
    if file.suffix == ".nc":
        save(read_store(folder), file)
        print(f"wrote {file}")
        return 0
    found: Any = read_rows(folder).apply(_of_one_type)
    with named(file):
        if file.suffix == ".csv":
            found.map(_as_json).to_csv(file, index=False)
        else:
            found.to_parquet(file, index=False)
    print(f"wrote {file}")
    return 0


def _of_one_type(column: Any) -> Any:
    """A column as it is, or as words where it holds words and numbers: a file has one type for
    each. What is missing stays so."""
    there = column.notna()
    words = {isinstance(value, str | bool) for value in column[there]}
    return column.where(~there, column.map(str)) if len(words) > 1 else column


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _short(about: Mapping[str, Any]) -> str:
    settings, by = about["settings"], about.get("written_by") or {}
    version = (settings.get("versions") or {}).get("jaxkkt")
    code = str(settings.get("code"))[:8]
    return f"jaxkkt {version} ({code}) on {settings.get('device')} of {by.get('host')}"
