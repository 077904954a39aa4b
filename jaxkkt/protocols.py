"""How a run trains: loss, optimizer, batch size, stopping rule."""

from math import isfinite, log
from typing import Any, Literal

import jax
import optax

from jaxkkt import representations
from jaxkkt.losses import LOSSES
from jaxkkt.numerics.requirements import require_held, require_positive, require_whole
from jaxkkt.representations import Representation
from jaxkkt.specs.base import unchecked
from jaxkkt.specs.fields import Count, Number, described
from jaxkkt.specs.optimizers import Descent, Flow, Optimizer, PaperSchedule, optimizer
from jaxkkt.specs.training import ALL_PARAMETERS, Training

TARGET = log(1e-30)
# Below what any network in a ball of sensible size reaches: the ball ends the run.
NO_TARGET = -1e30
# A positive target below this is a loss that was taken for its logarithm.
LIKE_A_LOSS = 0.1


class Protocol(Training, kw_only=False):
    """How a run trains: loss, optimizer, batch size, stopping rule.

    `optimizer` is a spec, such as `jk.Flow(delta=0.01)` or `jk.optimizer(optax.adam,
    learning_rate=0.01)`, or an optax transformation. Training stops when log L <=
    `target_log_loss` (L sums over the samples) or after `max_steps`. Mini-batches are drawn from a
    new shuffle every epoch when there are more than `batch_size` samples; their stopping rule reads
    the loss summed over the epoch's batches as they went by. `jk.Flow` takes no mini-batches:
    there a `batch_size` below the number of samples is a ValueError of the run, or of
    `jk.train`.

    Of the parameters only those named in `trained` move. With a `ball` training also stops where
    |w_j - start_j| = ball |v_j| for a neuron j: of the step that leaves the ball the part that is
    inside is taken, and not counted. If that is the first step none of it is, and the run, which
    stays at its start, is LEFT_AT_ONCE. With the top layer v_j = +-1/sqrt(k) of `networks.lazy`
    that is the lazy ball of radius C0/sqrt(k) for ball = C0 (Wang et al. 2022, Definition 2.1). It
    asks for a v that is not trained. `representation` is "auto" (the cheapest exact one) or a name
    from `representations`. `expected_steps` is a guess for planning, the optimizer's own where it
    is None.

    `target_log_loss`, `max_steps`, `ball` and the optimizer's numbers may be traced.
    """

    optimizer: Optimizer | optax.GradientTransformation = described(
        "rule that moves the weights", default=Flow()
    )
    loss: Literal["exponential", "logistic"] = described("loss of a sample", default="exponential")
    batch_size: int | None = described("most samples that a step sees", "samples", default=None)
    target_log_loss: Number = described("log loss at which training stops", default=TARGET)
    max_steps: Count = described("steps after which training stops", "steps", default=100_000)
    trained: tuple[str, ...] = described("parameters that move", default=ALL_PARAMETERS)
    ball: Number | None = described(
        "C0: training stops where a neuron leaves the ball of radius C0 |v_j|", default=None
    )
    representation: Representation | Literal["auto"] = described(
        "coordinates of training", default="auto"
    )
    expected_steps: int | None = described("guess", default=None, shown=False, identity=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("begin", "step", "outcomes"):
            if getattr(cls, name) is not getattr(Training, name):
                raise ValueError(
                    f"{cls.__name__} has a method `{name}`, by which no jk.Protocol trains: derive "
                    "it from jk.Training"
                )

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, optax.GradientTransformation):
            object.__setattr__(self, "optimizer", optimizer(self.optimizer))
        super().__post_init__()
        names = () if isinstance(self.trained, str) else tuple(self.trained)
        if not names or not set(names) <= set(ALL_PARAMETERS):
            told = f"trained must name some of {ALL_PARAMETERS}, in a tuple, got {self.trained!r}"
            raise ValueError(told)
        in_order = tuple(name for name in ALL_PARAMETERS if name in names)
        object.__setattr__(self, "trained", in_order)
        if not isinstance(self.optimizer, Optimizer):
            raise ValueError(
                "optimizer must be a spec such as jk.Flow(), an optax transformation, or made of "
                f"one by jk.optimizer(optax.adam, learning_rate=0.01), got {self.optimizer!r}"
            )
        self.rule.transformation()  # raises where settings are missing
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}: choose from {sorted(LOSSES)}")
        if not _traced(self.target_log_loss) and not isfinite(self.target_log_loss):
            raise ValueError(f"target_log_loss must be finite, got {self.target_log_loss}")
        precision = jax.dtypes.canonicalize_dtype(float)
        require_held("target_log_loss", self.target_log_loss, precision)
        if not _traced(self.target_log_loss) and 0 < self.target_log_loss < LIKE_A_LOSS:
            raise ValueError(
                f"target_log_loss is the logarithm of the loss, got {self.target_log_loss:g}: the "
                "loss there is about 1, and nothing is trained yet. For a loss of that give "
                f"log({self.target_log_loss:g}) = {log(self.target_log_loss):.4g}"
            )
        if not _traced(self.max_steps) and self.max_steps < 0:
            raise ValueError(f"max_steps must not be negative, got {self.max_steps}")
        if self.batch_size is not None:
            require_whole("batch_size", self.batch_size, 1)
        if self.representation not in ("auto", "plain", "span", "gram"):
            raise ValueError(
                f"unknown representation {self.representation!r}: choose from 'auto', 'plain', "
                "'span', 'gram'"
            )
        if self.expected_steps is not None:
            require_whole("expected_steps", self.expected_steps, 1)
        if self.ball is not None:
            require_positive(**{"ball (C0)": self.ball})
        if self.ball is not None and "v" in self.trained:
            raise ValueError("a ball has the radius ball * |v_j|: leave v out of `trained`")
        if self.representation == "gram" and not self._gram:
            raise ValueError(
                "the representation 'gram' trains all parameters, in no ball: use 'plain' or 'span'"
            )
        if self.representation in ("span", "gram") and not self.rule.linear:
            raise ValueError(
                f"the representation {self.representation!r} is exact only for linear optimizers: "
                "use 'plain', or declare the optimizer with jaxkkt.optimizers.linear if it is one"
            )

    @property
    def takes_padding(self) -> bool:
        return True

    @property
    def rule(self) -> Optimizer:
        """The optimizer, as a spec."""
        assert isinstance(self.optimizer, Optimizer)
        return self.optimizer

    @property
    def guessed_steps(self) -> int:
        return self.expected_steps or self.rule.steps_guess

    @property
    def limits(self) -> tuple[float, ...]:
        """Numbers that say when training stops, and nothing of how: the larger, the later.

        A run goes on from where one ended that differs in them alone, and whose are no larger;
        where there are none it begins anew.
        """
        # For Adam in mini-batches the program whose runs can go on gives other bits: its runs would
        # depend on what else is in the sweep. What a subclass adds may steer its steps.
        if type(self) is not Protocol or not self.rule.linear:
            return ()
        ball = () if self.ball is None else (float(self.ball),)
        return -float(self.target_log_loss), float(self.max_steps), *ball

    def without_limits(self) -> "Protocol":
        """The same for all that differ in `limits` alone."""
        ball = None if self.ball is None else 1.0
        return unchecked(self, target_log_loss=0.0, max_steps=0, ball=ball, expected_steps=None)

    @property
    def _gram(self) -> bool:
        return self.ball is None and not self.fixed

    @property
    def fixed(self) -> tuple[str, ...]:
        """The parameters that do not move."""
        return tuple(name for name in ALL_PARAMETERS if name not in self.trained)

    def require_batches(self, samples: int) -> None:
        if not self.full_batch(samples) and not self.rule.takes_batches:
            raise ValueError(
                f"the optimizer {self.rule.label!r} takes all {samples} samples at every step, but "
                f"batch_size is {self.batch_size}: leave batch_size out, or train by another "
                "optimizer, such as optimizer='descent'"
            )

    def representation_for(self, samples: int, dim: int) -> Representation:
        full_batch = self.full_batch(samples)
        if self.representation == "gram" and not full_batch:
            raise ValueError(
                f"the representation 'gram' needs full batches, but {samples} samples come in "
                f"batches of {self.batch_size}: use 'plain' or 'span'"
            )
        if self.representation != "auto":
            return self.representation
        gram = full_batch and self._gram
        return representations.cheapest(samples, dim, linear=self.rule.linear, gram=gram)


def flow_protocol(
    loss: Literal["exponential", "logistic"] = "exponential",
    delta: float = 0.01,
    max_steps: int = 100_000,
    **settings: Any,
) -> Protocol:
    """Gradient flow in log-loss time, full batch; the default everywhere."""
    return Protocol(Flow(delta=delta), loss, max_steps=max_steps, **settings)


def paper_protocol(
    loss: Literal["exponential", "logistic"] = "exponential",
    batch_size: int = 5000,
    max_steps: int = 200_000,
    **settings: Any,
) -> Protocol:
    """Vardi et al. (2022), Section 6: batches of 5,000, lr 1e-5 times 1.1 every 100 steps."""
    return Protocol(PaperSchedule(), loss, batch_size, max_steps=max_steps, **settings)


def lazy_flow(
    ball: Number = 10.0, biases: bool = False, delta: Number = 0.02, max_steps: Count = 20_000
) -> Protocol:
    """Gradient flow of the logistic loss in log-loss time, up to the edge of the ball.

    ball: C0, of the w_j alone. Moves w, and b with `biases`, which no ball holds. The flow lowers
    log L at unit pace for as long as there is a gradient, so it comes to the edge of any ball, and
    is a descent's path there: descent itself slows down as the loss fades. `delta`: the step at the
    start, as in `jk.Flow`; the fewer steps lead to the edge of a small ball, the shorter they
    should be.
    """
    return Protocol(
        Flow(delta=delta),
        loss="logistic",
        trained=_trained(biases),
        ball=ball,
        target_log_loss=NO_TARGET,
        max_steps=max_steps,
        expected_steps=_steps_guess(delta, max_steps),
    )


def lazy_sgd(
    ball: Number = 10.0,
    biases: bool = False,
    learning_rate: Number = 0.1,
    batch_size: int = 64,
    max_steps: int = 20_000,
) -> Protocol:
    """Stochastic descent on the mean logistic loss of a batch, up to the edge of the ball.

    Wang et al. (2022), Section 5.1, with a learning rate of 0.1; they state neither the batch size
    nor how long they wait for a network that stays in its ball: that ends as STEP_CAP here, after
    `max_steps`.
    """
    return Protocol(
        Descent(learning_rate=learning_rate, reduction="mean"),
        loss="logistic",
        batch_size=batch_size,
        trained=_trained(biases),
        ball=ball,
        target_log_loss=NO_TARGET,
        max_steps=max_steps,
        expected_steps=max(1, min(max_steps // 2, 3_000)),
    )


def _steps_guess(delta: Number, max_steps: Count) -> int:
    """For planning: what MNIST's networks take up to C0 = 10 to 40, by a step of the flow."""
    guess = 110 if isinstance(delta, jax.Array) else int(min(2 / delta + 10, 20_000))
    return guess if _traced(max_steps) else max(1, min(guess, int(max_steps)))


def _trained(biases: bool) -> tuple[str, ...]:
    return ("w", "b") if biases else ("w",)


PROTOCOLS = {"flow": flow_protocol, "paper": paper_protocol}


def _traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)
