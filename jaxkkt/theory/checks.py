"""The form in which a bound and a measurement are held against each other."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float


class Check(NamedTuple):
    """A bound with the paper's explicit constants beside what was measured.

    assumed: whether the assumptions that can be checked hold; a bound is promised only there.
    holds: whether the measurement obeys the bound, assumed or not.
    vacuous: whether the bound says nothing, as a lower bound of 0 or less does.
    """

    assumed: Bool[Array, "*lanes"]
    bound: Float[Array, "*lanes"]
    measured: Float[Array, "*lanes"]
    holds: Bool[Array, "*lanes"]
    vacuous: Bool[Array, "*lanes"]
