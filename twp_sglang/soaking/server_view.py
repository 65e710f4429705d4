"""What the server says of itself while it is soaked: its state, its pools, its metrics."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import aiohttp

from twp_sglang.benchmarking.sse import SseDecoder
from twp_sglang.soaking.wire import Facts

_TIMEOUT = aiohttp.ClientTimeout(total=60.0)
"""A scheduler answers between two steps; behind a burst of prompts that is some seconds."""

DEFAULT_CONTEXT_TOKENS = 4096


class ServerGone(Exception):
    """It does not answer."""


class Load(NamedTuple):
    """Sums over the server's replicas."""

    running: int
    waiting: int
    used_tokens: int
    capacity_tokens: int

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not (self.running or self.waiting)


class TwpState(NamedTuple):
    """What the schedulers under TWP say; empty where SGLang serves without it."""

    states: tuple[dict[str, Any], ...] = ()

    @property
    def deciding(self) -> bool:
        """Whether every one of them decides; ``observe`` never does."""
        return all(
            state.get("deciding") or state.get("policy") == "observe" for state in self.states
        )

    @property
    def fallbacks(self) -> int:
        """Faults of TWP so far."""
        return sum(int(state.get("fallbacks") or 0) for state in self.states)

    @property
    def traces(self) -> list[str]:
        """Files of the step traces, where they are written."""
        return [state["trace"] for state in self.states if state.get("trace")]

    @property
    def dropped(self) -> int:
        """Steps that the traces lost."""
        return sum(int(state.get("trace_dropped") or 0) for state in self.states)


class ServerView:
    """Asks one server.

    Raises:
        ServerGone: from every method, where there is no answer in time.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self.settings: dict[str, Any] = {}
        self.has_loads = True

    async def facts(self, vocabulary: int) -> Facts:
        """What decides how it can be asked."""
        info = await self.info()
        self.settings = info
        context = info.get("max_req_input_len") or info.get("context_length")
        return Facts(
            text=not info.get("skip_tokenizer_init"),
            context_tokens=int(context or DEFAULT_CONTEXT_TOKENS),
            vocabulary=vocabulary,
        )

    async def info(self) -> dict[str, Any]:
        """``/server_info``."""
        status, reply = await self.ask("GET", "/server_info")
        if status != 200 or not isinstance(reply, dict):
            raise ServerGone(f"/server_info answered {status}")
        return reply

    async def twp(self) -> TwpState:
        """TWP's part of ``/server_info``."""
        states = (await self.info()).get("internal_states") or []
        return TwpState(tuple(state["twp"] for state in states if state.get("twp")))

    async def load(self) -> Load | None:
        """``/v1/loads``; None where this server has no such thing."""
        status, reply = await self.ask("GET", "/v1/loads")
        if status != 200 or not isinstance(reply, dict):
            self.has_loads = False
            return None
        loads = reply["loads"]
        return Load(
            *(
                sum(int(load[name]) for load in loads)
                for name in (
                    "num_running_reqs",
                    "num_waiting_reqs",
                    "num_used_tokens",
                    "max_total_num_tokens",
                )
            )
        )

    async def flush(self) -> bool:
        """Empty the prefix cache; False where the server refused, as a busy one does."""
        status, _ = await self.ask("POST", "/flush_cache")
        return status == 200

    async def listen(self, path: str, for_s: float) -> int:
        """Take server-sent events for so long, then leave; how many came."""
        decoder, events = SseDecoder(), 0
        try:
            async with self._session.get(self._url + path, headers=self._headers) as response:
                if response.status != 200:
                    raise ServerGone(f"GET {path} answered {response.status}")
                try:
                    async with asyncio.timeout(for_s):
                        async for chunk in response.content.iter_any():
                            events += len(decoder.feed(chunk))
                except TimeoutError:
                    pass
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGone(f"GET {path}: {error or type(error).__name__}") from None
        return events

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and reply, parsed where it is JSON."""
        try:
            async with self._session.request(
                method, self._url + path, json=body, headers=self._headers, timeout=_TIMEOUT
            ) as response:
                if response.content_type == "application/json":
                    return response.status, await response.json()
                return response.status, await response.text()
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise ServerGone(f"{method} {path}: {said}") from None
