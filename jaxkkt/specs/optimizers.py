"""The rule that moves the weights of a run: its numbers are fields, and ride along with a lane."""

import inspect
import re
from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxkkt import optimizers
from jaxkkt.networks import Params
from jaxkkt.numerics.requirements import require_positive
from jaxkkt.optimizers import LARGEST, FlowTransformation, LinearTransformation
from jaxkkt.specs.base import Spec, jsonable, unknown_field
from jaxkkt.specs.fields import Number, described
from jaxkkt.specs.identity import any_numbers, function_name, package_of


class Optimizer(Spec):
    """A rule that moves the weights. A subclass brings `transformation`, and numbers as fields.

    `steps_guess` is how many steps a run takes, roughly: sweeps plan by it. `linear` says whether
    the update combines gradients linearly, as in `optimizers.linear`; ValueError where it does not.
    """

    steps_guess: ClassVar[int] = 1000
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear and package_of(type(self)) is None and not _traced(self.values()):
            _require_linear_once(self)

    @property
    def takes_batches(self) -> bool:
        """Whether a step may see some of the samples alone."""
        return not isinstance(self.transformation(), FlowTransformation)

    def transformation(self) -> optax.GradientTransformation:
        """The rule as an optax transformation over grad log L: see `jaxkkt.optimizers`."""
        raise NotImplementedError

    def computations(
        self, *, width: int = 3, d: int = 2
    ) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        def array(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))

        params = Params(array(width, d), array(width), array(width))
        number = jnp.zeros(())
        more = {"log_loss": number, "squared_norm": number, "samples": jnp.zeros((), jnp.int32)}

        def init(spec: Any, params: Params) -> Any:
            return spec.transformation().init(params)

        def update(spec: Any, state: Any, gradient: Params, params: Params, more: Any) -> Any:
            return optimizers.update(spec.transformation(), gradient, state, params, **more)

        yield init, (self, params)
        yield update, (self, jax.eval_shape(init, self, params), params, params, more)


class Flow(Optimizer):
    """Gradient flow in log-loss time: `optimizers.log_loss_time`.

    Its steps follow log L of all samples, so it takes no mini-batches. Raises ValueError for a
    `delta` above 2, the flow's largest step.
    """

    delta: Number = described("step in log-loss time at the start of a run", default=0.01)
    steps_guess: ClassVar[int] = 420
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(delta=self.delta)
        if isinstance(self.delta, jax.core.Tracer):
            return
        largest, delta = LARGEST, np.max(self.delta)
        if delta > largest:
            raise ValueError(
                f"delta must be at most {largest:g}, the flow's largest step (`largest` of "
                f"jk.optimizers.log_loss_time), got {delta:g}: the default is 0.01"
            )

    def transformation(self) -> LinearTransformation:
        return optimizers.log_loss_time(self.delta)


class PaperSchedule(Optimizer):
    """Descent on L with a growing rate: `optimizers.paper_schedule`."""

    learning_rate: Number = described("learning rate at the first step", default=1e-5)
    growth: Number = described("what the learning rate is multiplied by", default=1.1)
    every: int = described("once in this many steps", "steps", default=100)
    steps_guess: ClassVar[int] = 74_000
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(learning_rate=self.learning_rate, growth=self.growth)

    def transformation(self) -> LinearTransformation:
        return optimizers.paper_schedule(self.learning_rate, self.growth, self.every)


class Descent(Optimizer):
    """Gradient descent on L, the sum over a step's samples or their mean:
    `optimizers.loss_scaled`."""

    learning_rate: Number = described("learning rate", default=0.01)
    reduction: Literal["sum", "mean"] = described(
        "whether L is the sum over the samples, or their mean", default="sum"
    )
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.transformation()  # checks both

    def transformation(self) -> LinearTransformation:
        return optimizers.loss_scaled(self.learning_rate, self.reduction)


class Optax(Optimizer):
    """An optax optimizer over grad log L, with the settings that it is made by as fields.

    `optimizer` makes one. Settings that are floats are numbers of a lane: other values of them
    compile nothing anew.
    """

    factory: ClassVar[Callable[..., optax.GradientTransformation]]
    # What makes this class, of what: each factory has its own.
    made_as: ClassVar[tuple[Callable[..., Any], tuple[Any, ...]]]
    linear: bool = described("declared linear", default=False, shown=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = getattr(self, "learning_rate", None)
        if isinstance(rate, float | jax.Array):  # it may be a schedule
            require_positive(learning_rate=rate)

    @property
    def label(self) -> str:
        return str(getattr(type(self).factory, "__name__", "optax"))

    @property
    def brought(self) -> Any:
        """The factory, unless it is optax's own and is given no function: then nothing is own."""
        factory, given = type(self).factory, jax.tree.leaves(self.settings())
        of_optax = str(getattr(factory, "__module__", "")).split(".")[0] == "optax"
        return type(self) if of_optax and not any(map(callable, given)) else factory

    @property
    def compiled_as(self) -> Hashable:
        return any_numbers(self)

    def settings(self) -> dict[str, Any]:
        """What the factory is called with."""
        return {name: getattr(self, name) for name in type(self).field_names() if name != "linear"}

    def transformation(self) -> optax.GradientTransformation:
        try:
            made = type(self).factory(**self.settings())
        except jax.errors.ConcretizationTypeError as error:
            raise ValueError(
                f"{self.label} cannot be made of numbers that vary, which JAX traces: annotate a "
                "setting that has to be known, `decay_steps: int`, or make schedules by "
                f"arithmetic, not `if` ({str(error).splitlines()[0]})"
            ) from error
        except TypeError as error:
            raise ValueError(
                f"{self.label} cannot be made: {error}. Give it what it needs, as in "
                "jk.optimizer(optax.adam, learning_rate=0.01), or by axes of the grid"
            ) from error
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(f"{self.label} makes no optax transformation, but {made!r:.80}")
        return made

    def replace(self, **changes: Any) -> "Optax":
        made = {"linear": self.linear, **self.settings(), **changes}
        return optimizer(type(self).factory, **made)  # type: ignore[return-value]

    @classmethod
    def grid_fields(cls) -> tuple[str, ...]:
        return _settings_of(cls.factory)

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "optimizers.Optax"}
        own = digests and self.brought is not type(self)
        if not own:  # which is told by what it computes, not by its name
            found["made_by"] = {"function": function_name(type(self).factory)}
        for name, value in self.settings().items():
            if not (own and any(map(callable, jax.tree.leaves(value)))):
                found[name] = jsonable(value)
        found["linear"] = self.linear
        if digests:  # optax's own are told by their settings, whatever the sizes
            found["computes"] = self.digest(**({} if self.brought is type(self) else sizes))
        return found

    @classmethod
    def from_fields(cls, values: dict[str, Any]) -> Optimizer:
        return optimizer(**values)

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self).factory, self.linear, self.settings())


class Transformation(Optimizer):
    """An optax transformation that is made already: no number in it is a field.

    It is told from others by what its `init` and `update` compute.
    """

    made: optax.GradientTransformation = described("transformation", default=None, shown=False)

    @property
    def label(self) -> str:
        return "own"

    @property
    def brought(self) -> Any:
        return self.made

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return isinstance(self.made, LinearTransformation)

    def transformation(self) -> optax.GradientTransformation:
        return self.made

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "optimizers.Transformation"}
        return {**found, "computes": self.digest(**sizes)} if digests else found

    @classmethod
    def from_fields(cls, values: dict[str, Any]) -> Optimizer:
        raise ValueError(
            "JSON cannot hold an optax transformation that was made already: use "
            "jk.optimizer(optax.adam, learning_rate=0.01) where specs have to come back from it"
        )


def optimizer(
    made_by: Callable[..., optax.GradientTransformation] | optax.GradientTransformation | Optimizer,
    linear: bool = False,
    **settings: Any,
) -> Optimizer:
    """An optax optimizer as a spec: `jk.optimizer(optax.adam, learning_rate=0.01)`.

    It sees grad log L. Every setting is a field of a grid, and floats are numbers of a lane. So are
    whole numbers, which become floats, unless the function says that it takes whole ones: by a
    default that is one, by an annotation with int and without float, or by the name `key` or
    `seed`. Another setting that must be whole is given by a function that sets it. With `linear` it
    is declared linear, as `optimizers.linear` does. Where nothing has to vary,
    a transformation that is made already, `optax.adam(0.01)`, will do.
    A required setting may be left out where an axis of the grid gives it.
    Raises ValueError for a setting that the function does not take, for a learning rate that is a
    number, but not positive and finite, and where it is declared linear and is not.
    """
    if isinstance(made_by, Optimizer):
        return made_by
    if isinstance(made_by, optax.GradientTransformation):
        if settings:
            raise ValueError(
                f"{', '.join(settings)} cannot be set on a transformation that is made already: "
                "pass the function that makes it, jk.optimizer(optax.sgd, learning_rate=0.1)"
            )
        return Transformation(made=optimizers.linear(made_by) if linear else made_by)
    known = _settings_of(made_by)
    for name, value in settings.items():
        if name not in known:
            raise ValueError(unknown_field(name, known, function_name(made_by)))
        if isinstance(value, int | np.number) and not isinstance(value, bool):
            whole = isinstance(value, int | np.integer) and _is_whole(made_by, name)
            settings[name] = int(value) if whole else float(value)
        elif name == "learning_rate" and isinstance(value, str):
            raise ValueError(f"learning_rate must be a number or a schedule, got {value!r}")
    numbers = [name for name, v in settings.items() if isinstance(v, float | jax.Array)]
    cls = _optax_class(made_by, tuple(sorted(numbers)), tuple(sorted(settings)))
    made = cls(linear=linear, **settings)
    if linear and not _traced(settings):
        _require_linear(made)
    return made


def _is_whole(made_by: Callable[..., Any], name: str) -> bool:
    """Whether a whole number that this setting is given stays one, and is no number of a lane."""
    setting = inspect.signature(made_by).parameters[name]
    words = set(re.findall(r"\w+", inspect.formatannotation(setting.annotation)))
    annotated = "int" in words and "float" not in words
    return isinstance(setting.default, int) or annotated or name in ("key", "seed")


def _traced(settings: dict[str, Any]) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in settings.values())


def _require_linear(made: Optimizer) -> None:
    """As `optimizers.require_linear`, once settings that an axis of the grid gives are there."""
    try:
        made.transformation()
    except ValueError:
        return
    optimizers.require_linear_steps(partial(_two_steps, made))


@jax.jit
def _two_steps(made: Optimizer, gradient: Params) -> Array:
    """One program for all numbers of an optimizer's settings."""
    return optimizers.two_steps(made.transformation(), gradient)


# Optimizers from outside the package, with their numbers, that were found to be linear.
_LINEAR: set[Optimizer] = set()


def _require_linear_once(made: Optimizer) -> None:
    if made not in _LINEAR:
        _require_linear(made)
        _LINEAR.add(made)


def _settings_of(factory: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(factory).parameters)


def _rebuilt(factory: Any, linear: bool, settings: dict[str, Any]) -> Optimizer:
    return optimizer(factory, linear, **settings)


@cache
def _optax_class(
    factory: Callable[..., Any], numbers: tuple[str, ...], names: tuple[str, ...]
) -> type[Optax]:
    hints = {name: Number if name in numbers else Any for name in names}
    body = {
        "__annotations__": hints,
        "__module__": __name__,
        "factory": staticmethod(factory),
        "made_as": (_optax_class, (factory, numbers, names)),
    }
    return type("Optax", (Optax,), body)
