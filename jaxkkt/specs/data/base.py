"""What every kind of data is: points of a dimension, drawn from a seed."""

from math import isfinite, log
from numbers import Real
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxkkt import datasets
from jaxkkt.datasets import Dataset
from jaxkkt.numerics.keys import fold, key_of
from jaxkkt.numerics.requirements import LARGEST, require_whole
from jaxkkt.specs.base import Spec
from jaxkkt.specs.fields import described

HELD_OUT = 256


class Data(Spec):
    """The data of a run: `samples` points of dimension `d`."""

    @property
    def d(self) -> int:
        """The input dimension."""
        raise NotImplementedError

    @property
    def samples(self) -> int:
        """The number of points that a run trains on."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        return {"d": self.d, "samples": self.samples, **super().values()}

    @property
    def tag(self) -> str:
        """What keys are folded with, beside the sizes: draws of one kind share their numbers."""
        return self.label

    def draw_training(self, seed: int) -> Dataset:
        """The points that a run of this seed trains on, as NumPy arrays."""
        raise NotImplementedError

    def draw_held_out(self, seed: int) -> Dataset | None:
        """Points of the same source that it does not train on, or None where there are none."""
        raise NotImplementedError

    def draw_truth(self, seed: int) -> Any:
        """What the points of this seed were made of, where the distribution tells; else None.

        A tuple or dictionary of arrays, of one structure for all seeds.
        """
        return None

    @property
    def may_hold_out(self) -> bool:
        """Whether `draw_held_out` may give points, as far as that is known without a draw."""
        return True

    @property
    def may_tell_truth(self) -> bool:
        """Whether `draw_truth` may tell anything, as far as that is known without a draw."""
        return type(self).draw_truth is not Data.draw_truth

    # Whether held-out points and truth are the same for all seeds.
    same_for_all_seeds: ClassVar[bool] = False
    # Whether `draw_at` draws at any shape that holds the sizes, which may be traced.
    any_size: ClassVar[bool] = False

    @property
    def traceable(self) -> bool:
        """Whether `draw_at` draws what `draw_training` does."""
        return False

    def draw_at(self, seed: Any, samples: Any, dim: Any, shape: tuple[int, int]) -> Dataset:
        """Traced: the points of a traced seed, padded to the shape; of `sizeless()` specs, too."""
        raise NotImplementedError

    def sizeless(self) -> Any:
        """This spec with none of the sizes, which programs are told apart from it."""
        return self

    def data_key(self, seed: int) -> PRNGKeyArray:
        """What the points of this seed are drawn by."""
        return self.key_at(seed, self.samples, self.d)

    def key_at(self, seed: Any, samples: Any, dim: Any) -> PRNGKeyArray:
        """`data_key`, of a seed and sizes that may be traced: for each kind, seed and sizes another
        key."""
        return fold(key_of(seed), f"data {self.tag}", samples, dim)

    def test_key(self, seed: int) -> PRNGKeyArray:
        """What held-out points are drawn by: the same for any number of samples."""
        return fold(key_of(seed), f"test {self.tag}", self.d)

    @property
    def keyed_as_traced(self) -> bool:
        """Whether `key_at`, of `sizeless()` specs, is the key that `data_key` gives."""
        if type(self).data_key is not Data.data_key:
            return False
        try:
            return bool(self.sizeless().tag == self.tag)
        except Exception:  # a tag that computes with a size
            return False


class Sized(Data):
    """Data of any number of samples: `samples` itself, or `alpha` for round(d^alpha) of them.

    Raises ValueError unless exactly one of the two is given, or where a size is out of range.
    """

    d: int = described("input dimension", default=None)
    samples: int = described("samples m", "samples", default=None)
    alpha: float | None = described("sample exponent, m = round(d^alpha)", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d is None:
            raise ValueError("d is missing: give the input dimension, for instance d=20")
        require_whole("d", self.d, 1)
        if self.alpha is not None:
            require_finite("alpha", self.alpha)
            object.__setattr__(self, "alpha", float(self.alpha))
            counted = _counted(self.d, self.alpha)
            if self.samples is not None and self.samples != counted:
                raise ValueError(
                    "give the sample counts by exactly one of `alpha` and `samples`: alpha = "
                    f"{self.alpha:g} means {counted}, but samples = {self.samples}"
                )
            object.__setattr__(self, "samples", counted)
        if self.samples is None:
            raise ValueError("give the sample counts by exactly one of `alpha` and `samples`")
        require_whole("samples", self.samples, 2)
        for name in ("d", "samples"):
            object.__setattr__(self, name, int(getattr(self, name)))

    def replace(self, **changes: Any) -> Any:
        if changes.get("samples") is not None:
            changes = {"alpha": None, **changes}
        elif changes.get("alpha") is not None or ("d" in changes and self.alpha is not None):
            changes = {"samples": None, **changes}
        return super().replace(**changes)


def require_finite(name: str, value: Any) -> None:
    """Raises ValueError unless this is a finite number."""
    number = isinstance(value, Real | jax.Array) and not isinstance(value, bool)
    if not number or not isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _counted(d: int, alpha: float) -> int:
    """round(d^alpha); ValueError where that is too large."""
    if alpha * log(d) > log(LARGEST):  # d**alpha may be too large for a float
        raise ValueError(
            f"alpha = {alpha:g} means more than {LARGEST} samples at d = {d}, the most that are "
            "possible: give a smaller alpha"
        )
    return round(d**alpha)


def checked(data: Data, x: Any, y: Any, samples: int, dim: int) -> Dataset:
    """What a distribution drew; ValueError where that is no data."""
    if np.shape(x) != (samples, dim) or np.shape(y) != (samples,):
        raise ValueError(
            f"{data.label} was asked for x ({samples}, {dim}) and y ({samples},), and drew "
            f"x {np.shape(x)} and y {np.shape(y)}"
        )
    found = on_host(x, y)
    datasets.check(*found)
    return found


def on_host(x: Any, y: Any) -> Dataset:
    """Data as NumPy arrays, in JAX's precision: a device's memory is for what trains."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    of_numpy: Any = np.asarray(x, dtype), np.asarray(y, dtype)
    return Dataset(*of_numpy)
