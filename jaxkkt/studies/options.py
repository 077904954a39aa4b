"""Options of a study: from the preset, then a configuration file, then the command line."""

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from jaxkkt.specs.base import unknown_field


@dataclass(frozen=True)
class Options:
    """What every study can be asked. A subclass adds its own fields, each with a docstring:

    @dataclass(frozen=True)
    class Mine(studies.Options):
        d: tuple[int, ...] = (100,)
        \"""input dimensions\"""
    """

    preset: str = ""
    """named values of the options below"""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """JSON or TOML file of options by name; those on the command line go before"""
    out: Path = Path("results")
    """output folder"""
    dry_run: bool = False
    """print what the runs would cost, of all shards, and how many are there already, and stop"""
    landed: bool = False
    """train nothing: tables and figures of the rows that are in the output folder so far"""
    keep: bool = False
    """keep the trained networks in the output folder, for jk.load_network"""
    mix: bool = False
    """use rows of other versions, machines or flags in the output folder, too; results say which"""
    shard: Annotated[str, tyro.conf.arg(metavar="I/N")] = ""
    """train the I-th of N equal shares alone; the command without it makes tables and figures"""
    workers: int = 0
    """train in so many processes of this machine, of which any may die"""
    executor: Annotated[str, tyro.conf.arg(metavar="dask=ADDRESS")] = ""
    """train in the workers of a Dask cluster"""
    platform: Literal["", "cpu", "gpu", "tpu"] = ""
    """kind of device that there must be; by default whatever JAX finds"""
    patience: float = inf
    """seconds without news from workers after which to give up"""
    quiet: bool = False
    """no progress bar, and only warnings and errors"""
    log_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """write what happens to this file, too, with the time"""


class Preset:
    """Named values of some options, and a line about them."""

    def __init__(self, about: str, **values: Any) -> None:
        self.about = about
        self.values: Mapping[str, Any] = values


O = TypeVar("O", bound=Options)  # noqa: E741


def read(
    kind: type[O],
    presets: Mapping[str, Preset],
    arguments: Sequence[str] | None,
    *,
    prog: str,
    about: str,
    folder: str,
) -> O:
    """The options of a command line.

    Where neither it nor its configuration file names a value, the preset's counts, by default the
    first one's. Raises ValueError or OSError for a configuration file that cannot be used, and
    SystemExit as `argparse` does for a command line that cannot.
    """
    command = _with_choices(kind, presets)
    first = _peek(arguments)
    configured = _from_file(Path(first.config).expanduser(), kind) if first.config else []
    named = first.preset or _peek(configured).preset
    preset = named if named in presets else next(iter(presets), "")
    values = presets[preset].values if presets else {}
    place = Path("results") / "-".join(filter(None, (folder, preset)))
    default = command(**{"preset": preset, "out": place, **values})
    if configured:
        try:
            default = tyro.cli(command, prog=prog, args=configured, default=default)
        except SystemExit:
            raise ValueError(f"{first.config} cannot be used, for the reason above") from None
    found = tyro.cli(command, prog=prog, args=arguments, default=default, description=about)
    # A shell leaves a ~ in --out=~/here, and nobody else reads it in a file.
    given = {f.name: getattr(found, f.name) for f in fields(found)}
    paths: Any = {name: p.expanduser() for name, p in given.items() if isinstance(p, Path)}
    return replace(found, **paths)


def _peek(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options that the defaults of all others depend on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--preset", "--config"):
        parser.add_argument(name, nargs="?")
    return parser.parse_known_args(arguments)[0]


def _with_choices(kind: type[O], presets: Mapping[str, Preset]) -> type[O]:
    """The same options, with the presets' names as choices."""
    if presets:
        told = "; ".join(f"{name}: {preset.about}" for name, preset in presets.items())
        choices: Any = Annotated[Literal[tuple(presets)], tyro.conf.arg(help=told)]
    else:
        choices = Annotated[str, tyro.conf.Suppress]
    default = field(default=next(iter(presets), ""))
    fields_ = [("preset", choices, default)]
    return make_dataclass(kind.__name__, fields_, bases=(kind,), frozen=True)


def _from_file(path: Path, kind: type[Options]) -> list[str]:
    """The options in a file, as on a command line; ValueError where it holds something else."""
    readers = {".json": json.loads, ".toml": tomllib.loads}
    if path.suffix not in readers:
        raise ValueError(f"a configuration file is called *.json or *.toml, got {path}")
    try:
        values = readers[path.suffix](path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold options by name, got {values!r}")
    known = {f.name for f in fields(kind)} - {"config"}
    words = []
    for name, value in values.items():
        field_ = name.replace("-", "_")
        if field_ not in known:
            raise ValueError(f"{path}: {unknown_field(field_, known)}")
        words += _words(path, field_.replace("_", "-"), value)
    return words


def _words(path: Path, option: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    listed = value if isinstance(value, list) else [value]
    if any(not isinstance(item, str | int | float) for item in listed):
        raise ValueError(f"{path}: {option} must be a value or a list of values, got {value!r}")
    return [f"--{option}", *map(str, listed)]
