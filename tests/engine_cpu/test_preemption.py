"""Priorities with preemption in SGLang: a high one takes a place, equals never swap."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine_cpu.server import Server, serving
from twp_sglang.audit import audit

pytestmark = pytest.mark.engine

SLOTS = 4
LONG = 400


def ask(server: Server, start: int, tokens: int, priority: int) -> tuple[float, list[int]]:
    """Seconds that the answer took, and its tokens."""
    begin = time.monotonic()
    body = {
        "input_ids": list(range(start, start + 20)),
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0},
        "priority": priority,
    }
    reply = server.request("/generate", body)
    assert reply.status == 200, reply.body
    return time.monotonic() - begin, reply.body["output_ids"]


def four_long_then(server: Server, priority: int) -> tuple[float, list[float], dict[str, Any]]:
    with ThreadPoolExecutor(SLOTS + 1) as pool:
        long = [pool.submit(ask, server, 100 + 50 * n, LONG, 0) for n in range(SLOTS)]
        end = time.monotonic() + 30
        while server.twp()["batch"] < SLOTS and time.monotonic() < end:
            time.sleep(0.05)
        took, tokens = pool.submit(ask, server, 500, 5, priority).result()
        answers = [answer.result() for answer in long]
    assert len(tokens) == 5
    assert [len(answer) for _, answer in answers] == [LONG] * SLOTS
    server.wait_idle()
    return took, [seconds for seconds, _ in answers], server.twp()


def test_a_high_priority_takes_a_place_and_equals_never_swap(model: Path, tmp_path: Path) -> None:
    with serving(
        model,
        tmp_path,
        *("--enable-priority-scheduling", "--max-running-requests", str(SLOTS)),
        *("--default-priority-value", "0"),
        *("--twp-policy", "slo", "--twp-itl-slo-ms", "5000"),
        *("--twp-trace", str(tmp_path / "steps")),
    ) as server:
        took, others, state = four_long_then(server, priority=0)
        assert state["preemptions"] == 0
        assert took > 0.5 * min(others), "an equal waits for a slot"
        took, others, state = four_long_then(server, priority=20)
        assert state["preemptions"] == 1
        assert took < 0.5 * min(others)
        assert (state["deciding"], state["fallbacks"]) == (True, 0)
    found, _ = audit(tmp_path / "steps")
    assert found.violations == []
