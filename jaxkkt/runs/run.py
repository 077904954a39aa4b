"""A run: one network trained on one dataset and measured, as data."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import pairwise
from math import isfinite
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxkkt.measurements import Flips, Measurement, measurement
from jaxkkt.numerics.keys import fold, key_of
from jaxkkt.numerics.requirements import require_whole
from jaxkkt.process.garbage import uncollected
from jaxkkt.protocols import Protocol
from jaxkkt.runs.columns import SEED, columns_of, distinct, part_of
from jaxkkt.specs import identity
from jaxkkt.specs.base import Spec
from jaxkkt.specs.data import Data
from jaxkkt.specs.fields import MOST, described
from jaxkkt.specs.initializations import Initialization, Torch
from jaxkkt.specs.networks import Network, ReLU2
from jaxkkt.specs.same import Same, by_identity, of_same
from jaxkkt.specs.training import Training


class Curve(Spec, kw_only=False):
    """Moments on a run's way at which it is measured: log losses, each below the one before, or
    numbers of steps.

    Results get a dimension for them, `level` or `step`, with log L, steps, the smallest margin and
    the squared norm, as `curve_log_loss` and so on, and what `measure` returns. A moment that the
    run does not reach is NaN there, and so is one among the last steps of a flow, some ten that
    lead it onto its target; what the host measures is left out where no run reaches any. The run
    itself goes on as if there had been none, to rounding where its optimizer is not linear.
    """

    log_losses: Sequence[float] = described("log losses", default=(), shown=False)
    steps: Sequence[int] = described("steps", default=(), shown=False)
    measure: Any = described("measurements", default=(), shown=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "log_losses", tuple(float(v) + 0.0 for v in listed(self.log_losses))
        )
        object.__setattr__(self, "steps", tuple(listed(self.steps)))
        super().__post_init__()
        object.__setattr__(self, "measure", measurements(self.measure))
        if bool(self.log_losses) == bool(self.steps):
            raise ValueError("a curve has moments by exactly one of `log_losses` and `steps`")
        for step in self.steps:
            require_whole("a step of a curve", step, 0, MOST)
        values = [-v for v in self.log_losses] or list(self.steps)
        falling = all(a < b for a, b in pairwise(values))
        if not falling or not all(map(isfinite, values)):
            raise ValueError(
                "a curve's log losses must be finite, each below the one before, and its steps "
                f"rising, got {list(self.log_losses or self.steps)}"
            )

    @property
    def dimension(self) -> str:
        return "level" if self.log_losses else "step"

    @property
    def moments(self) -> tuple[float, ...]:
        return tuple(map(float, self.log_losses or self.steps))


class Run(Spec):
    """One network trained on one dataset, and what is measured of it: one row of the results.

    The data depend on (data, seed) alone and the initial weights on (initialization, network, d,
    seed): runs of different widths or losses share their data, runs that differ in a distribution's
    numbers alone share their draw. Raises ValueError for a field that is out of range.
    """

    data: Data = described("data", default=None)
    network: Network = described("kind of network", default=ReLU2())
    initialization: Initialization = described("initial weights", default=Torch())
    protocol: Training = described("how it trains", default=Protocol(), shown=False)
    measure: tuple[Measurement, ...] = described("measurements", default=(Flips(),), shown=False)
    curve: Curve | None = described("moments on the way", default=None, shown=False)
    seed: int = described(SEED, default=0)

    def __post_init__(self) -> None:
        for name, kind in (
            ("data", Data),
            ("network", Network),
            ("initialization", Initialization),
            ("protocol", Training),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if not isinstance(self.curve, Curve | None):
            raise ValueError(
                f"curve must be one jk.Curve, such as jk.Curve([-1, -10]), got {self.curve!r}"
            )
        self.initialization.require_fit(self.data)
        require_whole("guessed_steps of the protocol", self.protocol.guessed_steps, 1)
        self.protocol.require_batches(self.data.samples)
        object.__setattr__(self, "seed", _seed(self.seed))
        object.__setattr__(self, "measure", measurements(self.measure))

    def with_seed(self, seed: int) -> "Run":
        """The same run with another seed; nothing else is looked at again."""
        found = object.__new__(type(self))
        for name in (*_FIELDS, "apart_from_seed"):
            object.__setattr__(found, name, getattr(self, name))
        object.__setattr__(found, "seed", _seed(seed))
        return found

    @property
    def d(self) -> int:
        return self.data.d

    @property
    def samples(self) -> int:
        return self.data.samples

    @property
    def width(self) -> int:
        return self.network.width  # type: ignore[attr-defined]

    @property
    def sizes(self) -> dict[str, int]:
        return {"samples": self.samples, "d": self.d, "width": self.width}

    def __getstate__(self) -> dict[str, Any]:
        """Pickled are its fields alone: a hash is of one process."""
        return {name: getattr(self, name) for name in _FIELDS}

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            try:
                found = hash((_hash_of(self.apart_from_seed), self.seed))
            except TypeError:
                for _, spec in self.parts():
                    spec.require_hashable()
                raise
            object.__setattr__(self, "_hash", found)
        return found

    @cached_property
    def apart_from_seed(self) -> Same:
        """All of its fields but the seed: one and the same tuple for runs that share them."""
        return _shared(*(getattr(self, name) for name in _APART_FROM_SEED))

    @classmethod
    def of_fields(cls, *fields: Any) -> "Run":
        """A run of what another's `apart_from_seed` gave, with the seed 0; nothing is looked at
        again."""
        found = object.__new__(cls)
        for name, value in zip(_APART_FROM_SEED, fields, strict=True):
            object.__setattr__(found, name, value)
        object.__setattr__(found, "seed", 0)
        return found

    @property
    def identity(self) -> str:
        """What is computed, as JSON: equal for two runs only where all their numbers are.

        Fields and values; of own functions what they compute. Raises ValueError where that cannot
        be told: such a run has no place in a store.
        """
        computed, _, _ = _computed(self.apart_from_seed)
        return json.dumps({**computed, "seed": self.seed}, sort_keys=True)

    @property
    def name(self) -> str:
        """A readable name of what is trained, unique by a hash: what is measured at the end is no
        part of it. A store knows rows and networks by it."""
        return next(names_of([self]))

    @property
    def measured(self) -> tuple[str, ...]:
        """Hashes of what its measurements compute: a store knows their values by them."""
        return hashes_of(self.apart_from_seed)

    def parts(self) -> Iterator[tuple[str, Spec]]:
        """The specs that it is made of, by the names that a grid knows them by."""
        yield "data", self.data
        yield "network", self.network
        yield "init", self.initialization
        yield "protocol", self.protocol
        if isinstance(getattr(self.protocol, "optimizer", None), Spec):
            yield "optimizer", self.protocol.optimizer  # type: ignore[attr-defined]
        for i, one in enumerate(self.measure):
            yield part_of(i), one

    def fields(self) -> dict[str, Any]:
        """Everything that a table of runs shows, by name; see `columns_of`."""
        (columns,), _ = columns_of([self])
        return {**columns, "seed": self.seed}

    def init_key(self) -> PRNGKeyArray:
        """What its initial weights are drawn by."""
        return self.initialization.key(self.seed, self.width, self.d)

    def data_key(self) -> PRNGKeyArray:
        """What its points are drawn by."""
        return self.data.data_key(self.seed)

    def test_key(self) -> PRNGKeyArray:
        """What its held-out points are drawn by."""
        return self.data.test_key(self.seed)

    def shuffle_key(self) -> PRNGKeyArray:
        """What its mini-batches are shuffled by, or its own kind of training draws by."""
        return shuffle_key(self.seed, self.samples, self.d)


def shuffle_key(seed: Any, samples: Any, d: Any) -> PRNGKeyArray:
    """The key by which a run draws its mini-batches."""
    return fold(key_of(seed), "shuffle", samples, d)


_FIELDS = Run.field_names()
_APART_FROM_SEED = tuple(name for name in _FIELDS if name != "seed")


def _seed(value: Any) -> int:
    require_whole("seed", value, 0, 2**32 - 1)
    return int(value)


def measurements(values: Any) -> tuple[Measurement, ...]:
    """Measurements, from one or several of what `measurement` takes."""
    if isinstance(values, tuple) and all(isinstance(value, Measurement) for value in values):
        return values  # runs that share them are told by that
    return tuple(measurement(value) for value in listed(values))


def hash_of(value: Any) -> str:
    """A hash of what JSON can hold."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def listed(values: Any) -> tuple[Any, ...]:
    if values is None:
        return ()
    if isinstance(values, Spec | str) or callable(values) or not hasattr(values, "__iter__"):
        return (values,)
    return tuple(values)


def refuse_changed(runs: Sequence[Run], stored: bool) -> None:
    """Raises ValueError where an own function that runs use has changed since it was first used
    here, or computes something else whenever it is traced; see `specs.identity.refuse_changed`.

    What runs on the host is not compiled, but a store knows its rows by what it computes, too."""
    looked_at: dict[identity.Used, None] = {}
    for run in distinct(runs):
        kept = [spec for spec in own_specs(run) if stored or not getattr(spec, "on_host", False)]
        if kept and (sizes := _known_sizes(run)) is not None:
            looked_at |= dict.fromkeys(identity.Used.at(spec, sizes) for spec in kept)
    for one in looked_at:
        identity.refuse_changed(one)


def _known_sizes(run: Run) -> dict[str, Any] | None:
    with suppress(ValueError):  # such a run has no identity, and ends with what raises
        return _sizes(run)
    return None


def own_specs(run: Run) -> list[Spec]:
    """Those of its specs whose code is not of the package, or of a covered one."""
    curve = () if run.curve is None else run.curve.measure
    specs = (*(spec for _, spec in run.parts()), *curve)
    return [spec for spec in specs if identity.package_of(spec.brought) is None]


def told_of_own(run: Run) -> tuple[str | None, ...]:
    """What each of `own_specs` computes, as JSON; None where that cannot be told, as of what NumPy
    computes on the host."""
    sizes = _known_sizes(run) or run.sizes
    return tuple(_told_of(spec, sizes) for spec in own_specs(run))


def _told_of(spec: Spec, sizes: dict[str, Any]) -> str | None:
    with suppress(ValueError):
        return json.dumps(spec.to_json(digests=True, **sizes), sort_keys=True)
    return None


@uncollected()
def unique(runs: Collection[Run]) -> list[Run]:
    """The runs without repetitions, in order; ValueError for what is no run, and for none."""
    given = list(runs) if isinstance(runs, Collection) else [runs]
    strange = [type(one).__name__ for one in given if not isinstance(one, Run)]
    if strange or not isinstance(runs, Collection):
        got = f"a list with {strange[0]}" if isinstance(runs, list | tuple) else type(runs).__name__
        raise ValueError(f"runs must be a list of jk.Run, as jk.grid makes, got {got}")
    if not given:
        raise ValueError("there are no runs: the grid is empty")
    return list(dict.fromkeys(given))


def names_of(runs: Iterable[Run]) -> Iterator[str]:
    """The name of each, see `Run.name`, as it is asked for: what runs have in common is looked at
    once."""
    of_specs = cache(_begun)
    for run in runs:
        beginning, trained = of_specs(run.apart_from_seed)
        hashed = sha256(f"{trained} {run.seed}".encode()).hexdigest()[:20]
        yield f"{beginning}-s{run.seed}-{hashed}"


def hashes_of(specs: Same) -> tuple[str, ...]:
    """What `Run.measured` is of runs of these specs."""
    return _computed(specs)[2]


def order_of(run: Run) -> tuple[Any, ...]:
    """Sorts runs of one size, whatever order they come in; but where nothing except their own
    functions or arrays tells them apart, they stay as they come."""
    return run.seed, _told(run.apart_from_seed)


@partial(by_identity, everywhere=True)
def _shared(*specs: Any) -> Same:
    return Same(specs)


@of_same
def _begun(specs: Same) -> tuple[str, str]:
    """How the names of runs of all seeds begin, and the hash of what they train."""
    run = Run.of_fields(*specs)
    alpha = getattr(run.data, "alpha", None)
    counted = "" if alpha is None else f"-a{alpha:g}"
    return f"d{run.d}{counted}-m{run.samples}-k{run.width}", _computed(specs)[1]


@partial(of_same, everywhere=True)
def _hash_of(specs: Same) -> int:
    return hash(tuple(specs))


@partial(of_same, everywhere=True)
def _told(specs: Same) -> tuple[str, ...]:
    """Without addresses, by which own functions of one name would be in another order in every
    process, and shards would not fit together."""
    return tuple(re.sub(r" at 0x[0-9a-f]+", "", repr(spec)) for spec in specs)


@of_same
def _computed(specs: Same) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """What runs of all seeds compute, as JSON can hold it; the hash of what they train; the hashes
    of what is measured at the end."""
    run = Run.of_fields(*specs)
    found = run.to_json(digests=True, **_sizes(run))
    del found["seed"]
    trained = {key: value for key, value in found.items() if key != "measure"}
    return found, hash_of(trained), tuple(hash_of(one)[:20] for one in found["measure"])


def _sizes(run: Run) -> dict[str, Any]:
    """What a run's own functions are given, as far as that says what they compute."""
    how = identity.any_numbers(run.protocol)
    own = (one for one in own_specs(run) if isinstance(one, Measurement))
    asked = {name for one in own for name in one.needs()}
    found = {**run.sizes, "protocol": how}
    found["moments"] = None if run.curve is None else len(run.curve.moments)
    if "test" in asked:
        found["tests"] = _tests(run.data)
    if "truth" in asked:
        found["truth"] = _truth(run.data)
    return found


@by_identity
def _tests(data: Data) -> int:
    """How many points are held out."""
    held_out = _drawn(data, "draw_held_out")
    return 0 if held_out is None else len(held_out.y)


@by_identity
def _truth(data: Data) -> Any:
    """Shapes and types of what the points are made of."""
    arrays = _drawn(data, "draw_truth")
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays)
    leaves, structure = jax.tree.flatten(like)
    return structure, tuple(leaves)  # hashable, where a dictionary is none


def _drawn(data: Data, name: str) -> Any:
    try:
        return getattr(data, name)(0)
    except Exception as error:
        raise ValueError(
            f"what a measurement is given by {name} of {data.label!r} cannot be told, since that "
            f"raises for seed 0 ({error}); make it work there, or go on without a store"
        ) from error
