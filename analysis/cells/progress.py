"""Where the analyses print: the progress bar and the page of tables."""

from __future__ import annotations

import contextlib
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
    """A bar on ``console`` while the block runs; None where there is no terminal."""
    if not shown or not console.is_terminal:
        yield None
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


_PAGE_WIDTH = 140
"""Columns where the output is no terminal, whose width is unknown."""


def page() -> Console:
    """The console for tables on the standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=_PAGE_WIDTH)
