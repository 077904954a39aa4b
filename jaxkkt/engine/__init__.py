"""Grid -> buckets -> lanes in streams -> rows: mixed shapes, more runs than lanes, resume."""

from jaxkkt.engine.driver import Plan, landed, plan_sweep, sweep
from jaxkkt.engine.results import Summary, summarize
from jaxkkt.engine.specs import Run, grid

__all__ = ["Plan", "Run", "Summary", "grid", "landed", "plan_sweep", "summarize", "sweep"]
