"""Grid -> buckets -> lanes -> rows: mixed shapes, more runs than lanes, resume."""

from jaxkkt.engine.driver import Plan, plan_sweep, sweep
from jaxkkt.engine.results import Summary, summarize
from jaxkkt.engine.specs import Run, grid

__all__ = ["Plan", "Run", "Summary", "grid", "plan_sweep", "summarize", "sweep"]
