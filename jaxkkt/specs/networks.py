"""The kind of network that is trained, and its size."""

from jaxkkt.numerics.requirements import require_whole
from jaxkkt.specs.base import Spec
from jaxkkt.specs.fields import described


class Network(Spec):
    """A kind of network. `ReLU2` is the one there is so far."""


class ReLU2(Network):
    """N(x) = sum_j v_j relu(w_j . x + b_j) with `width` neurons: `networks.Params`."""

    width: int = described("width k", "neurons", default=1000)

    def __post_init__(self) -> None:
        require_whole("width", self.width, 1)
        object.__setattr__(self, "width", int(self.width))

    @property
    def label(self) -> str:
        return "relu2"
