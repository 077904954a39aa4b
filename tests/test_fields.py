"""What types of fields say, of whatever parents a spec has them."""

from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
import pytest

import jaxkkt as jk


class Base(jk.Spec):
    sigma: jk.Number = 1.0


class Plain:
    """No dataclass: its annotations are no fields."""

    sigma: float
    other: "NowhereDefined"  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True, kw_only=True)
class Mixin:
    scale: jk.Number = 2.0


class Second(jk.Spec):
    rate: jk.Number = 3.0


class Beside(Plain, Base):
    most: int | None = None


class Mixed(Mixin, Base):
    pass


class Both(Base, Second):
    pass


class Other(Base):
    sigma: str = "no number any more"  # type: ignore[assignment]


class Quoted(Base):
    many: "jk.Count | None" = 4
    some: "tuple[float, ...]" = ()


class Described(Base):
    width: Annotated[float, {"units": "m"}] = 1.5


@pytest.mark.parametrize(
    ("made", "leaves"),
    [
        (Beside(sigma=3, most=4), {"sigma": 3.0}),
        (Mixed(scale=5), {"scale": 5.0, "sigma": 1.0}),
        (Both(rate=7), {"rate": 7.0, "sigma": 1.0}),
        (Other(), {}),
        (Quoted(some=(1, 2)), {"sigma": 1.0, "many": 4}),
        (Described(sigma=2), {"sigma": 2.0}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_fields_of_all_parents_have_their_types(made, leaves):
    """Numbers of a second parent, and of a dataclass that is no spec, were structure."""
    found = {path[0].name: leaf for path, leaf in jax.tree.leaves_with_path(made)}
    assert found == leaves
    assert all(type(found[name]) is type(leaf) for name, leaf in leaves.items())
    assert jax.tree.map(lambda leaf: leaf, made) == made


def test_values_are_kept_as_their_types():
    assert Quoted(some=(1, 2)).some == (1.0, 2.0)
    assert Quoted.depth("some") == 1
    with pytest.raises(ValueError, match="most must be an integer"):
        Beside(most=4.5)
    with pytest.raises(ValueError, match="many must be an integer, got 'a'"):
        Quoted(many="a")
    with pytest.raises(ValueError, match="no field of Quoted is called 'sum'; did you mean 'some'"):
        Quoted.depth("sum")


def test_a_type_that_cannot_be_evaluated_is_told():
    with pytest.raises(ValueError, match=r"types of Lost's fields .*'Nowhere' is not defined"):
        type("Lost", (Base,), {"__annotations__": {"one": "Nowhere | None"}, "one": None})


class Checked(jk.data.Distribution):
    """It checks its field, and leaves out what its parent does."""

    sigma: jk.Number = 1.0

    def __post_init__(self):
        if self.sigma < 0:
            raise ValueError("sigma must not be negative")

    def draw(self, key, samples, dim):
        y = jax.numpy.where(jax.numpy.arange(samples) % 2 == 0, 1.0, -1.0)
        return self.sigma * jax.random.normal(key, (samples, dim)), y


def test_own_checks_do_not_stand_in_for_those_of_a_spec():
    """Of 0.5 and 1 the first was 0 in a sweep, without an error."""
    made = [Checked(d=4, samples=4, sigma=sigma).sigma for sigma in (0.5, 1, np.float32(2))]
    assert [(value, type(value)) for value in made] == [(0.5, float), (1.0, float), (2.0, float)]
    with pytest.raises(ValueError, match="sigma must be a number, got True"):
        Checked(d=4, samples=4, sigma=True)
    with pytest.raises(ValueError, match="sigma must not be negative"):
        Checked(d=4, samples=4, sigma=-1.0)

    def largest(data):
        return abs(data.x).max()

    sizes = {"d": 4, "samples": 4, "width": 5, "seed": 0, "max_steps": 1}
    runs = jk.grid(data=Checked, sigma=[0.5, 1], measure=largest, **sizes)
    half, one = jk.sweep(runs, progress=False)["largest"].values.ravel()
    assert half == one / 2 > 0
