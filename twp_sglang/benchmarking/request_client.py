"""Sends one request, reads its stream, and records when each token came."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import aiohttp

from twp_sglang.benchmarking.results import Failure, RequestRecord
from twp_sglang.benchmarking.settings import Api
from twp_sglang.benchmarking.sse import SseDecoder
from twp_sglang.benchmarking.wire_formats import PATHS, StreamUpdate, payload, read_event
from twp_sglang.benchmarking.workload import PlannedRequest

_MESSAGE_CHARS = 300
_DRAIN_S = 1.0
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how requests are sent."""

    url: str
    api: Api
    model: str | None
    headers: dict[str, str]
    temperature: float
    ignore_eos: bool
    timeout_s: float


class StreamFailure(Exception):
    """The stream told of a failure; carries its record."""

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(kind=kind, message=message[:_MESSAGE_CHARS], status=status)


@dataclass(slots=True)
class Tally:
    """What one stream has brought so far. Times in seconds on the client's clock."""

    token_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    source: Literal["server", "chunks"] | None = None
    closing_total: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    def take(self, update: StreamUpdate, now_s: float) -> int:
        """Take one event seen at ``now_s``; return how many tokens it brought."""
        self.finish_reason = update.finish_reason or self.finish_reason
        if update.prompt_tokens is not None:
            self.prompt_tokens = update.prompt_tokens
        if update.cached_tokens is not None:
            self.cached_tokens = update.cached_tokens
        if update.closing_total is not None:
            self.closing_total = update.closing_total
        new = 0
        if update.total_tokens is not None:
            self.source = "server"
            # A count can stand still (text held back) but tokens seen stay seen.
            new = max(update.total_tokens - len(self.token_s), 0)
        elif update.has_text and self.source != "server":
            self.source = "chunks"
            new = 1
        if new:
            self.token_s.extend([now_s] * new)
            self.chunk_tokens.append(new)
        return new

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer; the server's closing total where it counted no others."""
        return max(len(self.token_s), self.closing_total or 0)


def open_session() -> aiohttp.ClientSession:
    """A session fit for measuring.

    One connection per request: a reused one may have been closed by the server while it
    idled (uvicorn does so after 5 s), which would be counted as the server's failure.
    No limit on connections, or arrivals would wait for replies. No proxy from the
    environment, no total timeout (each request carries its own).
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**20,
        trust_env=False,
    )


async def measure(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    planned: PlannedRequest,
    start_s: float,
    on_tokens: Callable[[int], None] = lambda count: None,
    on_text: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> RequestRecord:
    """Send one request and return its record; a failure is recorded, never raised.

    Cancelling the task ends the request with kind ``interrupted`` and returns what had
    come by then.

    Args:
        session: from :func:`open_session`.
        endpoint: where to.
        planned: what to send.
        start_s: when the run started, on ``clock``.
        on_tokens: called with the count of each chunk's tokens.
        on_text: called with each chunk's text, after its time was taken (OpenAI formats).
        clock: seconds, monotonic.
    """
    body = payload(
        endpoint.api,
        planned.prompt,
        output_tokens=planned.shape.output_tokens,
        model=endpoint.model,
        temperature=endpoint.temperature,
        ignore_eos=endpoint.ignore_eos,
    )
    tally = Tally()
    failure: Failure | None = None
    sent_s = clock()
    try:
        async with asyncio.timeout(endpoint.timeout_s):
            await _stream(session, endpoint, body, tally, on_tokens, on_text, clock)
        if not tally.token_s:
            failure = Failure(kind="empty", message="the answer ended without a token")
    except StreamFailure as error:
        failure = error.failure
    except TimeoutError:
        failure = Failure(
            kind="timeout",
            message=f"not finished after {endpoint.timeout_s:g} s, "
            f"{len(tally.token_s)} tokens received",
        )
    except asyncio.CancelledError:
        failure = Failure(kind="interrupted", message="the run was interrupted")
    except aiohttp.ClientConnectorError as error:
        failure = _failure("connect", error)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
        failure = _failure("disconnect", error)
    except aiohttp.ClientError as error:
        failure = _failure("bad_stream", error)
    except Exception as error:  # a fault here must show as a number, not end the run
        failure = _failure("client", error)

    offsets_ms = [(seen_s - sent_s) * 1000.0 for seen_s in tally.token_s]
    gaps = (later - earlier for earlier, later in itertools.pairwise(offsets_ms))
    return RequestRecord(
        index=planned.index,
        arrival_s=round(planned.shape.arrival_s, 6),
        lateness_ms=round((sent_s - start_s - planned.shape.arrival_s) * 1000.0, 3),
        ttft_ms=round(offsets_ms[0], 3) if offsets_ms else None,
        itl_ms=tuple(round(gap, 4) for gap in gaps),
        chunk_tokens=tuple(tally.chunk_tokens),
        e2e_ms=round(offsets_ms[-1], 3) if offsets_ms else None,
        planned_input_tokens=planned.shape.input_tokens,
        planned_output_tokens=planned.shape.output_tokens,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        output_tokens=tally.output_tokens,
        count_source=tally.source,
        finish_reason=tally.finish_reason,
        error=failure,
        ended_s=round(clock() - start_s, 6),
    )


async def _stream(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    body: bytes,
    tally: Tally,
    on_tokens: Callable[[int], None],
    on_text: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    decoder = SseDecoder()
    async with session.post(
        endpoint.url + PATHS[endpoint.api],
        data=body,
        headers={"Content-Type": "application/json", **endpoint.headers},
    ) as response:
        if response.status >= 400:
            text = (await response.text(errors="replace")).strip()
            raise StreamFailure(
                f"http_{response.status}", text or str(response.reason), response.status
            )
        if response.content_type != "text/event-stream":
            raise StreamFailure(
                "bad_stream",
                f"answered {response.status} with {response.content_type}, not an event stream",
                response.status,
            )
        async for chunk in response.content.iter_any():
            now_s = clock()
            for data in decoder.feed(chunk):
                if data.strip() == _DONE:
                    # Reading to the end lets the server close in order; an abrupt close
                    # here could look to it like a disconnect.
                    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                        async with asyncio.timeout(_DRAIN_S):
                            await response.content.read()
                    return
                try:
                    update = read_event(endpoint.api, data)
                except ValueError as error:
                    raise StreamFailure("bad_stream", str(error)) from None
                new = tally.take(update, now_s)
                if new:
                    on_tokens(new)
                if update.text:
                    on_text(update.text)
                if update.error is not None:
                    kind = "abort" if update.finish_reason == "abort" else "stream"
                    status = "error" if update.status is None else str(update.status)
                    raise StreamFailure(f"{kind}_{status}", update.error, update.status)
    if tally.finish_reason is None:
        raise StreamFailure("truncated", f"stream ended after {len(tally.token_s)} tokens")


def _failure(kind: str, error: BaseException) -> Failure:
    text = str(error) or type(error).__name__
    return Failure(kind=kind, message=text[:_MESSAGE_CHARS])
