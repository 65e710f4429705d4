"""One look at the schedulers for everybody who watches, and none while nobody does."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from twp_sglang.one_line import one_line

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""Twice a second: a person sees a change at once, and a scheduler is asked as often as it
makes some ten to a hundred steps."""

KEPT_LOOKS = 600
"""Five minutes, so that who opens the page later sees what others have seen."""

BEHIND_LOOKS = 16
"""Looks held for a watcher that reads slowly; then its oldest are dropped."""

WATCHERS_MAX = 64
"""Watchers at once: a room full of people with a page each. Every one takes a connection and is
sent some MB of past looks when it comes, so whoever reaches the port must not open thousands."""

FULL = f"{WATCHERS_MAX} watchers are connected, which is the most: close a page, or try later"

_END = None


class Broadcast:
    """See the module's text.

    Args:
        look: asks once. Where it raises, watchers are told and the next look is tried.
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
        self._failed = ""
        """Why the last look failed; empty where it did not."""
        self.looks = 0
        """How often somebody was asked."""

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    @property
    def full(self) -> bool:
        """Whether nobody more is taken."""
        return len(self._watchers) >= WATCHERS_MAX

    async def watch(self) -> AsyncIterator[str]:
        """Server-sent events: ``past`` once, with the looks of the last minutes, then one
        ``look`` after the other until the watcher leaves or the server stops. One ``error``
        and the end where too many watch already."""
        if self.full:
            yield f"event: error\ndata: {json.dumps({'error': FULL})}\n\n"
            return
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
        try:
            while self._watchers and not self._stopping():
                text = await self._text()
                self.looks += 1
                self._past.append(text)
                for watcher in self._watchers:
                    _hand(watcher, text)
                await asyncio.sleep(self._every_s)
        finally:
            # However it ends: a stream that nobody feeds any more would hang.
            for watcher in self._watchers:
                _hand(watcher, _END)

    async def _text(self) -> str:
        try:
            text = json.dumps(await self._look(), separators=(",", ":"))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if reason != self._failed:  # twice a second would drown the log
                logger.exception("TWP cannot look at its schedulers for the page")
            self._failed = reason
            said = f"the server failed to look ({one_line(reason)}); its log has the traceback"
            return json.dumps({"time_unix_s": round(time.time(), 3), "error": said})
        self._failed = ""
        return text


def _hand(watcher: asyncio.Queue[str | None], text: str | None) -> None:
    if watcher.full():
        watcher.get_nowait()
    watcher.put_nowait(text)
