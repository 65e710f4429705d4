"""The client against a real HTTP server with known gaps and faults."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from bench_peer import Behaviour, Peer, open_stream, serving, sglang_stream, sse

from twp_sglang.benchmarking.replay import replay
from twp_sglang.benchmarking.request_client import Endpoint, measure, open_session
from twp_sglang.benchmarking.results import RequestRecord
from twp_sglang.benchmarking.settings import Api
from twp_sglang.benchmarking.sse import SseDecoder
from twp_sglang.benchmarking.workload import PlannedRequest, Shape

SLACK_MS = 150.0
"""A shared two-core machine may wake a sleeper this late; the gaps below differ by more."""


def endpoint(url: str, api: Api = "sglang", timeout_s: float = 10.0) -> Endpoint:
    return Endpoint(url, api, "peer-model", {}, 0.0, True, timeout_s)


def planned(index: int = 0, arrival_s: float = 0.0, output_tokens: int = 4) -> PlannedRequest:
    prompt = np.arange(5, dtype=np.int32)
    return PlannedRequest(index, Shape(arrival_s, output_tokens, 5), prompt)


async def one(behaviour: Behaviour, api: Api = "sglang", timeout_s: float = 10.0) -> RequestRecord:
    async with serving(Peer([behaviour])) as peer, open_session() as session:
        target = endpoint(peer.url, api, timeout_s)
        records = await replay(
            [planned()], lambda p, start_s: measure(session, target, p, start_s), asyncio.Event()
        )
    return records[0]


def near(value: float | None, wanted: float) -> bool:
    return value is not None and wanted - 3.0 <= value <= wanted + SLACK_MS


async def test_sglang_times_every_token() -> None:
    record = await one(sglang_stream([0.2, 0.05, 0.3, 0.05]))
    assert record.error is None
    assert near(record.ttft_ms, 200.0)
    assert near(record.itl_ms[1], 300.0)
    assert max(record.itl_ms) == record.itl_ms[1]
    assert near(record.e2e_ms, 600.0)
    assert (record.output_tokens, record.chunk_tokens) == (4, (1, 1, 1, 1))
    assert (record.prompt_tokens, record.cached_tokens) == (5, 0)
    assert (record.count_source, record.finish_reason) == ("server", "length")


async def test_tokens_of_one_chunk_came_together() -> None:
    record = await one(sglang_stream([0.01, 0.2], carries=[1, 3]))
    assert record.chunk_tokens == (1, 3)
    assert near(record.itl_ms[0], 200.0)
    assert record.itl_ms[1:] == (0.0, 0.0)
    assert record.output_tokens == 4


def openai_stream(chat: bool, running_usage: bool, closing_usage: bool = True) -> Behaviour:
    """Three text chunks, 100 ms apart, that stand for five tokens."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        if chat:
            first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
            await response.write(sse(first))
        total = 0
        for place, carried in enumerate((1, 3, 1)):
            await asyncio.sleep(0.1)
            total += carried
            choice: dict[str, Any] = {"delta": {"content": "x"}} if chat else {"text": "x"}
            choice["finish_reason"] = "stop" if place == 2 else None
            event: dict[str, Any] = {"choices": [choice]}
            if running_usage:
                event["usage"] = {"prompt_tokens": 9, "completion_tokens": total}
            await response.write(sse(event))
        if closing_usage:
            usage = {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 2},
            }
            await response.write(sse({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    return behave


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_openai_with_running_counts(api: Api) -> None:
    record = await one(openai_stream(api == "openai-chat", running_usage=True), api)
    assert record.error is None
    assert near(record.ttft_ms, 100.0)
    assert record.chunk_tokens == (1, 3, 1)
    assert near(record.itl_ms[0], 100.0)
    assert record.itl_ms[1:3] == (0.0, 0.0)
    assert (record.count_source, record.output_tokens) == ("server", 5)
    assert (record.prompt_tokens, record.cached_tokens) == (9, 2)


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_openai_without_counts_says_so_and_invents_nothing(api: Api) -> None:
    record = await one(openai_stream(api == "openai-chat", running_usage=False), api)
    assert record.count_source == "chunks"
    assert len(record.itl_ms) == 2
    assert record.output_tokens == 5  # by the closing total
    assert record.token_times().tokens == 5


async def test_openai_without_any_usage() -> None:
    record = await one(openai_stream(False, running_usage=False, closing_usage=False), "openai")
    assert (record.output_tokens, record.count_source) == (3, "chunks")


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=429, text="too many requests")


async def crash(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    raise RuntimeError("boom")


async def lose_connection(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(sse({"meta_info": {"completion_tokens": 1}}))
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


async def hang_at_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def hang_in_mid_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(sse({"meta_info": {"completion_tokens": 2}}))
    await asyncio.sleep(30)
    return response


async def stop_early(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(sse({"meta_info": {"completion_tokens": 1}}))
    return response


async def error_event(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(sse({"error": {"message": "input too long", "code": 400}}))
    await response.write(b"data: [DONE]\n\n")
    return response


async def abort(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    reason = {"type": "abort", "message": "queue is full", "status_code": 503}
    await response.write(sse({"meta_info": {"completion_tokens": 0, "finish_reason": reason}}))
    return response


async def no_json(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(b"data: <html>\n\n")
    return response


async def not_a_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"text": "hello"})


async def other_format(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(sse({"choices": [{"text": "x"}]}))
    return response


async def no_token(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(b"data: [DONE]\n\n")
    return response


@pytest.mark.parametrize(
    ("behaviour", "kind", "status", "says", "tokens"),
    [
        (answer, "http_429", 429, "too many requests", 0),
        (crash, "http_500", 500, "", 0),
        (lose_connection, "disconnect", None, "", 1),
        (hang_at_once, "timeout", None, "0 tokens received", 0),
        (hang_in_mid_stream, "timeout", None, "2 tokens received", 2),
        (stop_early, "truncated", None, "after 1 tokens", 1),
        (error_event, "stream_400", 400, "input too long", 0),
        (abort, "abort_503", 503, "queue is full", 0),
        (no_json, "bad_stream", None, "", 0),
        (not_a_stream, "bad_stream", 200, "not an event stream", 0),
        (other_format, "bad_stream", None, "no meta_info", 0),
        (no_token, "empty", None, "without a token", 0),
    ],
)
async def test_every_failure_is_recorded_by_kind(
    behaviour: Behaviour, kind: str, status: int | None, says: str, tokens: int
) -> None:
    record = await one(behaviour, timeout_s=0.5)
    assert record.error is not None
    assert (record.error.kind, record.error.status) == (kind, status)
    assert says in record.error.message
    assert record.output_tokens == tokens
    assert not record.token_times().completed


async def test_nobody_listens() -> None:
    async with open_session() as session:
        record = await measure(session, endpoint("http://127.0.0.1:9"), planned(), 0.0)
    assert record.error is not None
    assert record.error.kind == "connect"


async def test_arrivals_do_not_wait_for_replies() -> None:
    plan = [planned(i, arrival_s=0.1 * i) for i in range(5)]
    async with serving(Peer([sglang_stream([1.0])])) as peer, open_session() as session:
        target = endpoint(peer.url)
        records = await replay(
            plan, lambda p, start_s: measure(session, target, p, start_s), asyncio.Event()
        )
        gaps = np.diff(peer.received_s)
    assert [r.index for r in records] == list(range(5))
    assert gaps.max() < 0.3  # closed loop would be a second
    assert all(0.0 <= r.lateness_ms < SLACK_MS for r in records)


async def test_cap_holds_requests_back_and_shows_as_lateness() -> None:
    plan = [planned(i) for i in range(3)]
    async with serving(Peer([sglang_stream([0.2])])) as peer, open_session() as session:
        target = endpoint(peer.url)
        records = await replay(
            plan,
            lambda p, start_s: measure(session, target, p, start_s),
            asyncio.Event(),
            concurrency_cap=1,
        )
    assert near(records[2].lateness_ms, 400.0)
    assert near(records[2].ttft_ms, 200.0)  # the wait in the client is not in it


async def test_stopping_keeps_what_came_and_sends_no_more() -> None:
    plan = [planned(0), planned(1), planned(2, arrival_s=60.0)]
    stop = asyncio.Event()
    behaviours = [sglang_stream([0.01]), hang_in_mid_stream]
    async with serving(Peer(behaviours)) as peer, open_session() as session:
        target = endpoint(peer.url)
        asyncio.get_running_loop().call_later(0.4, stop.set)
        async with asyncio.timeout(5):
            records = await replay(
                plan, lambda p, start_s: measure(session, target, p, start_s), stop
            )
    assert len(records) == 2
    assert sorted(str(r.error and r.error.kind) for r in records) == ["None", "interrupted"]
    assert next(r for r in records if r.error).output_tokens == 2


async def test_stopping_while_requests_wait_for_a_slot() -> None:
    stop = asyncio.Event()
    async with serving(Peer([hang_at_once])) as peer, open_session() as session:
        target = endpoint(peer.url)
        asyncio.get_running_loop().call_later(0.3, stop.set)
        async with asyncio.timeout(5):
            records = await replay(
                [planned(i) for i in range(4)],
                lambda p, start_s: measure(session, target, p, start_s),
                stop,
                concurrency_cap=1,
            )
    assert len(records) == 1  # the others never left


def test_sse_is_indifferent_to_how_the_network_cuts_it() -> None:
    stream = (
        b": comment\r\ndata: {1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\n"
        b"data: \xc3\xa9\n\ndata: unfinished"
    )
    for size in (1, 2, 7, len(stream)):
        decoder = SseDecoder()
        events = [
            event
            for start in range(0, len(stream), size)
            for event in decoder.feed(stream[start : start + size])
        ]
        assert events == [b"{1}", b"two\nlines", "é".encode()]
