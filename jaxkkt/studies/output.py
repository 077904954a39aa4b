"""Standard output that may lose its reader, as of `jaxkkt store list | head`, or have no letter for
what is printed, as in the locale C."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any


class _Output:
    """A stream, until nobody reads it, with ? for what its encoding lacks."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._read = stream, True

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        told = text.encode(encoding, "replace").decode(encoding)
        self._while_read(lambda: self._stream.write(told))
        return len(text)

    def flush(self) -> None:
        self._while_read(self._stream.flush)

    def _while_read(self, use: Callable[[], object]) -> None:
        if not self._read:
            return
        try:
            use()
        except BrokenPipeError:
            self._read = False
            with suppress(BrokenPipeError):
                self._stream.close()  # or Python tries again, at its end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def whether_read_or_not() -> Iterator[None]:
    """A command goes on where nobody reads what it prints any more: its files are written all the
    same, and its exit code tells how it ended."""
    output: Any = _Output(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        finally:
            output.flush()
