"""What is recorded of a trained network. A measurement is a spec, or a function of your own.

An own measurement is a function of what it needs, by name, that returns a number, an array, or a
dictionary of them:

    def dead_share(params, data):
        inside = jk.networks.preactivations(params, data.x) > 0
        return {"dead_share": 1 - inside.any(axis=0).mean()}

`params` are the trained parameters and `data` the samples that the run trained on, both at their
own size. `test` are points of the same source that it did not train on, `start` its parameters
before the first step, `protocol` is how it trained, `truth` what the points were made of, where the
data tell: the means of `jk.data.Clusters`. A measurement with numbers of its own is a
subclass of `Measurement`.
"""

from jaxkkt.measurements.base import (
    NEEDS,
    Function,
    Measurement,
    measured,
    measurement,
    require_axes,
    samples_seen,
)
from jaxkkt.measurements.certificates import NOT_CERTIFIED, Certificates
from jaxkkt.measurements.clusters import ClusterFlips
from jaxkkt.measurements.flips import Flips
from jaxkkt.measurements.ledger import CLAIMS, Ledger, ledger_table
from jaxkkt.measurements.step_flips import StepFlips

__all__ = [
    "CLAIMS",
    "NEEDS",
    "NOT_CERTIFIED",
    "Certificates",
    "ClusterFlips",
    "Flips",
    "Function",
    "Ledger",
    "Measurement",
    "StepFlips",
    "ledger_table",
    "measured",
    "measurement",
    "require_axes",
    "samples_seen",
]
