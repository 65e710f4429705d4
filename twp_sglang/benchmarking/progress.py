"""The live view of a run: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
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

from twp_sglang.benchmarking.cautions import LATE_MS
from twp_sglang.benchmarking.results import RequestRecord

_LINE_EVERY_S = 5.0
_BAR_EVERY_S = 0.25
_RATE_EVERY_S = 1.0


class RunProgress:
    """Counts what happens in a run and shows it. Use as a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._sent = self._done = self._late = 0
        self._failed: Counter[str] = Counter()
        self._tokens = 0
        self._ttft_ms: list[float] = []
        self._mark = (time.perf_counter(), 0)
        self._rate = 0.0
        self._show_every_s = _BAR_EVERY_S if console.is_terminal else _LINE_EVERY_S
        self._next_show_s = time.perf_counter() + self._show_every_s
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("run", total=total, state="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.update(self._task, completed=self._done, state=self._state())
        self._bar.stop()

    def sent(self, late_ms: float) -> None:
        """A request left, ``late_ms`` after its time."""
        self._sent += 1
        self._late += late_ms > LATE_MS

    def tokens(self, count: int) -> None:
        """``count`` output tokens arrived."""
        self._tokens += count
        now = time.perf_counter()
        if now - self._mark[0] >= _RATE_EVERY_S:
            rate = (self._tokens - self._mark[1]) / (now - self._mark[0])
            self._rate = rate if not self._rate else 0.6 * self._rate + 0.4 * rate
            self._mark = (now, self._tokens)
            self._show()

    def done(self, record: RequestRecord) -> None:
        """A request is over."""
        self._done += 1
        if record.error is not None:
            self._failed[record.error.kind] += 1
        elif record.ttft_ms is not None:
            self._ttft_ms.append(record.ttft_ms)
        self._show()

    def _state(self) -> str:
        parts = [f"in flight {self._sent - self._done}", f"{self._rate:.0f} tok/s"]
        if self._ttft_ms:
            middle = sorted(self._ttft_ms)[len(self._ttft_ms) // 2]
            parts.append(f"TTFT P50 {middle:.0f} ms")
        if self._failed:
            kinds = ", ".join(f"{kind} {n}" for kind, n in self._failed.most_common(2))
            parts.append(f"[red]failed {self._failed.total()} ({kinds})[/red]")
        if self._late:
            parts.append(f"[yellow]{self._late} sent late[/yellow]")
        return " · ".join(parts)

    def _show(self) -> None:
        # The medians cost a sort: now and then is enough, and spares the measuring loop.
        now = time.perf_counter()
        if now < self._next_show_s:
            return
        self._next_show_s = now + self._show_every_s
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._done, state=self._state())
        else:
            self._console.print(f"{self._done}/{self._total} done · {self._state()}")
