"""Where a study's log goes: standard error, and a file."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("jaxkkt")


class _Plain(logging.Formatter):
    """Messages as they are; errors begin with what they are."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.ERROR else f"error: {text}"


@contextmanager
def logged() -> Iterator[Callable[[bool, Path | None], None]]:
    """The package's log on standard error. What it yields is to be told whether to be quiet, and
    the file that is to have the log, too."""
    before = log.level
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(_Plain())
    handlers: list[logging.Handler] = []

    def add(handler: logging.Handler) -> None:
        handlers.append(handler)
        log.addHandler(handler)

    def tell(quiet: bool, file: Path | None) -> None:
        console.setLevel(logging.WARNING if quiet else logging.INFO)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            in_file = logging.FileHandler(file)
            in_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            add(in_file)

    add(console)
    log.setLevel(logging.INFO)
    try:
        yield tell
    finally:
        log.setLevel(before)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
