"""One soak from the first look at the server to the last."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import aiohttp
import psutil

from twp_sglang.benchmarking.request_client import open_session
from twp_sglang.soaking import aftermath
from twp_sglang.soaking.attendance import Attendance
from twp_sglang.soaking.capacity import TooSlow, measure
from twp_sglang.soaking.client import Target, send
from twp_sglang.soaking.processes import ProcessWatch, launcher_at
from twp_sglang.soaking.record import Record
from twp_sglang.soaking.server_view import Load, ServerGone, ServerView
from twp_sglang.soaking.settings import SoakSettings
from twp_sglang.soaking.traffic import APIS, Act, Api, acts
from twp_sglang.soaking.wire import request_id

_IDLE_GRACE_S = 15.0
"""A server that is idle for so long and still owes an answer has lost the request."""


class SoakError(Exception):
    """The soak could not be run; says nothing of the server's invariants."""


class Soak:
    """One soak; ``record`` fills while it runs.

    Attributes:
        record: what was seen.
        watch: the server's processes, where they can be seen.
        rate_rps: requests per second that counted as load 1.
        seconds: from the first request to the last end.
    """

    def __init__(self, settings: SoakSettings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.record = Record()
        self.watch: ProcessWatch | None = None
        self.rate_rps = 0.0
        self.seconds = 0.0
        self._say = say
        self._outstanding: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, Act] = {}
        self._start_s = time.monotonic()

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    async def run(self) -> None:
        """Load, drain, last look.

        Raises:
            SoakError: the server is not there, or answers nothing.
        """
        settings = self.settings
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        async with open_session() as session:
            try:
                await self._run(session, headers)
            except ServerGone as error:
                raise SoakError(f"{settings.url}: {error}") from None

    async def _run(self, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        settings, record = self.settings, self.record
        view = ServerView(session, settings.url, headers)
        facts = await view.facts(settings.vocabulary)
        record.twp_expected = bool((await view.twp()).states)
        apis: tuple[Api, ...] = APIS if facts.text else APIS[:1]
        target = Target(session, settings.url, headers, facts, secrets.token_hex(4))
        try:
            # Measured even where the rate is given: it warms everything up, so that the
            # first look at memory and handles counts no lazy set-up.
            carried = await measure(target, settings, apis)
        except TooSlow as error:
            raise SoakError(str(error)) from None
        self.rate_rps = settings.rate_rps or carried
        self._say(f"load 1 is {self.rate_rps:.1f} requests/s")
        await asyncio.sleep(settings.settle_s)
        await view.flush()
        record.before = await view.load()
        self._start_s = time.monotonic()
        handles = self._open_watch()

        attendance = Attendance(
            view, record, settings, self.watch, self._now_s, lambda: list(self._under_way)
        )
        await attendance.begin()
        try:
            await self._send_all(target, apis)
        finally:
            await attendance.end()
        await self._drain(attendance)
        self.seconds = self._now_s()

        await asyncio.sleep(settings.settle_s)
        try:
            record.after = await self._settled(view)
            record.flushed = await view.flush()
            record.after_flush = await view.load()
            record.twp = await view.twp()
            await aftermath.ask_once_more(target, apis, settings, record)
        except ServerGone as error:
            record.silences.append(f"at the end: {error}")
        if self.watch is not None:
            self.watch.read(self._now_s())
            aftermath.read_processes(
                self.watch, handles, settings.warm_up_share * self.seconds, record
            )
        aftermath.read_traces(record.twp, record)

    def _open_watch(self) -> dict[int, int]:
        """Start to watch the server's processes; the handles of each, by process id."""
        pid = self.settings.launcher_pid or launcher_at(self.settings.url)
        if pid is None:
            return {}
        try:
            self.watch = ProcessWatch(pid)
        except psutil.NoSuchProcess:
            raise SoakError(f"--launcher-pid {pid}: there is no such process") from None
        self.watch.read(self._now_s())
        self.record.watched = True
        return {pid: readings[-1].handles for pid, readings in self.watch.readings.items()}

    async def _send_all(self, target: Target, apis: tuple[Api, ...]) -> None:
        """Every request at its time, whatever became of the others."""
        end_s = self.settings.minutes * 60.0
        for act in acts(self.settings, self.rate_rps, apis):
            if act.at_s >= end_s:
                return
            await asyncio.sleep(max(0.0, act.at_s - self._now_s()))
            self.record.submitted += 1
            task = asyncio.create_task(self._one(target, act))
            self._outstanding.add(task)
            task.add_done_callback(self._outstanding.discard)

    async def _one(self, target: Target, act: Act) -> None:
        begun_s = time.monotonic()
        rid = request_id(act, target.run)
        self._under_way[rid] = act
        outcome = await send(target, act, self.settings.reply_bound_s)
        del self._under_way[rid]
        self.record.ended(outcome, time.monotonic() - begun_s)

    async def _drain(self, attendance: Attendance) -> None:
        """Wait for the last end, or until an idle server shows that none will come."""
        self._say(f"{len(self._outstanding)} requests left to end")
        idle_since_s: float | None = None
        while self._outstanding:
            await asyncio.wait(self._outstanding, timeout=self.settings.poll_s)
            load = await attendance.look()
            if load is None or not load.idle:
                idle_since_s = None
                continue
            idle_since_s = self._now_s() if idle_since_s is None else idle_since_s
            if self._now_s() - idle_since_s > _IDLE_GRACE_S:
                left = list(self._outstanding)
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    async def _settled(self, view: ServerView) -> Load | None:
        """The pools, once those whose clients went have left them; at the latest after the
        grace of an idle server."""
        end_s = self._now_s() + _IDLE_GRACE_S
        while True:
            load = await view.load()
            if load is None or (load.idle and not load.used_tokens) or self._now_s() > end_s:
                return load
            await asyncio.sleep(self.settings.poll_s)
