"""jaxkkt: trains hundreds of depth-2 ReLU networks at once and measures what flips them.

The names below are the public interface; the modules hold what each is made of.
"""

from jaxkkt import (
    adversarial,
    datasets,
    engine,
    images,
    kkt,
    lazy,
    losses,
    measurements,
    networks,
    optimizers,
    perturbations,
    plotting,
    protocols,
    representations,
    theory,
    training,
)
from jaxkkt._version import __version__
from jaxkkt.datasets import Dataset
from jaxkkt.engine import Run, grid, landed, plan_sweep, summarize, sweep
from jaxkkt.measurements import Measurement, certificates, flips, gradient_steps
from jaxkkt.networks import Params
from jaxkkt.protocols import Protocol, flow_protocol, paper_protocol
from jaxkkt.training import Status, train, train_through

__all__ = [
    "Dataset",
    "Measurement",
    "Params",
    "Protocol",
    "Run",
    "Status",
    "__version__",
    "adversarial",
    "certificates",
    "datasets",
    "engine",
    "flips",
    "flow_protocol",
    "gradient_steps",
    "grid",
    "images",
    "kkt",
    "landed",
    "lazy",
    "losses",
    "measurements",
    "networks",
    "optimizers",
    "paper_protocol",
    "perturbations",
    "plan_sweep",
    "plotting",
    "protocols",
    "representations",
    "summarize",
    "sweep",
    "theory",
    "train",
    "train_through",
    "training",
]
