"""jaxkkt: trains hundreds of depth-2 ReLU networks at once and measures what flips them.

The names below are the public interface; the modules hold what each is made of.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxkkt.process import loaded
from jaxkkt.process.garbage import importing

# The collector would look at all that these make again and again, a sixth of the time.
with importing():
    from jaxkkt import (
        adversarial,
        datasets,
        engine,
        images,
        kkt,
        lazy,
        losses,
        measurements,
        mixtures,
        networks,
        optimizers,
        perturbations,
        protocols,
        representations,
        runs,
        spans,
        specs,
        theory,
        training,
    )
    from jaxkkt._version import __version__
    from jaxkkt.datasets import Dataset
    from jaxkkt.engine import (
        Workers,
        combinations,
        draw,
        held_out,
        landed,
        load_network,
        load_networks,
        plan_sweep,
        read_rows,
        read_store,
        summarize,
        sweep,
    )
    from jaxkkt.measurements import (
        Certificates,
        ClusterFlips,
        Flips,
        Ledger,
        Measurement,
        StepFlips,
    )
    from jaxkkt.networks import Params
    from jaxkkt.process.caching import keep_programs
    from jaxkkt.protocols import Protocol, flow_protocol, paper_protocol
    from jaxkkt.runs.grid import grid
    from jaxkkt.runs.run import Curve, Run
    from jaxkkt.single import Result, train, train_through
    from jaxkkt.specs import data, initializations
    from jaxkkt.specs.base import Spec
    from jaxkkt.specs.fields import Count, Number
    from jaxkkt.specs.networks import ReLU2
    from jaxkkt.specs.optimizers import Descent, Flow, Optimizer, PaperSchedule, optimizer
    from jaxkkt.specs.reading import from_json
    from jaxkkt.specs.training import Training
    from jaxkkt.training import Status

    loaded.remember()

if TYPE_CHECKING:
    from jaxkkt import plotting

__all__ = [
    "Certificates",
    "ClusterFlips",
    "Count",
    "Curve",
    "Dataset",
    "Descent",
    "Flips",
    "Flow",
    "Ledger",
    "Measurement",
    "Number",
    "Optimizer",
    "PaperSchedule",
    "Params",
    "Protocol",
    "ReLU2",
    "Result",
    "Run",
    "Spec",
    "Status",
    "StepFlips",
    "Training",
    "Workers",
    "__version__",
    "adversarial",
    "combinations",
    "data",
    "datasets",
    "draw",
    "engine",
    "flow_protocol",
    "from_json",
    "grid",
    "held_out",
    "images",
    "initializations",
    "keep_programs",
    "kkt",
    "landed",
    "lazy",
    "load_network",
    "load_networks",
    "losses",
    "measurements",
    "mixtures",
    "networks",
    "optimizer",
    "optimizers",
    "paper_protocol",
    "perturbations",
    "plan_sweep",
    "plotting",
    "protocols",
    "read_rows",
    "read_store",
    "representations",
    "runs",
    "spans",
    "specs",
    "summarize",
    "sweep",
    "theory",
    "train",
    "train_through",
    "training",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """`plotting` once it is asked for: matplotlib would take a sixth of the import, and neither a
    sweep nor its workers need it."""
    if name == "plotting":
        with importing():
            return import_module("jaxkkt.plotting")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
