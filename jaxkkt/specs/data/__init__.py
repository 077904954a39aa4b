"""Where the points and labels of a run come from: distributions, images, own arrays and functions.

Own data are `Arrays`. An own distribution is a function (key, samples, dim) -> x, y, or, where it
has parameters, a subclass of `Distribution` with a method `draw`.
"""

from jaxkkt.specs.data.arrays import Arrays
from jaxkkt.specs.data.base import HELD_OUT, Data, Sized, checked
from jaxkkt.specs.data.clusters import Clusters
from jaxkkt.specs.data.distributions import (
    Distribution,
    Function,
    Gaussian,
    Span,
    Sphere,
    UnitSphere,
)
from jaxkkt.specs.data.images import Digits, Mnist

__all__ = [
    "HELD_OUT",
    "Arrays",
    "Clusters",
    "Data",
    "Digits",
    "Distribution",
    "Function",
    "Gaussian",
    "Mnist",
    "Sized",
    "Span",
    "Sphere",
    "UnitSphere",
    "checked",
]
