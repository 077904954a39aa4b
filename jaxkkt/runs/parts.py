"""Parts of runs that are not made yet, and runs made of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxkkt.runs.run import Curve, Run
from jaxkkt.specs.same import by_identity


@dataclass(frozen=True)
class Part:
    """A part of a run that is not made yet: its class, or a spec to change."""

    made_from: Any
    fields: tuple[tuple[str, Any], ...] = ()

    @property
    def kind(self) -> Any:
        return self.made_from if isinstance(self.made_from, type) else type(self.made_from)

    @property
    def known(self) -> tuple[str, ...]:
        return self.kind.grid_fields()

    def make(self, changes: Mapping[str, Any]) -> Any:
        changes = {**dict(self.fields), **changes}
        if isinstance(self.made_from, type):
            made: Any = self.made_from
            made.require_fields(changes)
            return made(**changes)
        return self.made_from.replace(**changes) if changes else self.made_from


# Values of fields by part, each with its place on its axis.
Changes = dict[str, dict[str, tuple[int, Any]]]


class Made:
    """Runs of some parts. A part is made once for each choice of its values: runs share it, and
    what is computed of it."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._measures = tuple(part for part in parts if part.startswith("measure"))
        self._kept: dict[Any, Any] = {}

    def run(self, changes: Changes, seed: Any, curve: Curve | None) -> Run:
        def made(part: str, **more: Any) -> Any:
            values = {field: value for field, (_, value) in changes.get(part, {}).items()}
            return self._parts[part].make(values | more)

        def protocol() -> Any:
            if "optimizer" not in self._parts:
                return made("protocol")
            rule = self._once(changes, ("optimizer",), partial(made, "optimizer"))
            return made("protocol", optimizer=rule)

        def measure() -> tuple[Any, ...]:
            return _together(*map(made, self._measures))

        return Run(
            data=self._once(changes, ("data",), partial(made, "data")),
            network=self._once(changes, ("network",), partial(made, "network")),
            initialization=self._once(changes, ("init",), partial(made, "init")),
            protocol=self._once(changes, ("protocol", "optimizer"), protocol),
            measure=self._once(changes, self._measures, measure),
            curve=curve,
            seed=seed,
        )

    def _once(self, changes: Changes, parts: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """What is made of these parts, whose values are told by their places."""
        chosen = (tuple((f, i) for f, (i, _) in changes.get(part, {}).items()) for part in parts)
        key = parts, *chosen
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


@partial(by_identity, everywhere=True)
def _together(*some: Any) -> tuple[Any, ...]:
    """The same tuple of the same measurements, in whatever grid."""
    return some
