"""The weights that a run starts from: drawn by its seed, or by an own function or class."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import networks
from jaxkkt.networks import Params
from jaxkkt.numerics.arithmetic import round_up
from jaxkkt.numerics.keys import fold, key_of
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.numerics.tracing import require_traceable
from jaxkkt.specs.base import Spec
from jaxkkt.specs.fields import Number, described
from jaxkkt.specs.identity import given, package_of, short_name


class Initialization(Spec):
    """The weights before the first step. A subclass brings `draw`, and its numbers as fields:

        class Balanced(jk.initializations.Initialization):
            scale: jk.Number = 1.0

            def draw(self, key, width, dim):
                w = self.scale * jax.random.normal(key, (width, dim))
                v = jnp.linalg.norm(w, axis=1) * jnp.where(jnp.arange(width) % 2 == 0, 1, -1)
                return jk.Params(w, jnp.zeros(width), v)

    `draw` is compiled: `width` and `dim` are integers, the fields of type `Number` are traced.
    Two runs that differ in such numbers alone get the same key.
    """

    @property
    def tag(self) -> str:
        """What keys are folded with, beside the sizes: draws of one kind share their numbers."""
        return self.label

    def key(self, seed: Any, width: Any, dim: Any) -> PRNGKeyArray:
        return fold(key_of(seed), f"init {self.tag}", width, dim)

    def draw(self, key: PRNGKeyArray, width: int, dim: int) -> Params:
        """A network of `width` neurons on inputs of dimension `dim`."""
        raise NotImplementedError

    def require_fit(self, data: Any) -> None:
        """Raises ValueError where the weights are none for a run's `data`."""

    # Whether `draw_at` draws at any shape that holds the sizes, which may be traced.
    any_size: ClassVar[bool] = False

    @property
    def traceable(self) -> bool:
        """Whether `draw_at` draws what `draw_start` does."""
        return type(self).draw_start is Initialization.draw_start

    def draw_at(self, seed: Any, width: Any, dim: Any, shape: tuple[int, int]) -> Params:
        """Traced: the weights of a traced seed, padded to the shape (k', d')."""
        drawn = _traced(self, self.key(seed, width, dim), *shape)
        if [jnp.shape(a) for a in drawn] != [shape, shape[:1], shape[:1]]:
            raise ValueError(f"{self.label} was asked for w {shape}, and drew other shapes")
        return Params(*drawn)

    def draw_start(self, seed: int, width: int, dim: int) -> Params:
        """The weights that a run starts from, as NumPy arrays."""
        return started(self, _drawn(self, self.key(seed, width, dim), width, dim), width, dim)

    def _key(self, seed: int, width: int, dim: int) -> Array:
        """What weights are drawn by: `label` and `tag` are part of it."""
        return jax.random.key_data(self.key(seed, width, dim))

    @property
    def told_by_values(self) -> bool:
        return package_of(type(self).draw_start) is None

    def computations(
        self, *, width: int = 3, d: int = 2
    ) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        yield given(self, "_key", width, d)
        if self.told_by_values:
            yield given(self, "draw_start", width, d)
        if type(self).draw is not Initialization.draw:
            yield lambda spec, key: spec.draw(key, width, d), (self, key_of(0))


class _Padded(Initialization):
    """An initialization of `jaxkkt.networks`, drawn at few round shapes: those share programs."""

    scale: Number = described("times the initial weights", default=1.0)
    function: ClassVar[Callable[..., Params]]

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(init_scale=self.scale)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.any_size = cls.draw is _Padded.draw  # one of a user's own is drawn as it says

    @property
    def traceable(self) -> bool:
        return type(self).draw_start is _Padded.draw_start

    def draw_at(self, seed: Any, width: Any, dim: Any, shape: tuple[int, int]) -> Params:
        if not self.any_size:
            return super().draw_at(seed, width, dim, shape)
        key = self.key(seed, width, dim)
        return type(self).function(key, width, dim, self.scale, shape, **self.options())

    def options(self) -> dict[str, Any]:
        return {}

    def draw(self, key: PRNGKeyArray, width: int, dim: int) -> Params:
        return type(self).function(key, width, dim, self.scale, **self.options())

    def draw_start(self, seed: int, width: int, dim: int) -> Params:
        if not self.any_size:
            return super().draw_start(seed, width, dim)
        drawn = _drawn_padded(
            self, self.key(seed, width, dim), width, dim, (round_up(width), round_up(dim))
        )
        return networks.unpad(jax.device_get(drawn), width, dim)


class Torch(_Padded):
    """PyTorch's default for two `Linear` layers: `networks.torch_linear`."""

    function = staticmethod(networks.torch_linear)


class Gaussian(_Padded):
    """Normal draws of variance 1/fan_in: `networks.gaussian`."""

    function = staticmethod(networks.gaussian)


class Lazy(_Padded):
    """w ~ N(0, I), v = +-1/sqrt(k), b = 0 or, with `biases`, N(0, 1): `networks.lazy`.

    Wang et al. (2022), Definition 2.1.
    """

    biases: bool = described("whether there are biases", default=False)
    function = staticmethod(networks.lazy)

    @property
    def tag(self) -> str:
        return "lazy with biases" if self.biases else "lazy"

    def options(self) -> dict[str, Any]:
        return {"biases": self.biases}


class Spanned(Initialization):
    """`networks.gaussian` in R^ambient, of which the part in the span of the points is kept.

    w, b ~ N(0, 1/ambient), v ~ N(0, 1/k). What is left out moves no output and no gradient; it adds
    about 1 to each |w_j|^2. For `data.Span` and clusters in an ambient space.
    """

    ambient: Number = described("dimension of the points' space", default=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(ambient=self.ambient)

    def require_fit(self, data: Any) -> None:
        there = getattr(data, "ambient", None)
        if isinstance(there, int | float) and there != self.ambient:
            raise ValueError(
                f"the points are of R^{there!r} and the weights of R^{self.ambient!r}: give data "
                f"and initialization the same, as data_ambient={there!r}, init_ambient={there!r} "
                "of a grid; for several a grid each, jk.grid(...) + jk.grid(...)"
            )

    def draw(self, key: PRNGKeyArray, width: int, dim: int) -> Params:
        drawn = networks.gaussian(key, width, dim)
        scale = jnp.sqrt(dim / jnp.asarray(self.ambient, drawn.w.dtype))
        return drawn._replace(w=drawn.w * scale, b=drawn.b * scale)


class Function(Initialization):
    """An own initialization: a function (key, width, dim) -> Params that JAX can trace."""

    function: Callable[..., Params] = described("own function", default=None, shown=False)

    @property
    def label(self) -> str:
        return short_name(self.function)

    @property
    def tag(self) -> str:
        return "function"

    def draw(self, key: PRNGKeyArray, width: int, dim: int) -> Params:
        return self.function(key, width, dim)

    @property
    def brought(self) -> Any:
        return self.function


def started(spec: Initialization, drawn: Any, width: int, dim: int) -> Params:
    """What an initialization drew, as NumPy arrays; ValueError where that is no network of these
    sizes."""
    shapes = [np.shape(a) for a in drawn] if isinstance(drawn, tuple) else type(drawn)
    if shapes != [(width, dim), (width,), (width,)]:
        raise ValueError(
            f"{spec.label} was asked for w ({width}, {dim}), b ({width},), v ({width},), and "
            f"drew {shapes}: return jk.Params(w, b, v)"
        )
    dtype = jax.dtypes.canonicalize_dtype(float)
    start: Any = [np.asarray(a, dtype) for a in drawn]
    return Params(*start)


def _traced(spec: Initialization, key: Any, width: int, dim: int) -> Any:
    instead = ", or in an Initialization with a `draw_start`, which is not compiled"
    with require_traceable(f"the draw of {spec.label!r}", instead):
        return spec.draw(key, width, dim)


_drawn = jax.jit(_traced, static_argnums=(2, 3))


@partial(jax.jit, static_argnums=4)
def _drawn_padded(spec: Any, key: Any, width: Any, dim: Any, shape: tuple[int, int]) -> Params:
    return type(spec).function(key, width, dim, spec.scale, shape=shape, **spec.options())
