"""Own points and labels."""

from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from jaxkkt import datasets
from jaxkkt.datasets import Dataset
from jaxkkt.numerics.requirements import require_held
from jaxkkt.specs.data.base import Data, on_host
from jaxkkt.specs.fields import described
from jaxkkt.specs.identity import digest_of_array


class Arrays(Data, kw_only=False):
    """Own points x (m, d) and labels y (m,) in {-1, 1}, and, if you like, held-out points.

    Every seed trains on all of them, from other initial weights. The arrays are copied, so what
    happens to yours later does not matter, and a hash of their numbers identifies them. `name` is
    what tables call them.
    Raises ValueError for data that do not fit, as `datasets.validate` does; float64 is refused
    while JAX would round it. What has fewer digits than JAX computes with is kept with as many.
    """

    same_for_all_seeds: ClassVar[bool] = True
    x: Float[np.ndarray, "m d"] = described("points", default=None, shown=False)
    y: Float[np.ndarray, " m"] = described("labels", default=None, shown=False)
    x_test: Float[np.ndarray, "n d"] | None = described(
        "held-out points", default=None, shown=False
    )
    y_test: Float[np.ndarray, " n"] | None = described("their labels", default=None, shown=False)
    name: str = described("name of the data", default="own", shown=False)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError(
            "jk.data.Arrays is its numbers, and has nothing to override: make one, "
            "jk.data.Arrays(x, y, name='mine'), or subclass jk.data.Distribution"
        )

    def __post_init__(self) -> None:
        for name in ("x", "y", "x_test", "y_test"):
            value = getattr(self, name)
            if value is not None:
                kept = np.array(value, None if hasattr(value, "dtype") else float)
                if not hasattr(value, "dtype"):
                    require_held(name, kept, _precision())
                    kept = kept.astype(_precision())
                kept = kept.astype(np.float32) if kept.dtype == np.float16 else kept
                object.__setattr__(self, name, kept)
        datasets.check(self.x, self.y)
        if (self.x_test is None) != (self.y_test is None):
            raise ValueError("held-out points need both x_test and y_test: one is missing")
        if self.x_test is not None and self.y_test is not None:
            try:
                datasets.check(self.x_test, self.y_test)
            except ValueError as error:
                raise ValueError(f"held-out points x_test and y_test: {error}") from error
            if self.x_test.shape[1] != self.d:
                raise ValueError(
                    f"held-out points have dimension {self.x_test.shape[1]}, the others {self.d}"
                )
        for name in ("x", "y", "x_test", "y_test"):
            if getattr(self, name) is not None:
                kept = getattr(self, name).astype(_precision(), copy=False)
                kept.flags.writeable = False
                object.__setattr__(self, name, kept)

    def __repr__(self) -> str:
        held = (("x", self.x), ("y", self.y), ("x_test", self.x_test), ("y_test", self.y_test))
        told = (f"{name}={a.dtype}{list(a.shape)}" for name, a in held if a is not None)
        return f"Arrays({', '.join(told)}, name={self.name!r})"

    @property
    def d(self) -> int:
        return int(self.x.shape[1])

    @property
    def samples(self) -> int:
        return int(self.x.shape[0])

    @cached_property
    def content(self) -> str:
        """A hash of all arrays: of the same numbers the same, whatever precision they are in."""
        held = (self.x, self.y, self.x_test, self.y_test)
        return " ".join("" if a is None else digest_of_array(_shortest(a)) for a in held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrays) and (self.content, self.name) == (
            other.content,
            other.name,
        )

    def __hash__(self) -> int:
        return hash(self.content)

    @property
    def label(self) -> str:
        return self.name

    def draw_training(self, seed: int) -> Dataset:
        return _as_here(self.x, self.y)

    def draw_held_out(self, seed: int) -> Dataset | None:
        if self.x_test is None or self.y_test is None:
            return None
        return _as_here(self.x_test, self.y_test)

    @property
    def may_hold_out(self) -> bool:
        return self.x_test is not None

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        return {"kind": "data.Arrays", "name": self.name, "array": self.content}

    @classmethod
    def from_fields(cls, values: dict[str, Any]) -> "Arrays":
        raise ValueError("JSON holds the hash of an array, not its numbers: make the spec anew")


def _as_here(x: np.ndarray, y: np.ndarray) -> Dataset:
    """In the precision that JAX has now, which need not be that of when they were given."""
    if x.dtype.itemsize > _precision().itemsize and _shortest(x) is x:
        raise ValueError(
            "own arrays hold float64, which JAX would round to float32 here: sweep them where "
            "jax_enable_x64 is on, as it was when jk.data.Arrays was made"
        )
    return on_host(x, y)


def _shortest(array: np.ndarray) -> np.ndarray:
    """In float32, where that holds the same numbers."""
    if array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):
        short = array.astype(np.float32)
    return short if np.array_equal(short, array) else array


def _precision() -> Any:
    """That of JAX's floating-point numbers."""
    return jax.dtypes.canonicalize_dtype(float)
