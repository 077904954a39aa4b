"""Rows as a store keeps them: JSON, the values of each measurement by what it computes.

So a sweep can be extended: by other runs, and by other measurements of runs that are there. What
rows have in common, columns and descriptions, is written once a segment; a table can be made of it
without the code that the runs were made of.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from jaxkkt.engine.lanes import Row
from jaxkkt.measurements import Measurement
from jaxkkt.runs.run import Run, fields_of, hash_of
from jaxkkt.store import Record


class Entry(NamedTuple):
    """A row of a table: what the run is, by column, and what was measured.

    `columns_about`, `variables` and `axes` describe columns, values and the dimensions of values
    that are arrays; `moments` are those of the run's curve, after its dimension's name; `settings`
    say what the row was computed with.
    """

    columns: Mapping[str, Any]
    values: Mapping[str, Any]
    columns_about: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, Mapping[str, str]]
    axes: Mapping[str, Mapping[str, Sequence[Any]]]
    moments: tuple[str, tuple[float, ...]] | None
    settings: Mapping[str, Any] | None = None


def entries_of(rows: Sequence[Row]) -> list[Entry]:
    """Rows of a sweep as those of a table."""
    columns, about = fields_of([row.run for row in rows])
    found = []
    for row, some in zip(rows, columns, strict=True):
        variables, axes = _described(_everything_measured(row.run))
        found.append(Entry(some, row.values, about, variables, axes, _moments(row.run)))
    return found


def record_of(row: Row, bucket: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row as JSON can hold it, and the definitions that it refers to.

    `bucket` says at which shape, in how many lanes and how it was computed: rounding depends on it.
    """
    ending = {name: value for name, value in row.values.items() if name not in row.owners}
    measured: dict[str, dict[str, Any]] = {hashed: {} for hashed in row.run.measured}
    if row.raised is not None:
        measured = {}
    for name, i in row.owners.items():
        measured[row.run.measured[i]][name] = row.values[name]
    definitions, spec = _definitions(row.run.replace(seed=0))
    value = {
        "spec": spec,
        "seed": row.run.seed,
        "ending": ending,
        "measured": measured,
        "bucket": f"{bucket} {row.lanes} lanes",
        "seconds": round(row.seconds, 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return value, definitions


def row_of(run: Run, records: Sequence[Record]) -> tuple[Row | None, tuple[int, ...]]:
    """What a store has of a run, None where nothing, and which measurements are missing.

    The last record that says how it ended counts, and of each measurement the last of the same
    ending; of a run that raised each time, the last error.
    """
    ended = [r for r in records if "error" not in r.value["ending"]]
    if not ended:
        return (Row(run, dict(records[-1].value["ending"])) if records else None), ()
    last, measured = ended[-1].value, {}
    for record in _ended_alike(ended):
        measured.update(record.value["measured"])
    row = Row(run, dict(last["ending"]), seconds=last["seconds"])
    have = [i for i, hashed in enumerate(run.measured) if hashed in measured]
    for i in have:
        values = measured[run.measured[i]]
        row = row._replace(
            values={**row.values, **values}, owners={**row.owners, **dict.fromkeys(values, i)}
        )
    return row, tuple(i for i in range(len(run.measure)) if i not in have)


def entries_in(records: Sequence[Record]) -> list[Entry]:
    """The rows of a store as those of a table, by what they say of themselves alone.

    Of a run that raised and was not tried again, its error; of one that was computed several times,
    the last.
    """
    by_name: dict[str, list[Record]] = {}
    for record in records:
        if has_spec(record):
            by_name.setdefault(record.name, []).append(record)
    found = []
    for mine in by_name.values():
        ended = [r for r in mine if "error" not in r.value["ending"]] or mine
        last = ended[-1]
        values, described = dict(last.value["ending"]), []
        for record in _ended_alike(ended):
            for hashed, some in record.value["measured"].items():
                values.update(some)
                described.append(record.segment.definitions.get(hashed, {}))
        known = last.segment.definitions
        spec = known[last.value["spec"]]
        described += [known.get(hashed, {}) for hashed in spec["curve"]]
        variables = {k: v for one in described for k, v in one.get("variables", {}).items()}
        axes = {k: v for one in described for k, v in one.get("axes", {}).items()}
        moments = spec["moments"]
        found.append(
            Entry(
                {**spec["columns"], "seed": last.value["seed"]},
                values,
                known.get(spec["about"], {}),
                variables,
                axes,
                (moments[0], tuple(moments[1])) if moments else None,
                last.segment.about["settings"],
            )
        )
    return found


def _ended_alike(records: Sequence[Record]) -> list[Record]:
    """Those of the same network as the last: it ended alike, to the last bit."""
    ends = [json.dumps(record.value["ending"], sort_keys=True) for record in records]
    return [record for record, end in zip(records, ends, strict=True) if end == ends[-1]]


def has_spec(record: Record) -> bool:
    """Whether it is a run's, and what that is can be told."""
    spec = record.value.get("spec") if isinstance(record.value, dict) else None
    return spec is not None and spec in record.segment.definitions


@lru_cache(maxsize=1024)
def _definitions(run: Run) -> tuple[dict[str, Any], str]:
    """What a row of this run, whatever its seed, refers to; and which of it is its spec."""
    definitions: dict[str, Any] = {}

    def defined(value: Any) -> str:
        hashed = hash_of(value)[:20]
        definitions[hashed] = value
        return hashed

    (columns,), about = fields_of([run])
    del columns["seed"]
    for hashed, one in zip(run.measured, run.measure, strict=True):
        variables, axes = _described((one,))
        definitions[hashed] = {"is": one.to_json(), "variables": variables, "axes": axes}
    curve = []
    for one in () if run.curve is None else run.curve.measure:
        variables, axes = _described((one,))
        curve.append(defined({"is": one.to_json(), "variables": variables, "axes": axes}))
    parts = run.to_json()
    parts.pop("measure")
    parts.pop("seed")
    spec = {
        "columns": columns,
        "about": defined(about),
        "is": {name: defined(part) for name, part in parts.items()},
        "curve": curve,
        "moments": _moments(run),
    }
    return definitions, defined(spec)


def _everything_measured(run: Run) -> tuple[Measurement, ...]:
    return run.measure + (() if run.curve is None else run.curve.measure)


def _moments(run: Run) -> tuple[str, tuple[float, ...]] | None:
    return None if run.curve is None else (run.curve.dimension, run.curve.moments)


@lru_cache(maxsize=1024)
def _described(measurements: tuple[Measurement, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    variables: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    for one in measurements:
        variables |= {name: dict(about) for name, about in one.attributes().items()}
        axes |= {
            name: {dim: list(some) for dim, some in along.items()}
            for name, along in one.axes().items()
        }
    return variables, axes
