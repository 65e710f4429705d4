"""One look at the schedulers for everybody who watches, and none while nobody does."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

EVERY_S = 0.5
"""Twice a second: a person sees a change at once, and a scheduler is asked as often as it
makes some ten to a hundred steps."""

KEPT_LOOKS = 600
"""Five minutes, so that who opens the page later sees what others have seen."""

BEHIND_LOOKS = 16
"""Looks held for a watcher that reads slowly; then its oldest are dropped."""

_END = None


class Broadcast:
    """See the module's text.

    Args:
        look: asks once; must not raise.
        stopping: whether the server is about to end; streams then end, or it would wait for
            them.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[dict[str, Any]]],
        stopping: Callable[[], bool],
        every_s: float = EVERY_S,
    ) -> None:
        self._look = look
        self._stopping = stopping
        self._every_s = every_s
        self._watchers: set[asyncio.Queue[str | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._past: deque[str] = deque(maxlen=KEPT_LOOKS)
        self.looks = 0
        """How often somebody was asked."""

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    async def watch(self) -> AsyncIterator[str]:
        """Server-sent events: ``past`` once, with the looks of the last minutes, then one
        ``look`` after the other until the watcher leaves or the server stops."""
        mine: asyncio.Queue[str | None] = asyncio.Queue(BEHIND_LOOKS)
        self._watchers.add(mine)
        try:
            yield f"event: past\ndata: [{','.join(self._past)}]\n\n"
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            while (look := await mine.get()) is not _END:
                yield f"event: look\ndata: {look}\n\n"
        finally:
            self._watchers.discard(mine)

    async def _run(self) -> None:
        while self._watchers and not self._stopping():
            text = json.dumps(await self._look(), separators=(",", ":"))
            self.looks += 1
            self._past.append(text)
            for watcher in self._watchers:
                _hand(watcher, text)
            await asyncio.sleep(self._every_s)
        for watcher in self._watchers:
            _hand(watcher, _END)


def _hand(watcher: asyncio.Queue[str | None], text: str | None) -> None:
    if watcher.full():
        watcher.get_nowait()
    watcher.put_nowait(text)
