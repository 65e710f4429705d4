"""The live view of a calibration: a bar in a terminal, a line per point elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

_LINE_EVERY_S = 5.0


class SweepProgress:
    """Shows which point is measured and what the last ones gave. A context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._next_line_s = 0.0
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("calibrate", total=total, state="")

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def now(self, what: str) -> None:
        """``what`` is being measured."""
        self._bar.update(self._task, state=what)

    def done(self, result: str) -> None:
        """A point is over, with ``result``."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, state=result)
        if not self._console.is_terminal and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            self._console.print(f"{self._done}/{self._total} {result}", highlight=False)
