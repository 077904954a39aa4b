"""What streams have done so far, and are doing."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Tally:
    """What a stream has done so far, and is doing, for progress bars and reports."""

    lane_steps: int = 0
    useful_steps: int = 0
    run_seconds: float = 0.0
    # What it is doing; `work` is the expected work done on the runs not yet ended.
    work: float = 0.0
    busy_lanes: int = 0
    lanes: int = 0
    steps_per_second: float = 0.0
    log_losses: tuple[float, ...] = ()

    def useful_share(self) -> float:
        """Share of lane-steps that advanced a run. The rest found that it had ended, or went over
        finished or empty lanes."""
        return self.useful_steps / self.lane_steps if self.lane_steps else 1.0

    def rest(self) -> None:
        """Nothing is running."""
        self.work, self.busy_lanes, self.lanes = 0.0, 0, 0
        self.steps_per_second, self.log_losses = 0.0, ()


def together(tallies: Iterable[Tally]) -> Tally:
    """What several streams have done and are doing."""
    total = Tally()
    for tally in tallies:
        total.lane_steps += tally.lane_steps
        total.useful_steps += tally.useful_steps
        total.run_seconds += tally.run_seconds
        total.work += tally.work
        total.busy_lanes += tally.busy_lanes
        total.lanes += tally.lanes
        total.steps_per_second += tally.steps_per_second
        total.log_losses += tally.log_losses
    return total
