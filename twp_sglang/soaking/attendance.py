"""What is asked of the server while the load runs: its state, and to flush and change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from twp_sglang.soaking.changes import Changer
from twp_sglang.soaking.onlookers import Onlookers
from twp_sglang.soaking.processes import ProcessWatch
from twp_sglang.soaking.record import Record
from twp_sglang.soaking.server_view import Load, ServerGone, ServerView
from twp_sglang.soaking.settings import SoakSettings

ASK_EVERY_S = 0.5
WATCH_EVERY_S = 3.0
CHANGE_EVERY_S = 7.0
FLUSH_EVERY_S = 11.0
"""Neither divides the other or a burst's period, so that they meet every phase of the load."""


class Attendance:
    """See the module's text. ``clock`` gives seconds from the start of the traffic."""

    def __init__(
        self,
        view: ServerView,
        record: Record,
        settings: SoakSettings,
        watch: ProcessWatch | None,
        clock: Callable[[], float],
        under_way: Callable[[], Sequence[str]],
    ) -> None:
        self._view = view
        self._record = record
        self._settings = settings
        self._watch = watch
        self._clock = clock
        self._onlookers = Onlookers(view, record, under_way, settings.seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._changer: Changer | None = None

    async def begin(self) -> None:
        """Start to ask, and to change the configuration where the server lets one."""
        self._start(self._settings.poll_s, self.look)
        self._start(FLUSH_EVERY_S, self._flush)
        changer = Changer(self._view, self._record, self._settings.seed)
        try:
            if await self._onlookers.discover():
                self._start(ASK_EVERY_S, self._onlookers.ask)
                self._start(WATCH_EVERY_S, self._onlookers.watch)
            if self._settings.changes and await changer.discover():
                self._changer = changer
                self._start(CHANGE_EVERY_S, changer.change)
        except ServerGone as error:
            self._silent(error)

    async def end(self) -> None:
        """Stop asking, and put the configuration back."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        if self._changer is not None:
            try:
                await self._changer.restore()
            except ServerGone as error:
                self._silent(error)

    async def look(self) -> Load | None:
        """Read processes, state, pools and metrics once; the pools where they can be read."""
        record = self._record
        if self._watch is not None:
            self._watch.read(self._clock())
        load = None
        try:
            twp = await self._view.twp()
            record.polls += 1
            record.traces.update(twp.traces)
            if record.twp_expected and (twp.fallbacks or not twp.deciding or not twp.states):
                record.faults.append(
                    f"{self._clock():.0f} s: deciding {twp.deciding}, fallbacks {twp.fallbacks}"
                )
            load = await self._view.load()
            if load is not None:
                record.deepest_queue = max(record.deepest_queue, load.waiting)
            status, _ = await self._view.ask("GET", "/metrics")
            record.metrics_seen |= status == 200
            if status >= 500:
                record.silences.append(f"{self._clock():.0f} s: /metrics answered {status}")
        except ServerGone as error:
            self._silent(error)
        return load

    async def _flush(self) -> None:
        # A busy server refuses; only an idle one flushes.
        self._record.flushes += await self._view.flush()

    def _silent(self, error: ServerGone) -> None:
        self._record.silences.append(f"{self._clock():.0f} s: {error}")

    def _start(self, period_s: float, deed: Callable[[], Awaitable[object]]) -> None:
        async def forever() -> None:
            while True:
                await asyncio.sleep(period_s)
                try:
                    await deed()
                except ServerGone as error:
                    self._silent(error)

        self._tasks.append(asyncio.create_task(forever()))
