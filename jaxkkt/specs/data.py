"""Where the points and labels of a run come from: distributions, images, own arrays and functions.

Own data are `Arrays`. An own distribution is a function (key, samples, dim) -> x, y, or, where it
has parameters, a subclass of `Distribution` with a method `draw`.
"""

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any, ClassVar
from zlib import crc32

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxkkt import datasets, images
from jaxkkt.datasets import Dataset
from jaxkkt.specs.base import S, Spec, described, without
from jaxkkt.specs.identity import digest_of_array

# Points that a distribution is measured at beside those that a run trains on.
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

    def data_key(self, seed: int) -> PRNGKeyArray:
        return fold(jax.random.key(seed), f"data {self.tag}", self.samples, self.d)

    def test_key(self, seed: int) -> PRNGKeyArray:
        return fold(jax.random.key(seed), f"test {self.tag}", self.d)


class Sized(Data):
    """Data of any number of samples: `samples` itself, or `alpha` for round(d^alpha) of them.

    Raises ValueError unless exactly one of the two is given, or where a size is out of range.
    """

    d: int = described("input dimension", default=None)
    samples: int = described("samples m", "samples", default=None)
    alpha: float | None = described("sample exponent, m = round(d^alpha)", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("d", self.d, 1)
        if self.alpha is not None:
            object.__setattr__(self, "alpha", float(self.alpha))
            counted = round(self.d**self.alpha)
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


class Distribution(Sized):
    """Random points. A subclass brings `draw`, and its numbers as fields:

        class Blobs(jk.data.Distribution):
            sigma: jk.Number = 1.0

            def draw(self, key, samples, dim):
                label_key, key = jax.random.split(key)
                y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
                x = y[:, None] + self.sigma * jax.random.normal(key, (samples, dim))
                return x, y

    `draw` is compiled: `samples` and `dim` are integers, the fields of type `Number` are traced.
    Two runs that differ in such numbers alone get the same key.
    """

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        """`samples` points x (samples, dim), and their labels y (samples,) in {-1, 1}."""
        raise NotImplementedError

    def draw_test(self, key: PRNGKeyArray, data_key: PRNGKeyArray, dim: int) -> tuple[Array, Array]:
        """Held-out points; `data_key` is the key that the run's own points were drawn with."""
        return self.draw(key, HELD_OUT, dim)

    def draw_training(self, seed: int) -> Dataset:
        sizeless, key = self.sizeless(), self.data_key(seed)
        x, y = jax.device_get(_drawn(sizeless, key, self.samples, self.d))
        return checked(self, x, y, self.samples, self.d)

    def draw_held_out(self, seed: int) -> Dataset:
        keys = self.test_key(seed), self.data_key(seed)
        x, y = jax.device_get(_drawn_test(self.sizeless(), *keys, self.d))
        return checked(self, x, y, np.shape(y)[0], self.d)

    def sizeless(self: S) -> S:
        """This spec with none of the sizes, which programs are told apart from it."""
        return without(self, "d", "samples", "alpha")

    def computations(self, **sizes: Any) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        key = jax.random.key(0)
        yield lambda spec, key: spec.draw(key, self.samples, self.d), (self.sizeless(), key)
        yield lambda spec, key: spec.draw_test(key, key, self.d), (self.sizeless(), key)


class _Padded(Distribution):
    """A distribution of `jaxkkt.datasets`, drawn at few round shapes: those share programs."""

    function: ClassVar[Callable[..., Dataset]]

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> Dataset:
        return type(self).function(key, samples, dim)

    def draw_training(self, seed: int) -> Dataset:
        return self._at(self.data_key(seed), self.samples)

    def draw_held_out(self, seed: int) -> Dataset:
        return self._at(self.test_key(seed), HELD_OUT)

    def _at(self, key: PRNGKeyArray, samples: int) -> Dataset:
        shape = (round_up(samples), round_up(self.d))
        x, y = jax.device_get(_compiled(type(self).function, shape)(key, samples, self.d))
        return Dataset(x[:samples, : self.d], y[:samples])


class Sphere(_Padded):
    """`datasets.sphere`: x uniform on the sphere of radius sqrt(d), labels uniform.

    Vardi et al. (2022), Section 6.
    """

    function = staticmethod(datasets.sphere)


class UnitSphere(_Padded):
    """`datasets.unit_sphere`: the same with |x| = 1."""

    function = staticmethod(datasets.unit_sphere)


class Gaussian(_Padded):
    """`datasets.gaussian`: x ~ N(0, I/d), labels uniform. Vardi et al. (2022), Section 6."""

    function = staticmethod(datasets.gaussian)


class Function(Distribution):
    """An own distribution: a function (key, samples, dim) -> x, y that JAX can trace."""

    function: Callable[..., tuple[Any, Any]] = described("own function", default=None, shown=False)

    @property
    def label(self) -> str:
        return str(getattr(self.function, "__name__", "function"))

    @property
    def tag(self) -> str:
        return "function"

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return self.function(key, samples, dim)

    @property
    def brought(self) -> Any:
        return self.function


class _Images(Sized):
    """Handwritten digits, 0 against 1, at d = s x s pixels: the first `samples` of an order that
    the seed draws, with both classes. Options as in `images.digits`."""

    upsample: bool = described(
        "whether more pixels than the images have were interpolated", default=False
    )
    normalized: bool = described("whether every image was scaled to |x| = 1", default=False)

    def images(self) -> images.Images:
        raise NotImplementedError

    def draw_training(self, seed: int) -> Dataset:
        x, y = self.images().train
        if self.samples > len(y):
            raise ValueError(
                f"{self.label} has {len(y)} training images, but a run asks for {self.samples} "
                "samples"
            )
        order = np.random.default_rng(seed).permutation(len(y))
        first = [order[y[order] == label][0] for label in (1, -1)]
        rows = np.array([*first, *(i for i in order if i not in first)])[: self.samples]
        return Dataset(x[rows], y[rows])

    def draw_held_out(self, seed: int) -> Dataset:
        return self.images().test


class Digits(_Images):
    """scikit-learn's zeros and ones: `images.digits`. Needs `pip install 'jaxkkt[images]'`."""

    def images(self) -> images.Images:
        return _digits(self.d, self.upsample, self.normalized)


class Mnist(_Images):
    """MNIST's zeros and ones, from the folder that JAXKKT_MNIST names: `images.mnist`."""

    def images(self) -> images.Images:
        return _mnist(self.d, self.upsample, self.normalized)


class Arrays(Data, kw_only=False):
    """Own points x (m, d) and labels y (m,) in {-1, 1}, and, if you like, held-out points.

    Every seed trains on all of them, from other initial weights. They are told from others by a
    hash of their numbers, and copied: what happens to your arrays later does not matter.
    Raises ValueError for data that do not fit, as `datasets.validate` does; float64 is refused
    while JAX would round it.
    """

    x: Float[np.ndarray, "m d"] = described("points", default=None, shown=False)
    y: Float[np.ndarray, " m"] = described("labels", default=None, shown=False)
    x_test: Float[np.ndarray, "n d"] | None = described(
        "held-out points", default=None, shown=False
    )
    y_test: Float[np.ndarray, " n"] | None = described("their labels", default=None, shown=False)
    name: str = described("name of the data", default="own", shown=False)

    def __post_init__(self) -> None:
        for name in ("x", "y", "x_test", "y_test"):
            value = getattr(self, name)
            if value is not None:
                kept = np.array(value, None if hasattr(value, "dtype") else np.float32)
                kept.flags.writeable = False
                object.__setattr__(self, name, kept)
        datasets.validate(self.x, self.y)
        if (self.x_test is None) != (self.y_test is None):
            raise ValueError("held-out points need both x_test and y_test: one is missing")
        if self.x_test is not None and self.y_test is not None:
            datasets.validate(self.x_test, self.y_test)
            if self.x_test.shape[1] != self.d:
                raise ValueError(
                    f"held-out points have dimension {self.x_test.shape[1]}, the others {self.d}"
                )

    @property
    def d(self) -> int:
        return int(self.x.shape[1])

    @property
    def samples(self) -> int:
        return int(self.x.shape[0])

    @cached_property
    def content(self) -> str:
        """A hash of all arrays."""
        held = (self.x, self.y, self.x_test, self.y_test)
        return " ".join("" if a is None else digest_of_array(a) for a in held)

    def values(self) -> dict[str, Any]:
        return {"d": self.d, "samples": self.samples}

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
        return _host_data(self.x, self.y)

    def draw_held_out(self, seed: int) -> Dataset | None:
        if self.x_test is None or self.y_test is None:
            return None
        return _host_data(self.x_test, self.y_test)

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        return {"kind": "data.Arrays", "name": self.name, "array": self.content}


def fold(key: PRNGKeyArray, tag: str, *numbers: int) -> PRNGKeyArray:
    """A key of its own for every tag and numbers."""
    for number in (crc32(tag.encode()), *numbers):
        key = jax.random.fold_in(key, number)
    return key


def round_up(size: int) -> int:
    """The size that draws and measurements are compiled for: few, and not much larger."""
    return 256 if size <= 256 else -(-size // 1024) * 1024


def require_whole(name: str, value: Any, least: int) -> None:
    """Raises ValueError unless this is an integer from `least` on."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def checked(data: Data, x: Any, y: Any, samples: int, dim: int) -> Dataset:
    """What a distribution drew; ValueError where that is no data."""
    if np.shape(x) != (samples, dim) or np.shape(y) != (samples,):
        raise ValueError(
            f"{data.label} was asked for x ({samples}, {dim}) and y ({samples},), and drew "
            f"x {np.shape(x)} and y {np.shape(y)}"
        )
    dtype = jax.dtypes.canonicalize_dtype(float)
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    datasets.validate(x, y)
    return _host_data(x, y)


def _host_data(x: Any, y: Any) -> Dataset:
    return Dataset(x, y)  # NumPy arrays: of these sizes a device's memory is for what trains


@partial(jax.jit, static_argnums=(2, 3))
def _drawn(spec: Any, key: Array, samples: int, dim: int) -> Any:
    return spec.draw(key, samples, dim)


@partial(jax.jit, static_argnums=3)
def _drawn_test(spec: Any, key: Array, data_key: Array, dim: int) -> Any:
    return spec.draw_test(key, data_key, dim)


@cache
def _compiled(function: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    return jax.jit(partial(function, shape=shape))


@cache
def _digits(d: int, upsample: bool, normalized: bool) -> images.Images:
    return images.digits(d, upsample, normalized)


@cache
def _mnist(d: int, upsample: bool, normalized: bool) -> images.Images:
    return images.mnist(images.mnist_folder(), d, upsample, normalized)
