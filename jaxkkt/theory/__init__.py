"""Theorems and lemmas as functions: what they assume, what they bound, and what was measured."""

from jaxkkt.theory import constructions, frei, vardi, wang
from jaxkkt.theory.checks import (
    Assumption,
    Check,
    above,
    at_least,
    at_most,
    below,
    of_some,
    share_at_least,
    share_at_most,
    table,
    tightest,
)
from jaxkkt.theory.points import KKTPoint, kkt_point

__all__ = [
    "Assumption",
    "Check",
    "KKTPoint",
    "above",
    "at_least",
    "at_most",
    "below",
    "constructions",
    "frei",
    "kkt_point",
    "of_some",
    "share_at_least",
    "share_at_most",
    "table",
    "tightest",
    "vardi",
    "wang",
]
