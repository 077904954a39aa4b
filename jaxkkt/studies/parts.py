"""What a study is made of: parts with runs of their own, and what is made of their results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
from matplotlib.figure import Figure

from jaxkkt import engine
from jaxkkt.engine.tables.results import NOT_RUN
from jaxkkt.networks import Params
from jaxkkt.runs.columns import columns_of
from jaxkkt.runs.run import Run
from jaxkkt.studies.claims import Claim


@dataclass(frozen=True)
class Context:
    """Where a part's results come from: for steps that need more than the table."""

    runs: Sequence[Run]
    folder: Path
    # As in `engine.sweep`: None shows a bar in a terminal, False none.
    progress: bool | None = None

    def network(self, run: Run) -> Params:
        """The trained network of a run, where the part keeps them; ValueError where it does not."""
        return engine.load_network(self.folder, run)

    def networks(self, runs: Sequence[Run]) -> Iterator[Params]:
        """Those of many runs, one after the other."""
        return engine.load_networks(self.folder, runs)

    def row(self, results: xr.Dataset, run: Run) -> xr.Dataset | None:
        """What the sweep's results say of one run, or None where it has not landed. ValueError for
        a table whose runs are no grid."""
        if "run" in results.status.dims:
            raise ValueError("a table along `run` has no place for each run: look at its variables")
        mine = {**self._columns[run], "seed": run.seed}
        place = {}
        for name in map(str, results.status.dims):
            there = [_is(mine.get(name), other) for other in results[name].values.tolist()]
            if not any(there):
                return None
            place[name] = there.index(True)
        found = results.isel(place)
        return None if int(found.status) == NOT_RUN else found

    @cached_property
    def _columns(self) -> dict[Run, Mapping[str, Any]]:
        columns, _ = columns_of(self.runs)
        return dict(zip(self.runs, columns, strict=True))


def _is(value: Any, coordinate: Any) -> bool:
    """Whether a table has a run's value there: NaN or "-" for None, and for what it has not."""
    if value is None:
        return coordinate == "-" or coordinate != coordinate
    return bool(coordinate in (value, str(value)))


class Panel(NamedTuple):
    """A figure: `draw(figure, results)` draws on an empty one, in the style of the package.

    It is written as NAME.png and NAME.pdf, unless it is left without axes, as by a panel that the
    results have no data for.
    """

    name: str
    draw: Callable[[Figure, xr.Dataset], Any]


class Text(NamedTuple):
    """A text in Markdown, such as a table: printed, and written as NAME.md."""

    name: str
    write: Callable[[xr.Dataset], str]


class Derived(NamedTuple):
    """A step after the sweep: `compute(results, context)` returns what claims, notes, texts and
    panels get in place of the sweep's results; written as NAME.nc."""

    name: str
    compute: Callable[[xr.Dataset, Context], xr.Dataset]


@dataclass(frozen=True)
class Part:
    """Runs, and what is made of their results: one table, its files in one folder.

    A study of several tables, such as the figures of one paper, has a part for each. The files of
    the part `name` are in a folder of that name within the output folder; those of a part without
    a name are in the output folder itself. They are: results.nc, claims.md and claims.json if there
    are claims or notes, and those that panels, texts and the derived table are called after.
    """

    runs: Sequence[Run]
    name: str = ""
    claims: Callable[[xr.Dataset], Sequence[Claim]] | None = None
    # A text below the claims.
    notes: Callable[[xr.Dataset], str] | None = None
    panels: Sequence[Panel] = ()
    texts: Sequence[Text] = ()
    derived: Derived | None = None
    # Whether trained networks are kept even where nobody asks for it: `derived` may need them.
    keep: bool = False
    # Whether compiled programs are let go of at its end: for parts that take much memory, and share
    # no program with the next.
    forget: bool = False
