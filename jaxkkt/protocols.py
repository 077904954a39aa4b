"""How a run trains: loss, optimizer, batch size, stopping rule."""

from dataclasses import dataclass, field
from functools import cache
from math import isfinite, log
from typing import Any, Literal

import optax

from jaxkkt import optimizers, representations
from jaxkkt.losses import LOSSES
from jaxkkt.networks import Params
from jaxkkt.optimizers import LinearTransformation
from jaxkkt.representations import Representation
from jaxkkt.requirements import require_positive

ALL_PARAMETERS = Params._fields

TARGET = log(1e-30)


@dataclass(frozen=True)
class Protocol:
    """How a run trains: loss, optimizer, batch size, stopping rule.

    Training stops when log L <= `target_log_loss` (the sum over the samples) or after `max_steps`.
    Mini-batches are drawn from a new shuffle every epoch when there are more than `batch_size`
    samples; their stopping rule reads the loss summed over the epoch's batches as they went by.
    Of the parameters only those named in `trained` move. With a `ball` training also stops before
    the step that would take |w_j - start_j| beyond ball |v_j| for a neuron j: with the top layer
    v_j = +-1/sqrt(k) of `networks.lazy` that is the lazy ball of radius C0/sqrt(k) for ball = C0
    (Wang et al. 2022, Definition 2.1). It asks for a v that is not trained.
    `representation` is "auto" (the cheapest exact one) or a name from `representations`.
    `expected_steps` is a guess for planning, `name` stands for the protocol in records and must
    tell its settings apart.
    """

    optimizer: optax.GradientTransformation
    loss: Literal["exponential", "logistic"] = "exponential"
    batch_size: int | None = None
    target_log_loss: float = TARGET
    max_steps: int = 100_000
    trained: tuple[str, ...] = ALL_PARAMETERS
    ball: float | None = None
    representation: Representation | Literal["auto"] = "auto"
    expected_steps: int = field(default=1000, compare=False)
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}: choose from {sorted(LOSSES)}")
        if not isfinite(self.target_log_loss):
            raise ValueError(f"target_log_loss must be finite, got {self.target_log_loss}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must not be negative, got {self.max_steps}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.representation not in ("auto", "plain", "span", "gram"):
            raise ValueError(
                f"unknown representation {self.representation!r}: choose from 'auto', 'plain', "
                "'span', 'gram'"
            )
        if not self.trained or not set(self.trained) <= set(ALL_PARAMETERS):
            raise ValueError(f"trained must name some of {ALL_PARAMETERS}, got {self.trained}")
        if self.ball is not None:
            require_positive(**{"ball (C0)": self.ball})
        if self.ball is not None and "v" in self.trained:
            raise ValueError("a ball has the radius ball * |v_j|: leave v out of `trained`")
        if self.representation == "gram" and (self.ball or self.trained != ALL_PARAMETERS):
            raise ValueError(
                "the representation 'gram' trains all parameters, in no ball: use 'plain' or 'span'"
            )
        linear = isinstance(self.optimizer, LinearTransformation)
        if self.representation in ("span", "gram") and not linear:
            raise ValueError(
                f"the representation {self.representation!r} is exact only for linear optimizers: "
                "use 'plain', or declare the optimizer with jaxkkt.optimizers.linear if it is one"
            )

    def full_batch(self, samples: int) -> bool:
        return self.batch_size is None or samples <= self.batch_size

    def representation_for(self, samples: int, dim: int) -> Representation:
        """The representation a run of this size trains in."""
        full_batch = self.full_batch(samples)
        if self.representation == "gram" and not full_batch:
            raise ValueError(
                f"the representation 'gram' needs full batches, but {samples} samples come in "
                f"batches of {self.batch_size}: use 'plain' or 'span'"
            )
        if self.representation != "auto":
            return self.representation
        linear = isinstance(self.optimizer, LinearTransformation)
        gram = full_batch and self.trained == ALL_PARAMETERS and self.ball is None
        return representations.cheapest(samples, dim, linear=linear, gram=gram)


@cache
def flow_protocol(
    loss: Literal["exponential", "logistic"] = "exponential",
    delta: float = 0.01,
    max_steps: int = 100_000,
    **settings: Any,
) -> Protocol:
    """Gradient flow in log-loss time, full batch; the default everywhere."""
    optimizer = optimizers.log_loss_time(delta)
    settings = {"expected_steps": 600, "name": f"flow(delta={delta:g})", **settings}
    return Protocol(optimizer, loss, None, max_steps=max_steps, **settings)


@cache
def paper_protocol(
    loss: Literal["exponential", "logistic"] = "exponential",
    batch_size: int = 5000,
    max_steps: int = 200_000,
    **settings: Any,
) -> Protocol:
    """Vardi et al. (2022), Section 6: batches of 5,000, lr 1e-5 times 1.1 every 100 steps."""
    optimizer = optimizers.paper_schedule()
    settings = {"max_steps": max_steps, "expected_steps": 74_000, "name": "paper", **settings}
    return Protocol(optimizer, loss, batch_size, **settings)


PROTOCOLS = {"flow": flow_protocol, "paper": paper_protocol}
