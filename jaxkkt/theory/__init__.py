"""Theorems and lemmas as functions: what they assume, what they bound, and what was measured."""

from jaxkkt.theory import wang
from jaxkkt.theory.checks import Check

__all__ = ["Check", "wang"]
