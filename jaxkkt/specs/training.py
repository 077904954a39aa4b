"""What a way to train is: what every `Training` says of itself, and how another one is made."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxtyping import Array, PRNGKeyArray

from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params
from jaxkkt.numerics.keys import key_of
from jaxkkt.representations import Representation
from jaxkkt.specs.base import Spec

ALL_PARAMETERS = Params._fields


class Training(Spec):
    """How a run trains. `Protocol` is one kind, `adversarial.AdversarialProtocol` another.

    A subclass brings `begin` and `step`, and numbers as fields. They are compiled, and a run's
    numbers are traced in them. What goes from step to step is a NamedTuple, a pytree of arrays
    whose shapes stay, with at least the fields `params`; `status`, a `Status`, which is RUNNING
    until training is to stop; `steps`, how many were made; and `log_loss`, the natural logarithm of
    the loss summed over the samples.
    """

    def begin(self, params: Params, data: Dataset, key: PRNGKeyArray) -> Any:
        """What training starts from. `key` is the run's own, for what it draws."""
        raise ValueError(f"{type(self).__name__} has no method `begin(self, params, data, key)`")

    def step(self, state: Any, data: Dataset) -> Any:
        """What comes after it, by one step. What it returns after a run has ended is dropped."""
        raise ValueError(f"{type(self).__name__} has no method `step(self, state, data)`")

    def outcomes(self, state: Any) -> dict[str, Array]:
        """What a table tells of a run's end beside its status, steps and log loss: numbers by
        name, described by `attributes`."""
        return {}

    def attributes(self) -> dict[str, dict[str, str]]:
        """`long_name` and `units` of what `outcomes` returns, and of `steps` and `log_loss` where
        they are not updates made and the logarithm of the loss summed over the samples."""
        return {}

    def computations(
        self, *, samples: int = 3, width: int = 3, d: int = 2
    ) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        if type(self).begin is Training.begin:
            yield from super().computations()

        def array(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))

        def begin(spec: Any, params: Params, data: Dataset, key: PRNGKeyArray) -> Any:
            return spec.begin(params, data, key)

        def step(spec: Any, state: Any, data: Dataset) -> Any:
            return spec.step(state, data), spec.outcomes(state)

        params = Params(array(width, d), array(width), array(width))
        data = Dataset(array(samples, d), array(samples))
        first = self, params, data, key_of(0)
        yield begin, first
        yield step, (self, jax.eval_shape(begin, *first), data)

    def to_json(self, digests: bool = False, **sizes: Any) -> dict[str, Any]:
        found = super().to_json(digests, **sizes)
        if "computes" in found:  # what measurements and buckets ask of it is part of that
            found |= {"trained": list(self.trained), "takes_padding": self.takes_padding}
        return found

    @property
    def guessed_steps(self) -> int:
        """How many steps a run takes, roughly: sweeps plan by it."""
        return 1000

    @property
    def gradients_per_step(self) -> int:
        """How many gradients over all samples a step takes, roughly."""
        return 1

    @property
    def takes_padding(self) -> bool:
        """Whether zero samples, neurons and coordinates change nothing: runs of unlike sizes may
        then share a program."""
        return False

    @property
    def trained(self) -> tuple[str, ...]:
        """The parameters that move."""
        return ALL_PARAMETERS

    @property
    def batch_size(self) -> int | None:
        """The most samples that a step sees; all where it is None."""
        return None

    def full_batch(self, samples: int) -> bool:
        """Whether a step sees all of so many samples."""
        return self.batch_size is None or samples <= self.batch_size

    def representation_for(self, samples: int, dim: int) -> Representation:
        """The representation that a run of this size trains in."""
        return "plain"

    def require_batches(self, samples: int) -> None:
        """Raises ValueError where so many samples cannot be trained on by the batch size."""
