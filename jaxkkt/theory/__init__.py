"""Theorems and lemmas as functions: what they assume, what they bound, and what was measured."""

from jaxkkt.theory import frei, vardi, wang
from jaxkkt.theory.checks import Assumption, Check, table
from jaxkkt.theory.points import KKTPoint, kkt_point

__all__ = ["Assumption", "Check", "KKTPoint", "frei", "kkt_point", "table", "vardi", "wang"]
