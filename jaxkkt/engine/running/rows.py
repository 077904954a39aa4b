"""Rows: finished runs, with what was measured of them."""

import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from jaxkkt.engine.programs.names import refuse_twice
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol
from jaxkkt.runs.run import Run
from jaxkkt.training import SUCCEEDED, Status

# What JAX notes beside an error from within it.
FRAMES_REMOVED = "JAX has removed its internal frames"
# What CF calls the attribute of a variable that names those which say what its values are worth.
ANCILLARY = "ancillary_variables"


class Row(NamedTuple):
    """A finished run: what was measured and how it ended, as Python numbers and lists of them.

    `owners` says which of the run's measurements returned a value, by its place among them.
    `seconds` went by from its draw to its last measurement, beside those of its batch.
    `computed_as` says at which shapes and in how many lanes, on which its rounding depends;
    `network` is a hash of the parameters. `kept` is the trained network, at the run's own size,
    where it was asked for. Of a run that `raised` the values are its status and the traceback.
    """

    run: Run
    values: dict[str, Any]
    owners: Mapping[str, int] = {}
    seconds: float = 0.0
    computed_as: str = ""
    network: str = ""
    kept: Params | None = None
    raised: Exception | None = None

    def without_network(self) -> "Row":
        return self if self.kept is None else self._replace(kept=None)

    def with_values(self, measured: Mapping[str, Any], owners: Mapping[str, int]) -> "Row":
        """With what some of the run's measurements returned, and which of them.

        Raises ValueError where a name is there already.
        """
        for name, i in owners.items():
            refuse_twice(self.run.measure[i], {name} & self.values.keys())
        return self._replace(values={**self.values, **measured}, owners={**self.owners, **owners})


def all_raised(runs: Sequence[Run], error: Exception) -> list[Row]:
    """The rows of runs that one error ends."""
    row = raised(runs[0], error)
    return [row._replace(run=run) for run in runs]


def raised(run: Run, error: Exception) -> Row:
    """The row of a run that raised."""
    if hasattr(error, "__notes__"):  # JAX's last line would be in place of what went wrong
        error.__notes__ = [note for note in error.__notes__ if FRAMES_REMOVED not in note]
    told = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:  # its frames hold the lanes' memory
        link.__traceback__, link = None, link.__cause__ or link.__context__
    return Row(run, {"status": int(Status.RAISED), "error": told}, raised=error)


def failed(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence on the runs that did not end as they were meant to, with the remedy of each kind,
    and one on those that had nothing to train; none where there are none."""
    at_once = sum(
        r.values["status"] == Status.CONVERGED and not r.values["steps"]
        for r in rows
        if isinstance(r.run.protocol, Protocol)
    )
    if at_once:
        yield (
            f"{at_once} of {len(rows)} runs were at their target log loss before the first step, "
            "and are not trained: give a lower target_log_loss, the logarithm of the loss"
        )
    ends: dict[int, int] = {}
    for row in rows:
        if row.values["status"] not in SUCCEEDED:
            ends[row.values["status"]] = ends.get(row.values["status"], 0) + 1
    if not ends:
        return
    kinds = "; ".join(
        f"{count} {Status(status).name}: {Status(status).describe()}"
        for status, count in sorted(ends.items())
    )
    told = f"{sum(ends.values())} of {len(rows)} runs failed, and no mean counts them. {kinds}"
    errors: dict[str, str] = {}
    for row in rows:
        if "error" in row.values:
            sizes = ", ".join(f"{name} = {value}" for name, value in row.run.sizes.items())
            at = f"{sizes}, seed = {row.run.seed}"
            errors.setdefault(row.values["error"].strip().splitlines()[-1], at)
    yield told + "".join(f"\n  {at}: {error}" for error, at in errors.items())


def give_up(rows: Collection[Row], at_most: int, seeds: int = 1) -> None:
    """Raises what the first run did, where all of at least `at_most` runs, of at least so many
    `seeds`, have raised."""
    all_of_them = len(rows) >= at_most and all(row.raised for row in rows)
    if all_of_them and len({row.run.seed for row in rows}) >= seeds:
        first = next(iter(rows))
        assert first.raised is not None
        told = f"as did all of the {len(rows)} runs that have ended. Where the first one did:\n"
        first.raised.add_note(told + first.values["error"])  # its frames are let go of
        raise first.raised


def in_doubt(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence for each variable by which a measurement says that values of some runs may be
    wrong: those that means leave out though the runs ended as they were meant to."""
    named: dict[str, list[str]] = {}
    for one in {id(row.run.measure): row.run.measure for row in rows}.values():
        for name, about in chain.from_iterable(m.attributes().items() for m in one):
            for told in about.get(ANCILLARY, "").split():
                named.setdefault(told, []).append(name)
    ended = [row.values for row in rows if row.values["status"] in SUCCEEDED]
    for told, names in named.items():
        count = sum(bool(np.any(np.asarray(values.get(told, 0)) > 0)) for values in ended)
        if count:
            yield (
                f"{count} of {len(ended)} runs have another {told} than 0, and no mean counts "
                f"their {', '.join(dict.fromkeys(names))}. table.{told}.attrs says what it means"
            )
