"""Rows as a store keeps them: JSON, the values of each measurement by what it computes.

So a sweep can be extended: by other runs, and by other measurements of runs that are there. What
rows have in common, columns and descriptions, is written once a segment; a table can be made of it
without the code that the runs were made of.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple

from jaxkkt.engine.programs.names import CURVE, refuse_twice
from jaxkkt.engine.running.rows import Row
from jaxkkt.measurements import Measurement
from jaxkkt.runs.columns import MEASURE, Orders, columns_of, in_order, part_of
from jaxkkt.runs.run import Curve, Run, hash_of, hashes_of, names_of
from jaxkkt.specs.base import jsonable
from jaxkkt.specs.same import Same, by_identity, of_same
from jaxkkt.specs.training import Training
from jaxkkt.store import Record


@dataclass(frozen=True, eq=False)
class RowKind:
    """What rows of a table have in common that differ in the seed alone: what the runs are, by
    column, and what they were computed with.

    `columns_about`, `variables` and `axes` describe columns, values and the dimensions of values
    that are arrays; `moments` are those of the runs' curve, after its dimension's name.
    """

    columns: Mapping[str, Any]
    columns_about: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, Mapping[str, str]]
    axes: Mapping[str, Mapping[str, Sequence[Any]]]
    moments: tuple[str, tuple[float, ...]] | None
    settings: Mapping[str, Any] | None = None


class Entry(NamedTuple):
    """A row of a table: its kind and seed, what was measured, and of a store's what it calls the
    run, and when that landed."""

    kind: RowKind
    seed: int
    values: Mapping[str, Any]
    run: str = ""
    date: str = ""


def entries_of(
    rows: Sequence[Row], settings: Sequence[Mapping[str, Any] | None] | None = None
) -> list[Entry]:
    """Rows of a sweep as those of a table, with what each was computed with."""
    first: dict[tuple[Same, int], int] = {}
    specs = [row.run.apart_from_seed for row in rows]
    keys = zip(specs, repeat(0) if settings is None else map(id, settings), strict=False)
    which = [first.setdefault(key, i) for i, key in enumerate(keys)]
    runs = [rows[i].run for i in first.values()]
    columns, about = columns_of(runs)
    kinds = {
        i: RowKind(
            mine,
            about,
            *_alike(run.protocol, run.measure, run.curve),
            None if settings is None else settings[i],
        )
        for i, run, mine in zip(first.values(), runs, columns, strict=True)
    }
    return [Entry(kinds[i], row.run.seed, row.values) for i, row in zip(which, rows, strict=True)]


@by_identity
def _alike(
    protocol: Training, measure: tuple[Measurement, ...], curve: Curve | None
) -> tuple[Any, Any, Any]:
    """The variables, axes and moments of what is trained and measured so."""
    variables, axes = _described(measure)
    on_the_way, along = _described(() if curve is None else curve.measure)
    variables = protocol.attributes() | variables
    return variables | on_the_way, axes | _of_curve(along), _moments(curve)


def records_of(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Rows as JSON can hold them, each with its run's name before it and the definitions that it
    refers to behind it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    of_specs = cache(_definitions)
    for name, row in zip(names_of(row.run for row in rows), rows, strict=True):
        values, owners = row.values, row.owners
        definitions, spec, hashes = of_specs(row.run.apart_from_seed)
        measured: dict[str, dict[str, Any]] = {}
        if row.raised is None:
            measured = {hashed: {} for hashed in hashes}
        for of, i in owners.items():
            measured[hashes[i]][of] = values[of]
        record = {
            "spec": spec,
            "seed": row.run.seed,
            "ending": {of: value for of, value in values.items() if of not in owners},
            "measured": measured,
            "network": row.network,
            "computed_as": row.computed_as,
            "seconds": round(row.seconds, 3),
            "date": now,
        }
        yield name, record, definitions


class Known(NamedTuple):
    """What a store has of a run: its row, the places of the measurements that this lacks, and the
    record that says how the run ended."""

    row: Row
    lacks: tuple[int, ...]
    record: Record


def known(run: Run, hashes: Sequence[str], records: Sequence[Record]) -> Known:
    """What the records of a run say of it, whose measurements have these hashes.

    The last record that says how it ended counts, and of each measurement the last of the same
    network; of a run that raised each time, the last error. Raises ValueError where two of its
    measurements returned the same name.
    """
    ended = [r for r in records if "error" not in r.value["ending"]]
    if not ended:
        return Known(Row(run, dict(records[-1].value["ending"])), (), records[-1])
    last, measured = ended[-1].value, ended[-1].value["measured"]
    if len(ended) > 1:
        measured = {k: v for r in _of_one_network(ended) for k, v in r.value["measured"].items()}
    values, owners, lacks = dict(last["ending"]), dict[str, int](), []
    for i, hashed in enumerate(hashes):
        if hashed in measured:
            some = measured[hashed]
            refuse_twice(run.measure[i], some.keys() & values.keys())
            values |= some
            owners |= dict.fromkeys(some, i)
        else:
            lacks.append(i)
    row = Row(run, values, owners, last["seconds"], last["computed_as"], last["network"])
    return Known(row, tuple(lacks), ended[-1])


def entries_in(records: Sequence[Record]) -> list[Entry]:
    """The rows of a store as those of a table, by what they say of themselves alone.

    Of a run that raised and was not tried again, its error; of one that was computed several times,
    the last. Where fields of measurements vary, as `slack` does, a run has a row for each; so where
    fields of one name belong to several measurements, unless one row has all; and where own
    measurements of one name computed different things.
    """
    by_name: dict[str, list[Record]] = {}
    for record in records:
        if has_spec(record):
            by_name.setdefault(record.name, []).append(record)
    found, kinds, orders = [], dict[Any, RowKind](), Orders()
    for mine in chain.from_iterable(_by_row(some, orders) for some in by_name.values()):
        of_network = _that_count(mine)
        last = of_network[-1]
        measured, described = dict[str, dict[str, Any]](), []
        for record in of_network:
            described.append((id(record.segment), record.value["spec"]))
            described += [(id(record.segment), hashed) for hashed in record.value["measured"]]
            measured |= record.value["measured"]
        key = tuple(described)
        if key not in kinds:
            kinds[key] = _kind_of(of_network, orders)
        dates: dict[str, str] = {}  # a row repeats what was measured before
        for record in of_network:
            for hashed in record.value["measured"]:
                dates.setdefault(hashed, str(record.value.get("date", "")))
        versions = _versions(measured)
        for i, (values, hashes) in enumerate(versions):
            # What several have in common says nothing of when one of them was computed.
            others = set[str]().union(*(some for j, (_, some) in enumerate(versions) if j != i))
            alone = [dates[h] for h in hashes - others] or [dates[h] for h in hashes]
            date = max(alone, default=str(last.value.get("date", "")))
            ending, seed = last.value["ending"], last.value["seed"]
            found.append(Entry(kinds[key], seed, {**ending, **values}, last.name, date))
    return found


def _versions(
    measured: Mapping[str, Mapping[str, Any]],
) -> list[tuple[dict[str, Any], set[str]]]:
    """What was measured of a network, and by what, as hashes: once, or as often as these gave a
    name different values."""
    whole: dict[str, Any] = {}
    for some in measured.values():
        whole |= some
    if len(whole) == sum(map(len, measured.values())):
        return [(whole, set(measured))]
    versions: list[tuple[dict[str, Any], set[str]]] = []
    for complete in (False, True):  # what fits to several belongs to all of them
        for hashed, some in measured.items():
            fits = [v for v in versions if hashed in v[1] or not some.keys() & v[0].keys()]
            if not fits and not complete:
                versions.append(({}, set()))
                fits = versions[-1:]
            for values, hashes in fits:
                values.update(some)
                hashes.add(hashed)
    return versions


def _by_row(records: Sequence[Record], orders: Orders) -> list[list[Record]]:
    """A run's records by the rows that they belong to: those that disagree in no column, and not in
    which measurement's field a column shows. A row is left out where another has all that was
    measured of it, and more."""
    if len(records) == 1 or len({r.value["spec"] for r in records}) == 1:
        return [list(records)]
    specs: dict[str, dict[Any, Any]] = {}
    for record in records:
        if record.value["measured"] or record.value["spec"] not in specs:
            specs[record.value["spec"]] = _told_apart(record, orders)
    rows: list[tuple[dict[Any, Any], set[str]]] = []
    for complete in (False, True):  # what fits to several rows belongs to all of them
        for spec, mine in specs.items():
            fitting = [row for row in rows if all(row[0].get(k, v) == v for k, v in mine.items())]
            if not fitting and not complete:
                rows.append(({}, set()))
                fitting = rows[-1:]
            for held, some in fitting:
                held.update(mine)
                some.add(spec)
    found = [[r for r in records if r.value["spec"] in some] for _, some in rows]
    hashes = [{h for r in _that_count(mine) for h in r.value["measured"]} for mine in found]
    whole = [not some or not any(some < other for other in hashes) for some in hashes]
    return [mine for mine, keep in zip(found, whole, strict=True) if keep]


def _told_apart(record: Record, orders: Orders) -> dict[Any, Any]:
    """What tells a record from those of other rows: its columns, and of each field of its
    measurements the columns that show it. The `size` of one measurement is a column `size`, those
    of two are `measure_size` and `measure1_size`, each of its own kind."""
    known = record.segment.definitions
    columns = known[record.value["spec"]]["columns"]
    shown: dict[str, tuple[str, str]] = {}
    for i, hashed in enumerate(record.value["measured"]):
        one = known.get(hashed, {}).get("is", {})
        for field in one:
            named = f"{part_of(i)}_{field}"
            if named in columns:
                shown[named] = field, str(one.get("kind"))
            elif field in columns:
                shown[field] = field, ""
    found: dict[Any, Any] = {**_columns(record, orders), MEASURE: None}
    for name, (field, kind) in in_order(shown, columns, orders).items():
        found.setdefault(("field", field), set()).add((name, kind))
    return found


def _columns(record: Record, orders: Orders) -> Mapping[str, Any]:
    columns = record.segment.definitions[record.value["spec"]]["columns"]
    return in_order(columns, columns, orders)


def _kind_of(records: Sequence[Record], orders: Orders) -> RowKind:
    """The kind of the row that these records make up; where they differ the last one counts."""
    variables, axes = dict[str, Any](), dict[str, Any]()
    columns, columns_about = dict[str, Any](), dict[str, Any]()
    for record in records:
        known = record.segment.definitions
        spec = known[record.value["spec"]]
        columns |= _columns(record, orders)
        columns_about |= in_order(known.get(spec["about"], {}), spec["columns"], orders)
        variables |= known.get(spec.get("variables"), {})
        for hashed in record.value["measured"]:
            one = known.get(hashed, {})
            variables |= one.get("variables", {})
            axes |= one.get("axes", {})
    said = (_columns(r, orders).get(MEASURE, "").split(", ") for r in records)
    labels = list(dict.fromkeys(chain.from_iterable(said)))
    columns[MEASURE] = ", ".join(orders.setdefault(tuple(sorted(labels)), labels))
    last = records[-1]
    known = last.segment.definitions
    spec = known[last.value["spec"]]
    for hashed in spec["curve"]:
        one = known.get(hashed, {})
        variables |= one.get("variables", {})
        axes |= _of_curve(one.get("axes", {}))
    moments = spec["moments"]
    return RowKind(
        columns,
        columns_about,
        variables,
        axes,
        (moments[0], tuple(moments[1])) if moments else None,
        last.segment.about["settings"],
    )


def _of_one_network(records: Sequence[Record]) -> list[Record]:
    """Those of the same network as the last."""
    return [r for r in records if r.value["network"] == records[-1].value["network"]]


def _that_count(records: Sequence[Record]) -> list[Record]:
    """Those of a row that did not raise, where there are any, of the network of the last."""
    return _of_one_network([r for r in records if "error" not in r.value["ending"]] or records)


def has_spec(record: Record) -> bool:
    """Whether it is a run's, and what that is can be told."""
    value, definitions = record.value, record.segment.definitions
    if not isinstance(value, dict) or not isinstance(value.get("spec"), str):
        return False
    spec = definitions.get(value["spec"])
    return (
        isinstance(spec, dict)
        and isinstance(spec.get("columns"), dict)
        and isinstance(value.get("ending"), dict)
        and isinstance(value.get("measured"), dict)
        and {"seed", "network"} <= value.keys()
    )


@of_same
def _definitions(specs: Same) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """What rows of runs of these specs, whatever their seed, refer to; which of it is their spec;
    and the hashes of their measurements."""
    run, hashes = Run.of_fields(*specs), hashes_of(specs)
    definitions: dict[str, Any] = {}

    def defined(value: Any) -> str:
        hashed = hash_of(value)[:20]
        definitions[hashed] = value
        return hashed

    (columns,), about = columns_of([run])
    for hashed, one in zip(hashes, run.measure, strict=True):
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
        "moments": _moments(run.curve),
    }
    if variables := run.protocol.attributes():
        spec["variables"] = defined(variables)
    return definitions, defined(spec), hashes


def _moments(curve: Curve | None) -> tuple[str, tuple[float, ...]] | None:
    return None if curve is None else (curve.dimension, curve.moments)


@lru_cache(maxsize=1024)
def _described(measurements: tuple[Measurement, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    variables: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    for one in measurements:
        variables |= {name: dict(about) for name, about in one.attributes().items()}
        axes |= {
            name: {dim: jsonable(list(some)) for dim, some in along.items()}
            for name, along in one.axes().items()
        }
    return variables, axes


def _of_curve(axes: Mapping[str, Any]) -> dict[str, Any]:
    return {CURVE + name: along for name, along in axes.items()}
