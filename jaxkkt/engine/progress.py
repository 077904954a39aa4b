"""A progress bar over a sweep: runs done, lanes busy, steps per second, losses, time left."""

from typing import Any

from tqdm.auto import tqdm

from jaxkkt.engine.lanes import Tally


class Meter:
    """Shows a `Tally` as a bar over the expected work; silent when `enabled` is False."""

    def __init__(self, runs: int, work: float, done_work: float = 0, enabled: bool = True) -> None:
        self._runs, self._work = runs, work
        self._bar: Any = tqdm(
            total=1.0,
            initial=done_work / work,
            disable=not enabled,
            bar_format="{l_bar}{bar:20}| {elapsed}<{remaining}{postfix}",
            dynamic_ncols=True,
            smoothing=0.01,  # the time left goes by the last minute or so
        )

    def show(self, tally: Tally, done_runs: int, done_work: float) -> None:
        """`done_work` is that of the runs done, of the `work` of all."""
        text = f"{done_runs}/{self._runs} runs"
        if tally.log_losses:
            text += (
                f", {tally.busy_lanes}/{tally.lanes} lanes, {tally.steps_per_second:,.0f} steps/s, "
                f"log L {min(tally.log_losses):.1f} to {max(tally.log_losses):.1f}"
            )
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(min((done_work + tally.work) / self._work, 1.0) - self._bar.n)

    def close(self) -> None:
        self._bar.close()
