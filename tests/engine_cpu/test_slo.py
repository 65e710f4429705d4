"""Policy slo in SGLang, on the paper's machine emulated: rows, lengths, time, prefix hits."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import pytest

from analysis.judging import decisions
from analysis.judging.engine import admissions_of
from controllers.trace_reader import read_step_trace
from tests.engine_cpu.server import Server, serving, text_model
from twp_sglang.audit import audit

pytestmark = pytest.mark.engine

ITL_SLO_MS = 60.0
"""On this machine a step of B rows takes 43 + 4.3 (B - 8) ms: 11 rows at most, where 14 come."""

WAVES = decisions.waves(2, 14, "30-200", "24@.5,64@.5", seed=4)

LONG_PROMPT = [3 + number % 211 for number in range(700)]
"""Sent twice, one after the other."""


class Served(NamedTuple):
    """What a server did, which is stopped."""

    state: dict[str, Any]
    """After the waves."""
    explained: dict[str, Any]
    """The long prompt, when it came again and ran."""
    found_by_sglang: int
    """Tokens of it that SGLang took from its prefix cache then."""
    trace_dir: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("slo")
    with serving(
        text_model(folder / "model"),
        folder,
        *("--twp-policy", "slo", "--twp-itl-slo-ms", str(ITL_SLO_MS)),
        *("--twp-emulate", "paper-v100", "--twp-trace", str(folder / "steps")),
        *("--twp-l-min-ms", "43", "--twp-b0", "8", "--twp-alpha-ms", "4.3"),
        *("--twp-prefill-ms-per-token", "0", "--skip-server-warmup"),
        environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"},
    ) as server:

        async def send() -> None:
            async with aiohttp.ClientSession() as session:
                for index, wave in enumerate(WAVES):
                    await decisions.send(session, server.url, wave, index * len(wave))

        asyncio.run(send())
        state = server.twp()
        assert server.generate(LONG_PROMPT, 4).status == 200
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(server.generate, LONG_PROMPT, 64, rid="again")
            explained = _explained(server, "again")
            found = again.result().body["meta_info"]["cached_tokens"]
    return Served(state, explained, found, folder / "steps")


def _explained(server: Server, rid: str) -> dict[str, Any]:
    """What the server says of a request that has just been sent."""
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        reply = server.request(f"/twp/explain/{rid}")
        if reply.status == 200 and reply.body["state"] == "running":
            said: dict[str, Any] = reply.body
            return said
        time.sleep(0.02)
    raise AssertionError(f"nothing was said of {rid}")


def test_it_holds_its_objective_and_serves_everybody(served: Served) -> None:
    state = served.state
    assert state["policy"] == "slo"
    assert state["deciding"] is True
    assert state["fallbacks"] == 0
    assert state["model_source"] == "calibrated"
    assert state["answers_seen"] == state["admitted"] == 28
    assert state["late"] == 0
    trace = read_step_trace(served.trace_dir)
    rows = trace["batch"].max()
    assert 8 < rows <= 11
    timed = trace["duration_ms"][np.isfinite(trace["duration_ms"])]
    assert np.median(timed) < ITL_SLO_MS
    found, about = audit(served.trace_dir)
    assert about["policy"] == "slo"
    assert found.violations == []


def test_a_prompt_that_came_before_is_known_not_to_be_computed(served: Served) -> None:
    first, again = (admission for _, admission in admissions_of(served.trace_dir)[28:])
    assert first["prompt_tokens"] == again["prompt_tokens"] == len(LONG_PROMPT)
    assert first["cached_tokens"] < 10
    assert again["cached_tokens"] == served.found_by_sglang == len(LONG_PROMPT) - 1
    assert served.explained["cached_tokens"] == served.found_by_sglang
