"""A progress bar over a sweep: runs done, lanes busy, steps per second, losses, time left."""

from typing import Any

from tqdm.auto import tqdm

from jaxkkt.engine.lanes import Tally


class Meter:
    """Shows a `Tally` as a bar over the expected work; silent when `enabled` is False."""

    def __init__(self, runs: int, work: float, done: float = 0.0, enabled: bool = True) -> None:
        self._runs = runs
        self._bar: Any = tqdm(
            total=1.0,
            initial=done / work,
            disable=not enabled,
            bar_format="{l_bar}{bar:20}| {elapsed}<{remaining}{postfix}",
            dynamic_ncols=True,
        )

    def show(self, tally: Tally, done_runs: int, share: float) -> None:
        low, high = tally.log_losses
        self._bar.set_postfix_str(
            f"{done_runs}/{self._runs} runs, {tally.busy_lanes}/{tally.lanes} lanes, "
            f"{tally.steps_per_second:,.0f} steps/s, log L {low:.1f} to {high:.1f}",
            refresh=False,
        )
        self._bar.update(min(share, 1.0) - self._bar.n)

    def close(self) -> None:
        self._bar.close()
