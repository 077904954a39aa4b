"""How close a network is to a KKT point."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from jaxkkt import kkt
from jaxkkt.datasets import Dataset
from jaxkkt.kkt.certificate import as_budget, require_tolerance
from jaxkkt.measurements.base import Measurement
from jaxkkt.networks import Params
from jaxkkt.numerics.requirements import require_whole
from jaxkkt.specs.fields import described

NOT_CERTIFIED = -1


class Certificates(Measurement):
    """How close the network is to a KKT point, by `kkt.certificate`; of arrays the largest entry.

    The point is one of the problem over the parameters that the run's protocol trains.

    `budget` bounds the free slopes at kinks, as there; a network that has more ends STOPPED_EARLY
    unless the gap shows that they do not matter. `summarize` counts no residual or slackness of
    such a network. The defaults are quick, and suffice at their own tolerance: at a larger one, as
    1e-3, give `budget=(k, 2 * m // 3)` for k neurons and m samples, which takes 3 to 11 times as
    long. Networks of more than `largest` samples are not certified, since a certificate of 1,000
    samples takes seconds: their rows are NaN, with status -1.
    """

    kink_tolerance: float = described(
        "pairs of a sample and a neuron this near are kinks", default=1e-6
    )
    budget: tuple[int, int] = described("neurons with kinks, and kinks of each", default=(256, 4))
    largest: int = described("most samples that are certified", "samples", default=256)
    padded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_tolerance(self.kink_tolerance)
        require_whole("largest", self.largest, 1)
        object.__setattr__(self, "budget", as_budget(self.budget))

    @property
    def most_samples(self) -> int:
        return self.largest

    def measure(self, params: Params, data: Dataset, protocol: Any) -> dict[str, Array]:
        if data.y.shape[0] > self.most_samples:
            return {name: jnp.full((), jnp.nan) for name in _CERTIFICATE_ATTRIBUTES} | {
                "certificate_status": jnp.full((), NOT_CERTIFIED, jnp.int32)
            }
        found = kkt.certificate(
            params,
            *data,
            kink_tolerance=self.kink_tolerance,
            budget=self.budget,
            trained=protocol.trained,
        )
        return {
            "residual_one_sided": found.one_sided.residual,
            "residual_clarke": found.clarke.residual,
            "residual_gap": jnp.maximum(found.one_sided.gap, found.clarke.gap),
            "slackness": found.clarke.slackness,
            "kinks": found.kinks,
            "neuron_balance": jnp.max(found.balance),
            "certificate_status": found.status,
        }

    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        return _CERTIFICATE_ATTRIBUTES


# For values of the best multipliers: where the status is not 0 there may be better ones.
_IF_CERTIFIED = {"ancillary_variables": "certificate_status"}
_CERTIFICATE_ATTRIBUTES = {
    "residual_one_sided": {
        "long_name": "stationarity residual |theta - sum_i lambda_i y_i g_i| / |theta| with "
        "relu'(0) = 0",
        "units": "1",
        **_IF_CERTIFIED,
    },
    "residual_clarke": {
        "long_name": "stationarity residual with any slope in [0, 1] at kinks",
        "units": "1",
        **_IF_CERTIFIED,
    },
    "residual_gap": {
        "long_name": "by how much the squared residuals could be smaller, at most",
        "units": "1",
    },
    "slackness": {
        "long_name": "sum_i lambda_i (q_i - 1) / sum_i lambda_i at min margin 1",
        "units": "1",
        **_IF_CERTIFIED,
    },
    "kinks": {"long_name": "pairs of a sample and a neuron at a kink", "units": "pairs"},
    "neuron_balance": {"long_name": "max_j | |w_j|^2 + b_j^2 - v_j^2 | / |theta|^2", "units": "1"},
    "certificate_status": {
        "long_name": "what the certificate is worth",
        "units": "1",
        **kkt.CertificateStatus.flags(not_certified=NOT_CERTIFIED),
    },
}
