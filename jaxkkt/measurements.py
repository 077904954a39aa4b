"""What is recorded of a trained network: pure functions of (params, data) with named results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import kkt, lazy, networks, perturbations
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params


@dataclass(frozen=True)
class Measurement:
    """A named function (params, *needs) -> scalars, with the units and meaning of each.

    `needs` names what it is called with after the trained parameters: "data" are the samples that
    the run trained on, "test" others from the same source, "start" its initial parameters. Samples
    with y = 0 are padding and must not count. `attributes` become the attributes of the variables
    in the results. `name` stands for the measurement and its settings in records.
    """

    name: str
    function: Callable[..., dict[str, Array]]
    attributes: Mapping[str, Mapping[str, str]]
    needs: tuple[Literal["data", "test", "start"], ...] = ("data",)


@cache
def flips(slack: float = 1.1) -> Measurement:
    """Samples on the margin, and the smallest size at which the universal direction flips them.

    Vardi et al. (2022), Section 6: q_i <= slack min q is on the margin, u = sum of y_i x_i over
    those, and the flip size c is the smallest with y_i N(x_i - y_i c u/|u|) < 0 for all of them.
    """

    def measure(params: Params, data: Dataset) -> dict[str, Array]:
        x, y = data
        real = y != 0
        count = jnp.sum(real)
        margins = networks.margins(params, x, y)
        smallest = jnp.min(jnp.where(real, margins, jnp.inf))
        chosen = perturbations.on_margin(margins, slack, mask=real)
        direction = perturbations.universal_direction(x, y, chosen)
        bisected = perturbations.flip_size_bisection(params, x, y, direction, chosen)
        exact = perturbations.flip_sizes_exact(params, x, y, direction, chosen)
        norm = networks.squared_norm(params)
        return {
            "flip_size": bisected.size,
            "flip_size_exact": exact.size,
            "flip_monotone": exact.monotone,
            "flip_status": exact.status,
            "on_margin_share": jnp.sum(chosen) / count,
            "off_margin_count": count - jnp.sum(chosen),
            "min_margin": smallest,
            "normalized_margin": smallest / norm,
            "squared_norm": norm,
        }

    return Measurement(f"flips(slack={slack:g})", measure, _FLIP_ATTRIBUTES)


@cache
def certificates(
    kink_tolerance: float = 1e-6, budget: tuple[int, int] = (256, 4), largest: int = 256
) -> Measurement:
    """How close the network is to a KKT point, by `kkt.certificate`; of arrays the largest entry.

    `budget` bounds the free slopes at kinks, as there; a network that has more ends STOPPED_EARLY
    unless the gap shows that they do not matter. Datasets padded beyond `largest` samples are not
    certified, since a certificate of 1,000 samples takes seconds: their rows are NaN, with status
    -1.
    """

    def measure(params: Params, data: Dataset) -> dict[str, Array]:
        if data.y.shape[0] > largest:
            return {name: jnp.full((), jnp.nan) for name in _CERTIFICATE_ATTRIBUTES} | {
                "certificate_status": jnp.full((), NOT_CERTIFIED, jnp.int32)
            }
        found = kkt.certificate(params, *data, kink_tolerance=kink_tolerance, budget=budget)
        return {
            "residual_one_sided": found.one_sided.residual,
            "residual_clarke": found.clarke.residual,
            "residual_gap": jnp.maximum(found.one_sided.gap, found.clarke.gap),
            "slackness": found.clarke.slackness,
            "kinks": found.kinks,
            "balance": jnp.max(found.balance),
            "certificate_status": found.status,
        }

    settings = f"kink_tolerance={kink_tolerance:g}, budget={budget}, largest={largest}"
    return Measurement(f"certificates({settings})", measure, _CERTIFICATE_ATTRIBUTES)


@cache
def gradient_steps(bracket: float = 1.0, published: bool = False) -> Measurement:
    """The smallest single gradient steps that flip test points: `perturbations.gradient_steps`.

    Means are over the test points that are classified correctly and flipped by a step within the
    bracket; the others are counted. With `published` they are over all test points and of the eta
    that the paper's published code finds, `perturbations.GradientSteps.published_eta`, for which
    the bracket has to reach |eta| = 5. Wang et al. (2022), Section 5.1.
    """

    def measure(params: Params, test: Dataset, start: Params) -> dict[str, Array]:
        x, y = test
        count = jnp.sum(y != 0)
        found = perturbations.gradient_steps(params, x, bracket)
        needing = found.needs_step(y)
        flipped = needing & (found.status == perturbations.StepStatus.FLIPPED)
        norm = jnp.linalg.norm(x, axis=1)
        counted, eta, size = flipped, found.eta, found.size
        if published:
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

    name = f"gradient_steps(bracket={bracket:g}{', published' if published else ''})"
    return Measurement(name, measure, _STEP_ATTRIBUTES, ("test", "start"))


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
