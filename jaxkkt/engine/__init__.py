"""Runs -> buckets -> lanes in streams -> rows: mixed shapes, more runs than lanes, resume."""

from jaxkkt.engine.driver import Plan, landed, load_network, load_networks, plan_sweep, sweep
from jaxkkt.engine.machine.devices import NoDevice, require_platform
from jaxkkt.engine.programs.draws import draw, held_out
from jaxkkt.engine.programs.training import forget
from jaxkkt.engine.running.interrupts import Stopped, listening
from jaxkkt.engine.running.workers import Workers, end_with_parent
from jaxkkt.engine.tables.results import NOT_RUN
from jaxkkt.engine.tables.stored import read_rows, read_store
from jaxkkt.engine.tables.summaries import Summary, combinations, summarize

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
    "load_networks",
    "plan_sweep",
    "read_rows",
    "read_store",
    "require_platform",
    "summarize",
    "sweep",
]
