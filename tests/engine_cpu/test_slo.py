"""Policy slo in SGLang, on the paper's machine emulated: rows, lengths, time, no fallback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from analysis.judging import decisions
from controllers.trace_reader import read_step_trace
from tests.engine_cpu.server import serving, text_model
from twp_sglang.audit import audit

pytestmark = pytest.mark.engine

ITL_SLO_MS = 60.0
"""On this machine a step of B rows takes 43 + 4.3 (B - 8) ms: 11 rows at most, where 14 come."""

WAVES = decisions.waves(2, 14, "30-200", "24@.5,64@.5", seed=4)


def test_it_holds_its_objective_and_serves_everybody(tmp_path: Path) -> None:
    with serving(
        text_model(tmp_path / "model"),
        tmp_path,
        *("--twp-policy", "slo", "--twp-itl-slo-ms", str(ITL_SLO_MS)),
        *("--twp-emulate", "paper-v100", "--twp-trace", str(tmp_path / "steps")),
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
    assert state["policy"] == "slo"
    assert state["deciding"] is True
    assert state["fallbacks"] == 0
    assert state["model_source"] == "calibrated"
    assert state["answers_seen"] == state["admitted"] == 28
    assert state["late"] == 0
    trace = read_step_trace(tmp_path / "steps")
    rows = trace["batch"].max()
    assert 8 < rows <= 11
    timed = trace["duration_ms"][np.isfinite(trace["duration_ms"])]
    assert np.median(timed) < ITL_SLO_MS
    found, about = audit(tmp_path / "steps")
    assert about["policy"] == "slo"
    assert found.violations == []
