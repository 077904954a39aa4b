"""Random points of any number: those of `jaxkkt.datasets`, and a user's own."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxkkt import datasets, spans
from jaxkkt.datasets import Dataset
from jaxkkt.numerics.arithmetic import round_up
from jaxkkt.numerics.compiling import quick_jit
from jaxkkt.numerics.keys import key_of
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.numerics.tracing import require_traceable
from jaxkkt.specs.base import S, unchecked
from jaxkkt.specs.data.base import HELD_OUT, Sized, checked
from jaxkkt.specs.fields import Number, described
from jaxkkt.specs.identity import given, package_of, short_name


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
    Two runs that differ in such numbers alone get the same key. Raises ValueError without a `draw`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        cls, base = type(self), Distribution
        if cls.draw is base.draw and cls.draw_training is base.draw_training:
            raise ValueError(
                f"{cls.__name__} has no `draw`: give it draw(self, key, samples, dim), which "
                "returns points x and labels y"
            )

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

    @property
    def may_hold_out(self) -> bool:
        cls, base = type(self), Distribution
        draws = "draw", "draw_test", "draw_held_out"
        return any(getattr(cls, name) is not getattr(base, name) for name in draws)

    def draw_held_out(self, seed: int) -> Dataset | None:
        if not self.may_hold_out:
            return None
        keys = self.test_key(seed), self.data_key(seed)
        x, y = jax.device_get(_drawn_test(self.sizeless(), *keys, self.d))
        by_draw = type(self).draw_test is Distribution.draw_test
        return checked(self, x, y, HELD_OUT if by_draw else np.shape(y)[0], self.d)

    @property
    def traceable(self) -> bool:
        return type(self).draw_training is Distribution.draw_training and self.keyed_as_traced

    def draw_at(self, seed: Any, samples: Any, dim: Any, shape: tuple[int, int]) -> Dataset:
        x, y = _pair(self, partial(self.draw, self.key_at(seed, samples, dim), *shape))
        if jnp.shape(x) != shape or jnp.shape(y) != shape[:1]:
            raise ValueError(f"{self.label} was asked for x {shape}, and drew {jnp.shape(x)}")
        return Dataset(x, y)

    def sizeless(self: S) -> S:
        return unchecked(self, d=None, samples=None, alpha=None)

    @property
    def told_by_values(self) -> bool:
        return bool(self._given)

    @property
    def _given(self) -> tuple[str, ...]:
        """Own methods that are not compiled."""
        methods = "draw_training", "draw_held_out", "draw_truth"
        return tuple(name for name in methods if package_of(getattr(type(self), name)) is None)

    def computations(self) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        cls, key = type(self), key_of(0)

        def draw(samples: int, spec: Distribution, key: PRNGKeyArray) -> Any:
            return spec.draw(key, samples, self.d)

        yield given(self, "_keys")
        if cls.draw is not Distribution.draw:
            yield partial(draw, self.samples), (self.sizeless(), key)
        if cls.draw_test is not Distribution.draw_test:

            def draw_test(spec: Distribution, key: PRNGKeyArray, data_key: PRNGKeyArray) -> Any:
                return spec.draw_test(key, data_key, self.d)

            yield draw_test, (self.sizeless(), key, key)
        elif "draw_held_out" not in self._given and self._draws(HELD_OUT):
            yield partial(draw, HELD_OUT), (self.sizeless(), key)
        for name in self._given:
            yield given(self, name)

    def _keys(self, seed: int) -> list[Array]:
        """What points are drawn by: `label` and `tag` are part of it."""
        return list(map(jax.random.key_data, (self.data_key(seed), self.test_key(seed))))

    def _draws(self, samples: int) -> bool:
        """Whether it can draw so many: a list of points is only so long."""
        try:
            jax.eval_shape(lambda key: self.draw(key, samples, self.d), key_of(0))
        except Exception:
            return False
        return True


class _Padded(Distribution):
    """A distribution of `jaxkkt.datasets`, drawn at few round shapes: those share programs."""

    function: ClassVar[Callable[..., Dataset]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.any_size = cls.draw is _Padded.draw  # one of a user's own is drawn as it says

    @property
    def traceable(self) -> bool:
        return type(self).draw_training is _Padded.draw_training and self.keyed_as_traced

    def draw_at(self, seed: Any, samples: Any, dim: Any, shape: tuple[int, int]) -> Dataset:
        if not self.any_size:
            return super().draw_at(seed, samples, dim, shape)
        return type(self).function(self.key_at(seed, samples, dim), samples, dim, shape)

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> Dataset:
        return type(self).function(key, samples, dim)

    def draw_training(self, seed: int) -> Dataset:
        if not self.any_size:
            return super().draw_training(seed)
        return self._at(self.data_key(seed), self.samples)

    def draw_held_out(self, seed: int) -> Dataset | None:
        if not self.any_size or type(self).draw_test is not Distribution.draw_test:
            return super().draw_held_out(seed)
        return self._at(self.test_key(seed), HELD_OUT)

    def _at(self, key: PRNGKeyArray, samples: int) -> Dataset:
        shape = (round_up(samples), round_up(self.d))
        drawn = Dataset(*_compiled(type(self).function, shape)(key, samples, self.d))
        return datasets.unpad(jax.device_get(drawn), samples, self.d)


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


class Span(Distribution):
    """`spans.sphere`: points of the sphere in R^ambient, in the m coordinates of their span.

    So d = m, whatever `ambient` is. A measurement that asks for `truth` gets `ambient` as its d.
    Initial weights that go with them have variance 1/ambient: `initializations.Spanned`.
    """

    ambient: Number = described("dimension of the points' space", default=1e6)

    def __post_init__(self) -> None:
        if self.d is None and self.samples is not None:
            object.__setattr__(self, "d", self.samples)
        super().__post_init__()
        require_positive(ambient=self.ambient)
        if self.d != self.samples:
            raise ValueError(f"{self.samples} points span d = {self.samples}, got d = {self.d}")
        if not isinstance(self.ambient, jax.core.Tracer) and not self.ambient >= self.samples:
            raise ValueError(f"ambient must be at least {self.samples}, got {self.ambient}")

    def replace(self, **changes: Any) -> Any:
        return super().replace(**{"d": changes.get("samples", self.samples), **changes})

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return spans.sphere(key, samples, self.ambient)

    def draw_held_out(self, seed: int) -> None:
        """None: other points are not in the span."""

    def draw_truth(self, seed: int) -> spans.Ambient:
        return spans.Ambient(jnp.asarray(self.ambient, float))


class Function(Distribution):
    """An own distribution: a function (key, samples, dim) -> x, y that JAX can trace."""

    function: Callable[..., tuple[Any, Any]] = described("own function", default=None, shown=False)

    @property
    def label(self) -> str:
        return short_name(self.function)

    @property
    def tag(self) -> str:
        return "function"

    def draw(self, key: PRNGKeyArray, samples: int, dim: int) -> tuple[Array, Array]:
        return self.function(key, samples, dim)

    @property
    def brought(self) -> Any:
        return self.function


@partial(quick_jit, static_argnums=(2, 3))
def _drawn(spec: Any, key: Array, samples: int, dim: int) -> Any:
    return _pair(spec, partial(spec.draw, key, samples, dim))


@partial(quick_jit, static_argnums=3)
def _drawn_test(spec: Any, key: Array, data_key: Array, dim: int) -> Any:
    return _pair(spec, partial(spec.draw_test, key, data_key, dim))


def _pair(spec: Distribution, draw: Callable[[], Any]) -> tuple[Any, Any]:
    """What a distribution draws, as x and y; ValueError where that is no pair."""
    instead = ", or in a jk.data.Distribution with a `draw_training`, which is not compiled"
    with require_traceable(f"the draw of {spec.label!r}", instead):
        drawn = draw()
    if isinstance(drawn, tuple | list) and len(drawn) == 2:
        return drawn[0], drawn[1]
    got = f"an array of shape {drawn.shape}" if hasattr(drawn, "shape") else repr(drawn)
    raise ValueError(
        f"the draw of {spec.label!r} must return two arrays, points x and labels y, got {got}"
    )


@cache
def _compiled(function: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    return quick_jit(partial(function, shape=shape))
