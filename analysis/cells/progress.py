"""Where the analyses print: the progress bar and the page of tables."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

from analysis.cells.workers import Progress


@contextlib.contextmanager
def bar(
    console: Console, title: str, *, shown: bool = True
) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on ``console`` while the block runs, lines now and then where it is no terminal;
    None where neither is to be ``shown``."""
    if not shown:
        yield None
        return
    if not console.is_terminal:
        yield Lines(console, title)
        return
    with Bar(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(title, total=None, detail="")

        def tell(now: Progress) -> None:
            detail = f"{now.simulated} measured, {now.reused} known"
            progress.update(task, total=now.plans, completed=now.plans_done, detail=detail)

        yield tell


_SHARES = 10
_LINE_EVERY_S = 60.0
"""A search can be long without ending a plan, and whoever waits wants to see that it lives."""


class Lines:
    """Progress as lines: at the start, at every tenth of the plans, and once a minute.

    Args:
        console: where they go.
        title: what is done, at the head of each line.
        clock: seconds.
    """

    def __init__(
        self, console: Console, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._title = title
        self._clock = clock
        self._share = -1
        self._next_s = 0.0
        self._begun_s = clock()

    def __call__(self, now: Progress) -> None:
        """Say ``now`` if it is time to."""
        at_s = self._clock()
        share = _SHARES * now.plans_done // max(now.plans, 1)
        if share == self._share and at_s < self._next_s:
            return
        self._share, self._next_s = share, at_s + _LINE_EVERY_S
        self._console.print(
            f"{self._title}: {now.plans_done} of {now.plans} done; {now.simulated} runs measured, "
            f"{now.reused} known, {now.waiting} to go, {at_s - self._begun_s:.0f} s",
            highlight=False,
            soft_wrap=True,
        )


_PAGE_WIDTH = 140
"""Columns where the output is no terminal, whose width is unknown."""


def page() -> Console:
    """The console for tables on the standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=_PAGE_WIDTH)
