"""Runs -> buckets -> lanes in streams -> rows: mixed shapes, more runs than lanes, resume."""

from jaxkkt.engine.devices import NoDevice, require_platform
from jaxkkt.engine.draws import draw, held_out
from jaxkkt.engine.driver import Plan, landed, load_network, plan_sweep, sweep
from jaxkkt.engine.interrupts import Stopped, listening
from jaxkkt.engine.programs import forget
from jaxkkt.engine.results import NOT_RUN
from jaxkkt.engine.stored import read_rows, read_store
from jaxkkt.engine.summaries import Summary, combinations, summarize
from jaxkkt.engine.workers import Workers, end_with_parent

__all__ = [
    "NOT_RUN",
    "NoDevice",
    "Plan",
    "Stopped",
    "Summary",
    "Workers",
    "combinations",
    "draw",
    "end_with_parent",
    "forget",
    "held_out",
    "landed",
    "listening",
    "load_network",
    "plan_sweep",
    "read_rows",
    "read_store",
    "require_platform",
    "summarize",
    "sweep",
]
