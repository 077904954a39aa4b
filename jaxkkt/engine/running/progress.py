"""Progress of a sweep: a bar in a terminal or notebook, elsewhere lines of logging."""

import logging
import sys
from time import perf_counter
from typing import Any

from tqdm.auto import tqdm

from jaxkkt.engine.running.tally import Tally

log = logging.getLogger("jaxkkt")

SECONDS_BETWEEN_LINES = 60.0
# A notebook that is saved as it runs keeps each of them.
SECONDS_BETWEEN_BARS = 1.0
# A notebook's widget draws the bar by itself.
BAR = "{bar}" if any(kind.__module__ == "tqdm.notebook" for kind in tqdm.__mro__) else "{bar:20}"


class Meter:
    """Shows a `Tally` over the expected work.

    `enabled` shows a bar, None only where standard error is watched, in a terminal or notebook;
    elsewhere lines of logging stand in for it, one a minute. False shows nothing.
    """

    def __init__(
        self, runs: int, work: float, done_work: float = 0, enabled: bool | None = None
    ) -> None:
        self._runs, self._work = runs, work
        there = sys.stderr is not None
        self._on_bar = there and (_is_watched(sys.stderr) if enabled is None else enabled)
        self._in_log = enabled is None and not self._on_bar
        self._last = perf_counter()
        self._bar: Any = tqdm(
            total=1.0,
            initial=done_work / work,
            disable=not self._on_bar,
            bar_format="{l_bar}" + BAR + "| {elapsed}<{remaining}{postfix}",
            dynamic_ncols=True,
            mininterval=SECONDS_BETWEEN_BARS,
            smoothing=0.01,  # the time left goes by the last minute or so
        )

    def show(self, tally: Tally, done_runs: int, done_work: float, stopping: bool = False) -> None:
        """`done_work` is that of the runs done, of the `work` of all."""
        text = f"{done_runs}/{self._runs} runs"
        if tally.log_losses:
            text += (
                f", {tally.busy_lanes}/{tally.lanes} lanes, {tally.steps_per_second:,.0f} steps/s, "
                f"log L {min(tally.log_losses):.1f} to {max(tally.log_losses):.1f}"
            )
        elif done_runs < self._runs and not stopping:
            text += ", compiling"
        if self._in_log and perf_counter() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = perf_counter()
            log.info(text)
        self._bar.set_postfix_str(text, refresh=False)
        # To the very end, rounding or not: a notebook's bar that stops before it is red.
        unfinished = done_runs < self._runs
        share = min((done_work + tally.work) / self._work, 1.0) if unfinished else 1.0
        self._bar.update(share - self._bar.n)

    def say(self, text: str) -> None:
        """A line at the end: beside the bar, or in the log."""
        if self._on_bar:
            print(text, file=sys.stderr)
        else:
            log.info(text)

    def close(self) -> None:
        self._bar.close()


def _is_watched(stream: Any) -> bool:
    """Whether it goes to a terminal or, by Jupyter's kernel, to a notebook, which calls itself no
    terminal."""
    return stream.isatty() or type(stream).__module__.split(".")[0] == "ipykernel"
