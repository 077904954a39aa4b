"""Names in a table, and errors where two things would have one."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxkkt.measurements import Measurement
from jaxkkt.runs.columns import names_of_columns
from jaxkkt.runs.run import Run
from jaxkkt.specs.same import Same, of_same

# Names that the engine gives to how a run ended, and to the moments of a curve.
ENDING = ("log_loss", "steps", "status", "error")
CURVE = "curve_"
# What is noted of each moment of a curve, beside what is measured there.
NOTED = ("log_loss", "steps", "min_margin", "squared_norm")

# What a table calls where rows were computed, its dimension of runs that are no grid, and when.
TABLE = ("environment", "run", "date")
ENGINES_OWN = "the engine's own name"

Shape = tuple[int, ...]


class Names(NamedTuple):
    """What a table calls what is measured: its variables, each with the numbers of dimensions that
    its arrays have; those of them whose dimensions measurements name, and the names."""

    ranks: dict[str, set[int]]
    named: set[str]
    dimensions: set[str]

    def add(self, shapes: Mapping[str, Shape], some: Sequence[Measurement], prefix: str) -> None:
        """What some measurements return."""
        for name, shape in shapes.items():
            self.ranks.setdefault(prefix + name, set()).add(len(shape))
        for one in some:
            for name, along in one.axes().items():
                self.named.add(prefix + name)
                self.dimensions.update(along)


def require_own_names(one: Measurement, returned: Iterable[str], run: Run) -> None:
    """Raises ValueError where a measurement of a run returns the name of one of its fields, or of
    what a table has for the runs' curve and for its own ends."""
    taken = taken_by(run.apart_from_seed)
    for name in returned:
        if name in taken:
            refuse(one, name, taken[name])


def refuse_twice(one: Measurement, names: Collection[str]) -> None:
    """Raises ValueError where a measurement returned names that were there."""
    for name in names:
        raise ValueError(
            f"the measurement {one.label!r} returns {name!r}, which is there already: "
            "call it something else"
        )


def refuse(one: Measurement, name: str, whose: str) -> None:
    raise ValueError(
        f"the measurement {one.label!r} returns {name!r}, which is {whose}: call it something else"
    )


def require_one_rank(name: str, ranks: Collection[int]) -> None:
    """Raises ValueError where arrays of one name differ in how many dimensions they have."""
    if len(ranks) > 1:
        each = [f"an array of rank {rank}" if rank else "a number" for rank in sorted(ranks)]
        raise ValueError(
            f"{name!r} is {' for some runs and '.join(each)} for others: return as many dimensions "
            "whatever the run's sizes are (jnp.squeeze drops those of one element), or use two "
            "names"
        )


def require_free_dimensions(
    ranks: Mapping[str, int], named: Collection[str], taken: Collection[str]
) -> None:
    """Raises ValueError where the dimension of an array, called after it unless its measurement
    has `named` it, would be called as what is `taken`."""
    for name, rank in ranks.items():
        for i in range(0 if name in named else rank):
            if f"{name}_{i}" in taken:
                raise ValueError(
                    f"a measurement returns an array {name!r}, whose dimension the table calls "
                    f"'{name}_{i}', but it has something of that name already: call one of them "
                    "something else, or name the array's dimensions in `axes`"
                )


def require_free_names(runs: Sequence[Run], names: Names) -> None:
    """Raises ValueError where a field of a run, or a dimension of an array, would be called what a
    table calls something else: how runs end, their fields and curves, or what their measurements
    return; and where an array is not one of all runs."""
    moments = {run.curve.dimension for run in runs if run.curve is not None}
    columns = names_of_columns(runs)
    returned = names.ranks.keys()
    taken = {*columns, *ENDING, *moments, *returned, *TABLE, "seed"}
    for name in sorted(moments.intersection(returned)):
        raise ValueError(
            f"a measurement returns {name!r}, but the table of results has the moments of the "
            "curve under that name: call it something else"
        )
    for name in sorted(taken.intersection(names.dimensions)):
        raise ValueError(
            f"a measurement names a dimension {name!r}, but the table of results has that already: "
            "call the dimension something else in its `axes`"
        )
    for name in sorted(columns):
        own = name in (*ENDING, "environment", *moments) or name.startswith(CURVE)
        if own or name in returned:
            whose = ENGINES_OWN if own else "returned by a measurement"
            raise ValueError(
                f"a run has a field {name!r}, but in the table of results this is {whose}: call "
                "the field something else"
            )
    for name, of_all in names.ranks.items():
        require_one_rank(name, of_all)
    # A curve's arrays have their moments first, whose dimension has a name.
    ranks = {name: min(of) + name.startswith(CURVE) for name, of in names.ranks.items()}
    require_free_dimensions(ranks, names.named, taken | names.dimensions)


@of_same
def taken_by(specs: Same) -> dict[str, str]:
    """Names that a run's measurements may not return, and whose they are."""
    run = Run.of_fields(*specs)
    own = TABLE if run.curve is None else (*TABLE, run.curve.dimension)
    return dict.fromkeys(run.fields(), "a field of the run") | dict.fromkeys(own, ENGINES_OWN)
