"""Overload on the engine: every request ends in a reply, refusals say when to come again.

128 requests run at once and 96 may wait; the window is wide.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import aiohttp
import pytest

from patches.http.serving_state import RETRY_SHUTDOWN_S
from patches.metrics.definitions import METRICS
from tests.engine_cpu.server import Server, until
from tests.engine_cpu.text_server.one_server import POOL_TOKENS, QUEUED

pytestmark = pytest.mark.engine

PROMPT = "hello " * 5

GENERATE = {"text": PROMPT, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
COMPLETION = {"model": "m", "prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 40,
    "ignore_eos": True,
}
APIS = (("/generate", GENERATE), ("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT))


class Got(NamedTuple):
    """One answer."""

    path: str
    stream: bool
    status: int
    headers: dict[str, str]
    text: str


async def ask(
    session: aiohttp.ClientSession, server: Server, path: str, body: Any, **headers: str
) -> Got:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(server.url + path, json=body, headers=named) as answer:
        text = await answer.text()
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Got(path, bool(body.get("stream")), answer.status, found, text)


def once(server: Server, path: str, body: Any, **headers: str) -> Got:
    async def go() -> Got:
        async with aiohttp.ClientSession() as session:
            return await ask(session, server, path, body, **headers)

    return asyncio.run(go())


def burst(server: Server, count: int, a_second: float) -> list[Got]:
    """``count`` requests over all APIs, with and without streaming, ``a_second`` of them."""

    async def go() -> list[Got]:
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            tasks = []
            for number in range(count):
                path, body = APIS[number % len(APIS)]
                stream = number // len(APIS) % 2 == 1
                call = ask(session, server, path, {**body, "stream": stream})
                tasks.append(asyncio.create_task(call))
                await asyncio.sleep(1 / a_second)
            return await asyncio.gather(*tasks)

    return asyncio.run(go())


def test_field_case_10_everybody_gets_a_terminal_reply(server: Server) -> None:
    """128 running, 96 queued, and more coming than that."""
    before = sum(server.twp()["admissions"].values())
    got = burst(server, 450, a_second=1500)
    statuses = Counter(one.status for one in got)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= QUEUED
    refused = {(one.path, one.stream) for one in got if one.status == 429}
    assert refused == {(path, stream) for path, _ in APIS for stream in (False, True)}
    for one in got:
        if one.status == 429:
            assert 1 <= int(one.headers["retry-after"]) <= 60
            error = json.loads(one.text)
            assert error["object"] == "error"
            assert error["code"] == 429
            assert "requests wait already" in error["message"]
        elif one.stream:
            assert one.text.endswith("data: [DONE]\n\n")
        else:
            assert json.loads(one.text)
    server.wait_idle()
    state = server.twp()
    assert state["refusals"] == {"queue-requests": statuses[429]}
    assert sum(state["admissions"].values()) - before == statuses[200]
    assert (state["deciding"], state["fallbacks"]) == (True, 0)
    assert once(server, "/generate", GENERATE).status == 200, "open again"


def test_field_case_9_what_can_never_fit_is_refused_at_once(server: Server) -> None:
    limit = {"max_new_tokens": POOL_TOKENS, "ignore_eos": True}
    for stream in (False, True):
        body = {"text": PROMPT, "sampling_params": limit, "stream": stream}
        got = once(server, "/generate", body)
        assert got.status == 400
        assert "KV tokens" in got.text
        assert "retry-after" not in got.headers
    got = once(server, "/v1/completions", {**COMPLETION, "max_tokens": POOL_TOKENS})
    assert got.status == 400
    assert "at most" in json.loads(got.text)["message"]
    # Neither does a prompt: SGLang's own words, without a place in the queue.
    long = once(server, "/generate", {**GENERATE, "text": "x" * (POOL_TOKENS + 1)})
    assert long.status == 400
    assert server.twp()["refusals"]["never-fits"] == 3


def test_headers_are_terms_or_a_400_that_names_them(server: Server) -> None:
    good = {"X_TWP_Client": "team-a", "X_TWP_ITL_SLO": "50ms", "X_TWP_TTFT_SLO": "2s"}
    for path, body in APIS:
        assert once(server, path, body, **good).status == 200
        bad = once(server, path, body, X_TWP_ITL_SLO="50")
        assert bad.status == 400
        assert "X-TWP-ITL-SLO: '50'" in json.loads(bad.text)["message"]
    listed = {**GENERATE, "text": [PROMPT, PROMPT]}
    assert len(json.loads(once(server, "/generate", listed, **good).text)) == 2
    wrong = {"custom_params": {"twp": {"client": 5}}, "max_new_tokens": 2}
    got = once(server, "/generate", {"text": PROMPT, "sampling_params": wrong, "stream": True})
    assert got.status == 400
    assert "custom_params.twp.client" in got.text


def test_metrics_tell_what_happened(server: Server) -> None:
    got = once(server, "/v1/completions", {**COMPLETION, "stream": True})
    assert got.status == 200
    deadline = time.monotonic() + 20
    while True:
        lines = server.request("/metrics").body.splitlines()
        values = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(("twp_", "sglang:inter_token_latency_seconds_count"))
        }
        names = {name.partition("{")[0] for name in values}
        settled = any("twp_batch_requests" in name and values[name] == 0 for name in values)
        if settled or time.monotonic() > deadline:
            break
        time.sleep(0.3)
    expected = {
        metric.exported + ("_count" if metric.kind == "histogram" else "")
        for metric in METRICS
        # Policy slo, forced retraction, or a trace would bring the others.
        if metric.name
        not in (
            *("twp_itl_objective_seconds", "twp_ttft_objective_seconds", "twp_late_requests"),
            "twp_itl_objective_reachable",
            *("twp_step_predicted_seconds", "twp_step_residual_ratio", "twp_step_margin_ratio"),
            *("twp_model_gain_ratio", "twp_retraction_gap_seconds", "twp_baseline_step_seconds"),
        )
    }
    assert expected <= names
    state = server.twp()
    assert (
        _value(values, "twp_refusals_total", 'reason="queue-requests"')
        == (state["refusals"]["queue-requests"])
    )
    assert _value(values, "twp_deciding") == 1
    assert _value(values, "twp_policy_info", 'policy="twp"') == 1
    # The export is at most a quarter of a second behind.
    assert _value(values, "twp_answers_total") > QUEUED
    # The client's side of the same latency, by SGLang.
    assert _value(values, "sglang:inter_token_latency_seconds_count") > 0
    assert _value(values, "twp_scheduler_itl_seconds_count") > 0


def test_a_first_token_that_would_come_too_late_is_refused_by_its_predicted_time(
    server: Server,
) -> None:
    """The prediction is the engine's own: tokens in the queue over the rate that it measured."""
    limit_ms = 50.0
    changed = server.request("/twp/config", {"refuse_ttft_ms": limit_ms}, method="PATCH")
    assert changed.status == 200, changed
    before = Counter(server.twp()["refusals"])
    got = burst(server, 300, a_second=1500)
    refused = [one for one in got if one.status == 429]
    assert {one.status for one in got} == {200, 429}
    assert {one.stream for one in refused} == {False, True}
    for one in refused:
        assert 1 <= int(one.headers["retry-after"]) <= 60
        found = re.search(
            r"the first token would come in about ([\d,.]+) s, and it queues for at most 0\.05 s "
            r"\(refuse_ttft_ms\); ([\d,]+) prompt tokens are before this request's ([\d,]+), at "
            r"([\d,]+) per second",
            json.loads(one.text)["message"],
        )
        assert found is not None, one.text
        seconds, ahead, own, rate = (float(word.replace(",", "")) for word in found.groups())
        assert seconds == pytest.approx((ahead + own) / rate, abs=0.1)
    server.wait_idle()
    assert Counter(server.twp()["refusals"]) - before == {"ttft": len(refused)}
    assert once(server, "/generate", GENERATE).status == 200, "nobody waits: nobody is refused"
    unset = server.request("/twp/config", {"refuse_ttft_ms": None}, method="PATCH")
    assert unset.status == 200, unset


def test_while_it_drains_new_ones_are_told_to_come_again(server: Server) -> None:
    """Last in the folder: SIGTERM ends the server, after those who are being served."""
    limit = {"max_new_tokens": 600, "ignore_eos": True}
    body = {"text": PROMPT, "sampling_params": limit, "stream": True}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(once, server, "/generate", body)
        until(lambda: server.twp()["batch"] > 0)
        server.process.terminate()
        turned_away: list[Got] = []

        def told() -> bool:
            turned_away.append(once(server, "/generate", {**GENERATE, "stream": True}))
            return turned_away[-1].status == 503

        until(told)
        for path, asked in APIS:
            assert once(server, path, asked).status == 503
        served = running.result()
    assert int(turned_away[-1].headers["retry-after"]) == RETRY_SHUTDOWN_S
    assert "shutting down" in json.loads(turned_away[-1].text)["message"]
    assert served.status == 200
    assert served.text.endswith("data: [DONE]\n\n")
    events = [line for line in served.text.splitlines() if line.startswith("data: {")]
    assert json.loads(events[-1].removeprefix("data: "))["meta_info"]["completion_tokens"] == 600
    assert server.process.wait(60) == 0


def _value(values: dict[str, float], name: str, label: str = "") -> float:
    found = [value for key, value in values.items() if key.startswith(name + "{") and label in key]
    assert len(found) == 1, (name, label, found)
    return found[0]
