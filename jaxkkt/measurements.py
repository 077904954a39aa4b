"""What is recorded of a trained network. A measurement is a spec, or a function of your own.

An own measurement is a function of what it needs, by name, that returns a number, an array, or a
dictionary of them:

    def dead_share(params, data):
        inside = jk.networks.preactivations(params, data.x) > 0
        return {"dead_share": 1 - inside.any(axis=0).mean()}

`params` are the trained parameters and `data` the samples that the run trained on, both at their
own size. `test` are points of the same source that it did not train on, `start` its parameters
before the first step, `protocol` is how it trained. A measurement with numbers of its own is a
subclass of `Measurement`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import kkt, lazy, networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.requirements import require_positive
from jaxkkt.specs.base import Number, Spec, described

# What a measurement may ask for, by the names of its parameters.
NEEDS = ("params", "data", "test", "start", "protocol", "curve")
# Slacks at which `Flips` looks beside its own, those next to the default one after it, and the
# shares of the samples on the margin that it asks to be flipped.
SLACKS = (1.1, 1.15, 1.2, 1.05)
SHARES = {"half": 0.5, "90": 0.9, "99": 0.99}


class Measurement(Spec):
    """A function of a trained network, with numbers of its own as fields:

        class Flipped(jk.Measurement):
            size: jk.Number = 1.0

            def measure(self, params, data):
                moved = data.x - self.size * data.y[:, None] * some_direction
                return {"flipped": (jk.networks.margins(params, moved, data.y) < 0).mean()}

    `measure` is compiled. It gets what its parameters name, each at the run's own size. What it
    returns, a number, an array or a dictionary of them, becomes variables of the results; an array
    has dimensions of its own, NaN where those of another run are longer.
    """

    # Whether `measure` knows that samples with y = 0, and neurons and coordinates of zeros, are
    # padding. It then gets arrays of few round sizes: runs of all sizes share one program.
    padded: ClassVar[bool] = False
    # Whether `measure` runs as it is, on the host, instead of being compiled. It may then ask for
    # `curve`, too: the parameters at the moments of the run's curve, stacked.
    on_host: ClassVar[bool] = False

    def measure(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """Attributes of the variables in the results: `long_name`, `units`."""
        return {}

    def needs(self) -> tuple[str, ...]:
        """What `measure` asks for; ValueError where that is not among `NEEDS`."""
        return _needs(self.called(), self.label)

    def called(self) -> Callable[..., Any]:
        return self.measure

    def computations(
        self, *, samples: int = 4, d: int = 3, width: int = 5, protocol: Any = None, **_: Any
    ) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        def spec(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))

        params = Params(spec(width, d), spec(width), spec(width))
        data = Dataset(spec(samples, d), spec(samples))
        known = {"params": params, "start": params, "data": data, "test": data}
        known |= {"protocol": protocol, "curve": params}
        asked = [known[name] for name in self.needs()]
        yield lambda here, *args: measured(here, *args), (self, *asked)


class Function(Measurement):
    """An own function as a measurement; its name is that of the one number that it returns."""

    function: Callable[..., Any] = described("own function", default=None, shown=False)

    @property
    def label(self) -> str:
        return str(getattr(self.function, "__name__", "function"))

    def called(self) -> Callable[..., Any]:
        return self.function

    def measure(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def brought(self) -> Any:
        return self.function


def measurement(value: Any) -> Measurement:
    """A measurement from what a user gives: a spec, its class, or a function."""
    if isinstance(value, Measurement):
        return value
    if isinstance(value, type) and issubclass(value, Measurement):
        return value()
    if callable(value):
        return Function(function=value)
    raise ValueError(
        f"a measurement is a function, such as f(params, data), or a jk.Measurement, got {value!r}"
    )


def measured(here: Measurement, *args: Any) -> dict[str, Array]:
    """What a measurement returns, by name; ValueError where that is no number or array."""
    found = here.measure(*args)
    if not isinstance(found, Mapping):
        found = {here.label.replace(" ", "_"): found}
    values = {}
    for name, value in found.items():
        try:
            values[str(name)] = jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the measurement {here.label!r} must return numbers or arrays, or a dictionary of "
                f"them, but {name!r} is {type(value).__name__}"
            ) from error
    return values


def _needs(function: Callable[..., Any], label: str) -> tuple[str, ...]:
    names = tuple(inspect.signature(function).parameters)
    unknown = [name for name in names if name not in NEEDS]
    if unknown:
        raise ValueError(
            f"the measurement {label!r} asks for {', '.join(map(repr, unknown))}: its parameters "
            f"may be {', '.join(map(repr, NEEDS))}"
        )
    return names


class Flips(Measurement):
    """Samples on the margin, and the smallest sizes at which the universal direction flips them.

    Vardi et al. (2022), Section 6: q_i <= slack min q is on the margin, u = sum of y_i x_i over
    those, and the flip size c is the smallest with y_i N(x_i - y_i c u/|u|) < 0 for all of them.
    c jumps where one sample crosses the slack. So the sizes at which half, 90% and 99% of those
    samples have flipped are recorded too, and the smallest c over slacks from 1.05 to 1.2, each
    with its own samples and direction.
    """

    slack: Number = described("on the margin: q <= slack min q", default=1.1)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.slack, jax.core.Tracer) and not self.slack >= 1:
            raise ValueError(f"slack must be at least 1, got {self.slack}")

    def measure(self, params: Params, data: Dataset) -> dict[str, Array]:
        x, y = data
        real = y != 0
        count = jnp.sum(real)
        margins = networks.margins(params, x, y)
        smallest = jnp.min(jnp.where(real, margins, jnp.inf))
        chosen = perturbations.on_margin(margins, self.slack, mask=real)
        direction = perturbations.universal_direction(x, y, chosen)
        norm = networks.squared_norm(params)
        exact = perturbations.flip_sizes_exact(params, x, y, direction, chosen)

        def bisected(before: Any, slack: Array) -> tuple[Any, Array]:
            others = perturbations.on_margin(margins, slack, mask=real)

            def search(_: None) -> Array:
                along = perturbations.universal_direction(x, y, others)
                return perturbations.flip_size_bisection(params, x, y, along, others).size

            # Slacks with the same samples have the same flips.
            same = jnp.all(others == before[0])
            size = jax.lax.cond(same, lambda _: before[1], search, None)
            return (others, size), size

        slacks = jnp.asarray((self.slack, *SLACKS), margins.dtype)
        nobody = jnp.zeros_like(real), jnp.full((), jnp.nan, margins.dtype)
        sizes = jax.lax.scan(bisected, nobody, slacks)[1]
        return {
            "flip_size": sizes[0],
            "flip_size_exact": exact.size,
            "flip_size_least": jnp.nanmin(sizes),
            **{
                f"flip_size_{name}": _size_of_share(exact.sizes, chosen, share)
                for name, share in SHARES.items()
            },
            "flip_monotone": exact.monotone,
            "flip_status": exact.status,
            "on_margin_share": jnp.sum(chosen) / count,
            "off_margin_count": count - jnp.sum(chosen),
            "min_margin": smallest,
            "normalized_margin": smallest / norm,
            "squared_norm": norm,
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _FLIP_ATTRIBUTES


def _size_of_share(sizes: Array, chosen: Array, share: float) -> Array:
    """The smallest size by which this share of the chosen samples has flipped."""
    count = jnp.sum(chosen)
    ordered = jnp.sort(jnp.where(chosen, sizes, jnp.nan))  # NaN last
    place = jnp.ceil(share * count.astype(sizes.dtype)).astype(count.dtype) - 1
    return jnp.where(count > 0, ordered[jnp.maximum(place, 0)], jnp.nan)


class Certificates(Measurement):
    """How close the network is to a KKT point, by `kkt.certificate`; of arrays the largest entry.

    The point is one of the problem over the parameters that the run's protocol trains.

    `budget` bounds the free slopes at kinks, as there; a network that has more ends STOPPED_EARLY
    unless the gap shows that they do not matter. Datasets padded beyond `largest` samples are not
    certified, since a certificate of 1,000 samples takes seconds: their rows are NaN, with status
    -1.
    """

    kink_tolerance: float = described(
        "pairs of a sample and a neuron this near are kinks", default=1e-6
    )
    budget: tuple[int, int] = described("neurons with kinks, and kinks of each", default=(256, 4))
    largest: int = described("most samples that are certified", "samples", default=256)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(kink_tolerance=self.kink_tolerance)
        object.__setattr__(self, "budget", tuple(self.budget))

    def measure(self, params: Params, data: Dataset, protocol: Any) -> dict[str, Array]:
        if data.y.shape[0] > self.largest:
            return {name: jnp.full((), jnp.nan) for name in _CERTIFICATE_ATTRIBUTES} | {
                "certificate_status": jnp.full((), NOT_CERTIFIED, jnp.int32)
            }
        found = kkt.certificate(
            params,
            *data,
            kink_tolerance=self.kink_tolerance,
            budget=self.budget,
            trained=getattr(protocol, "trained", None),
        )
        return {
            "residual_one_sided": found.one_sided.residual,
            "residual_clarke": found.clarke.residual,
            "residual_gap": jnp.maximum(found.one_sided.gap, found.clarke.gap),
            "slackness": found.clarke.slackness,
            "kinks": found.kinks,
            "balance": jnp.max(found.balance),
            "certificate_status": found.status,
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _CERTIFICATE_ATTRIBUTES


class StepFlips(Measurement):
    """The smallest single gradient steps that flip test points: `perturbations.gradient_steps`.

    Means are over the test points that are classified correctly and flipped by a step within the
    bracket; the others are counted. With `published` they are over all test points and of the eta
    that the paper's published code finds, `perturbations.GradientSteps.published_eta`, for which
    the bracket has to reach |eta| = 5. Wang et al. (2022), Section 5.1.
    """

    bracket: Number = described("largest |delta| / |x| that is searched", default=1.0)
    published: bool = described("whether eta is counted as in the published code", default=False)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(bracket=self.bracket)

    def measure(self, params: Params, test: Dataset, start: Params) -> dict[str, Array]:
        x, y = test
        count = jnp.sum(y != 0)
        found = perturbations.gradient_steps(params, x, self.bracket)
        needing = found.needs_step(y)
        flipped = needing & (found.status == perturbations.StepStatus.FLIPPED)
        norm = jnp.linalg.norm(x, axis=1)
        counted, eta, size = flipped, found.eta, found.size
        if self.published:
            eta = found.published_eta(y)
            counted, size = y != 0, eta * found.gradient_norm

        def mean(values: Array) -> Array:
            return jnp.mean(values, where=counted)

        moved = lazy.distances(params, start)
        return {
            "step_eta": mean(eta),
            "step_gradient_norm": mean(found.gradient_norm),
            "step_size": mean(size),
            "step_relative_size": mean(size / jnp.where(norm > 0, norm, 1)),
            "step_needed_share": jnp.sum(needing) / count,
            "step_flipped_share": jnp.sum(flipped) / jnp.sum(needing),
            "furthest": jnp.max(jnp.where(params.v != 0, moved / jnp.abs(params.v), 0)),
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _STEP_ATTRIBUTES


NOT_CERTIFIED = -1

_LENGTH = "units of the input (|x| = sqrt(d) for sphere data)"
_FLIP_ATTRIBUTES = {
    "flip_size": {
        "long_name": "smallest universal perturbation that flips all samples on the margin (c)",
        "units": _LENGTH,
        "method": "bisection",
    },
    "flip_size_exact": {
        "long_name": "smallest universal perturbation that flips all samples on the margin (c)",
        "units": _LENGTH,
        "method": "exact along the ray",
    },
    "flip_size_least": {
        "long_name": "smallest c over slacks of 1.05, 1.1, 1.15, 1.2 and the measurement's own",
        "units": _LENGTH,
        "method": "bisection along each slack's ray",
    },
    **{
        f"flip_size_{name}": {
            "long_name": f"size by which {share:.0%} of the samples on the margin have flipped",
            "units": _LENGTH,
            "method": "exact along the ray, first flips",
        }
        for name, share in SHARES.items()
    },
    "flip_monotone": {
        "long_name": "1 where every sample stays flipped beyond its first flip",
        "units": "1",
    },
    "flip_status": {
        "long_name": "how the search for the flip size ended",
        "units": "1",
        "flag_values": ", ".join(str(s.value) for s in perturbations.FlipStatus),
        "flag_meanings": " ".join(s.name.lower() for s in perturbations.FlipStatus),
    },
    "on_margin_share": {"long_name": "share of samples on the margin", "units": "1"},
    "off_margin_count": {"long_name": "number of samples not on the margin", "units": "samples"},
    "min_margin": {"long_name": "smallest margin min_i q_i", "units": "1"},
    "normalized_margin": {"long_name": "min_i q_i / |theta|^2", "units": "1"},
    "squared_norm": {"long_name": "|theta|^2", "units": "1"},
}

_STEP_ATTRIBUTES = {
    "step_eta": {
        "long_name": "smallest gradient step |eta| that flips, mean over the points that count",
        "units": "units of input squared an output",
    },
    "step_gradient_norm": {
        "long_name": "norm of the gradient in the input, mean over test points",
        "units": "outputs a unit of the input",
    },
    "step_size": {
        "long_name": "size |delta| of the smallest gradient step that flips, mean over test points",
        "units": "units of the input",
    },
    "step_relative_size": {
        "long_name": "|delta| / |x| of the smallest gradient step, mean over test points",
        "units": "1",
    },
    "step_needed_share": {
        "long_name": "share of test points classified correctly, which need a step to be flipped",
        "units": "1",
    },
    "step_flipped_share": {
        "long_name": "share of those that a step within the bracket flips",
        "units": "1",
    },
    "furthest": {
        "long_name": "largest distance of a neuron from its start times sqrt(k): C0 at the edge of "
        "the lazy ball",
        "units": "1",
    },
}

_CERTIFICATE_ATTRIBUTES = {
    "residual_one_sided": {
        "long_name": "stationarity residual |theta - sum_i lambda_i y_i g_i| / |theta| with "
        "relu'(0) = 0",
        "units": "1",
    },
    "residual_clarke": {
        "long_name": "stationarity residual with any slope in [0, 1] at kinks",
        "units": "1",
    },
    "residual_gap": {
        "long_name": "by how much the squared residuals could be smaller, at most",
        "units": "1",
    },
    "slackness": {
        "long_name": "sum_i lambda_i (q_i - 1) / sum_i lambda_i at min margin 1",
        "units": "1",
    },
    "kinks": {"long_name": "pairs of a sample and a neuron at a kink", "units": "pairs"},
    "balance": {"long_name": "max_j | |w_j|^2 + b_j^2 - v_j^2 | / |theta|^2", "units": "1"},
    "certificate_status": {
        "long_name": "what the certificate is worth",
        "units": "1",
        "flag_values": ", ".join(str(v) for v in (NOT_CERTIFIED, *map(int, kkt.CertificateStatus))),
        "flag_meanings": " ".join(
            ("not_certified", *(s.name.lower() for s in kkt.CertificateStatus))
        ),
    },
}
