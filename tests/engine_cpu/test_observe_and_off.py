"""observe decides nothing and says what it would have done; off registers nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controllers.step_trace import Step
from tests.engine_cpu.calibrating import SHORT, calibrate, medians
from tests.engine_cpu.server import Server, serving
from twp_sglang import audit
from twp_sglang.serving import launch

ATTEMPTS = 3
"""They are measured one after the other: what else the machine does may slow one of them."""


@pytest.fixture(scope="module")
def observed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("observed")
    with serving(
        model,
        folder,
        *("--max-total-tokens", "8192", "--twp-policy", "observe", "--twp-h0-tokens", "200"),
        *("--twp-trace", str(folder / "trace")),
        orderly=False,
    ) as running:
        yield running


def test_observe_leaves_stock_decisions_and_the_audit_finds_violations(observed: Server) -> None:
    server = observed
    source = random.Random(6)
    prompts = [[source.randint(3, 1000) for _ in range(10)] for _ in range(60)]
    assert "observes and decides nothing" in server.log()
    with ThreadPoolExecutor(60) as pool:
        replies = list(pool.map(lambda ids: server.generate(ids, 50), prompts))
    assert [reply.status for reply in replies] == [200] * 60
    server.wait_idle()
    state = server.twp()
    assert (state["policy"], state["deciding"]) == ("observe", False)
    shadow = server.request("/twp/state").body["replicas"][0]["shadow"]
    assert sum(shadow.values()) == state["admitted"]
    assert shadow["would_have_held"] > 20, "stock admits without a window"
    time.sleep(0.5)  # the trace is written behind the engine
    trace = Path(state["trace"])
    steps = [Step.model_validate_json(line) for line in trace.read_text().splitlines()[1:]]
    assert max(step.batch for step in steps) > 30, "stock admits without a window"
    assert any(step.would_admit == 0 for step in steps), "twp would have closed the gate"
    report, _ = audit.audit(trace)
    assert len(report.violations) > 20


def test_streams_and_trace_tell_a_calibration_the_same(observed: Server, tmp_path: Path) -> None:
    """It takes a server whose batch nobody steers: one that observes is measured from its trace
    and from outside."""

    def step_ms(source: str) -> dict[int, float]:
        _, found = calibrate(
            tmp_path / f"{source}.json", *SHORT, "--url", observed.url, "--prefill", "none",
            "--no-png", "--source", source,
        )  # fmt: skip
        assert found.source == source
        return medians(found)

    for _ in range(ATTEMPTS):
        traced, streamed = step_ms("trace"), step_ms("stream")
        if streamed == pytest.approx(traced, rel=0.5):
            break
    assert streamed == pytest.approx(traced, rel=0.5)
    observed.wait_idle()
    assert observed.twp()["fallbacks"] == 0


def test_off_starts_sglang_as_sglang_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang.launch_server
    from sglang.srt.plugins.hook_registry import HookRegistry

    started: list[Any] = []
    monkeypatch.setattr(sglang.launch_server, "run_server", started.append)
    before = {target: list(hooks) for target, hooks in HookRegistry._hooks.items()}
    assert launch.main(["--model-path", "/nowhere", "--twp-policy", "off", "--port", "1234"]) == 0
    assert [(arguments.model_path, arguments.port) for arguments in started] == [("/nowhere", 1234)]
    assert started[0].chunked_prefill_size is None
    assert {target: list(hooks) for target, hooks in HookRegistry._hooks.items()} == before
