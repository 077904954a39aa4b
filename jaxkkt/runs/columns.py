"""Runs as rows of a table: what its columns are called, and what is in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from optax import GradientTransformation

from jaxkkt.measurements import Measurement
from jaxkkt.specs.base import Spec, kind_of
from jaxkkt.specs.identity import unwrapped
from jaxkkt.specs.same import Same, by_identity

SEED = "seed of data and initial weights"


@runtime_checkable
class Parted(Protocol):
    """What has columns: a run, by the specs that it is made of."""

    @property
    def seed(self) -> int: ...

    @property
    def measure(self) -> tuple[Measurement, ...]: ...

    @property
    def apart_from_seed(self) -> Same:
        """Its specs, the same tuple whenever it is asked for."""
        ...

    def parts(self) -> Iterator[tuple[str, Spec]]: ...


P = TypeVar("P", bound=Parted)

# Parts whose kind is a column of its own, and what that is called.
_COLUMNS = {
    "data": "data",
    "network": "network",
    "init": "initialization",
    "optimizer": "optimizer",
}
KINDS = tuple(_COLUMNS.values())
# The labels of all measurements.
MEASURE = "measure"
# In which order measurements first came, by the sorted labels of all that a run has.
Orders = dict[tuple[str, ...], list[str]]
# Always written with the name of their part: `init_scale`.
_PREFIXED = ("init",)
# Never: every table has them.
_SIZES = (("data", "d"), ("data", "alpha"), ("data", "samples"), ("network", "width"))


def distinct(runs: Iterable[P]) -> list[P]:
    """The first run of those that share all specs, whatever their seeds."""
    in_turn = list(runs)
    specs = [run.apart_from_seed for run in in_turn]
    places = dict(zip(reversed(specs), reversed(range(len(specs))), strict=True))
    found: dict[tuple[int, ...], P] = {}
    for i in sorted(places.values()):
        found.setdefault(tuple(map(id, in_turn[i].apart_from_seed)), in_turn[i])
    return list(found.values())


def part_of(place: int) -> str:
    """The part that the measurement at this place is."""
    return f"{MEASURE}{place}" if place else MEASURE


def in_order(
    told: Mapping[str, Any], columns: Mapping[str, Any], orders: Orders
) -> Mapping[str, Any]:
    """What is told by column, under the names that a run's columns have as if its measurements had
    been named in the order of the first run that has the same: it is the set of them that says what
    was measured."""
    labels = columns.get(MEASURE, "").split(", ")
    first, parts = _placed(labels, orders)
    if first == labels:
        return told
    found: dict[str, Any] = {}
    for name, value in told.items():
        part, _, field = name.partition("_")
        found[f"{parts[part]}_{field}" if field and part in parts else name] = value
    return found | ({MEASURE: ", ".join(first)} if told is columns else {})


def _placed(labels: list[str], orders: Orders) -> tuple[list[str], dict[str, str]]:
    """These labels in the order in which they first came, and which part is which there."""
    first = orders.setdefault(tuple(sorted(labels)), labels)
    mine, there = (sorted(range(len(some)), key=some.__getitem__) for some in (labels, first))
    return first, dict(zip(map(part_of, mine), map(part_of, there), strict=True))


def columns_of(
    runs: Sequence[Parted], orders: Orders | None = None
) -> tuple[list[Mapping[str, Any]], dict[str, dict[str, str]]]:
    """The columns of a table of runs but for the seed: a dictionary a run, the same one for runs
    that differ in the seed alone; and the attributes of each column.

    Kinds of data, initialization, optimizer and measurements by label, and the fields of each under
    their own names; with the name of the part before it where two parts share a name, and for
    initializations always: `init_scale`. The sizes d, alpha, samples and width of data and network
    keep theirs. Kinds of one label are numbered in the order of the runs: `stripes 1`, `stripes 2`.
    Measurements are columns `in_order`.
    """
    rows: list[_Shown] = []
    attributes: dict[tuple[str, str], dict[str, str]] = {}
    places: dict[Same, int] = {}
    of_runs, described = [], set[tuple[str, type]]()
    orders = {} if orders is None else orders
    for run in runs:
        place = places.setdefault(run.apart_from_seed, len(rows))
        of_runs.append(place)
        if place < len(rows):
            continue
        row = _Shown({}, {})
        first, parts = _placed([one.label for one in run.measure], orders)
        for own, spec in run.parts():
            part = parts.get(own, own)
            if part in _COLUMNS:
                row.kinds[part] = spec
            row.values[part] = _values_of(spec)
            if (part, type(spec)) not in described:
                described.add((part, type(spec)))
                told = spec.describe_values()
                attributes.update({(part, name): a for name, a in told.items()})
        row.values[""] = {MEASURE: ", ".join(first)}
        rows.append(row)
    attributes["", "seed"] = {"long_name": SEED, "units": "1"}
    owners: dict[str, set[str]] = {"seed": {""}}
    known_names = {(part, tuple(some)) for row in rows for part, some in row.values.items()}
    for part, names in known_names | {("", (_COLUMNS[p],)) for row in rows for p in row.kinds}:
        for name in names:
            owners.setdefault(name, set()).add(part)
    labels = _labels(rows)

    @cache
    def title(part: str, name: str) -> str:
        shared = (len(owners[name]) > 1 and (part, name) not in _SIZES) or part in _PREFIXED
        return f"{part}_{name}" if part and shared else name

    found: list[Mapping[str, Any]] = []
    for row in rows:
        columns: dict[str, Any] = {}
        for part, some in row.values.items():
            if part in row.kinds:
                columns[title("", _COLUMNS[part])] = labels[id(row.kinds[part])]
            columns |= {title(part, name): value for name, value in some.items()}
        found.append(columns)
    known = {
        title(*key): {k: str(v) for k, v in a.items() if k in ("long_name", "units")}
        for key, a in attributes.items()
        if key[1] in owners
    }
    return [found[place] for place in of_runs], known


def names_of_columns(runs: Sequence[Parted]) -> set[str]:
    """What the columns of a table of these runs are called."""
    kinds = {tuple(type(spec) for _, spec in run.parts()): run for run in distinct(runs)}
    return {name for row in columns_of(list(kinds.values()))[0] for name in row}


def values_of(runs: Sequence[Parted], orders: Orders | None = None) -> dict[str, list[Any]]:
    """Every value that a column of these runs has, in the order in which they come."""
    values: dict[str, dict[Any, None]] = {}
    for row in columns_of(distinct(runs), orders)[0]:
        for name, value in row.items():
            values.setdefault(name, {})[value] = None
    values["seed"] = dict.fromkeys(run.seed for run in runs)
    return {name: list(some) for name, some in values.items()}


class _Shown(NamedTuple):
    """What a table shows of a run: the specs whose kind is a column, and the values of all, by
    their part."""

    kinds: dict[str, Spec]
    values: dict[str, Mapping[str, Any]]


@partial(by_identity, everywhere=True)
def _values_of(spec: Spec) -> Mapping[str, Any]:
    return {name: _shown(value) for name, value in spec.values().items()}


def _labels(rows: Sequence[_Shown]) -> dict[int, str]:
    """Labels of the kinds of specs, by id: those of different kinds told apart."""
    kinds: dict[str, dict[Any, list[Spec]]] = {}
    each = {id(spec): spec for row in rows for spec in row.kinds.values()}
    for spec in each.values():
        kinds.setdefault(spec.label, {}).setdefault(_kind(spec), []).append(spec)
    found = {}
    for label, same in kinds.items():
        for i, specs in enumerate(same.values()):
            for spec in specs:
                found[id(spec)] = label if len(same) == 1 else f"{label} {i + 1}"
    return found


def _kind(spec: Spec) -> Any:
    """What makes two specs of one label different kinds: class, functions and arrays, no number."""
    held = (*vars(spec).values(), getattr(type(spec), "factory", None))
    functions = tuple(v for v in held if callable(v) or isinstance(v, GradientTransformation))
    return kind_of(type(spec)), functions, getattr(spec, "content", None)


def _shown(value: Any) -> Any:
    """A field's value as a coordinate can hold it."""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if callable(value):  # a schedule, or a type
        return getattr(unwrapped(value), "__name__", type(value).__name__)
    return value
