"""Faults: TWP's own take nobody's request with them, and a missing hook stops the start."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine_cpu.server import SGLANG_SERVE, run_to_end, serving


def test_a_fault_in_a_burst_falls_back_to_stock(model: Path, tmp_path: Path) -> None:
    source = random.Random(3)
    lengths = [source.randint(10, 60) for _ in range(40)]
    with serving(
        model,
        tmp_path,
        "--max-total-tokens",
        "4096",
        "--twp-policy",
        "twp",
        "--twp-h0-tokens",
        "100",
        environment={"TWP_FAULT_INJECTION": "fail-at-pass=60"},
        orderly=False,
    ) as server:
        assert server.twp()["deciding"]
        with ThreadPoolExecutor(40) as pool:
            replies = list(
                pool.map(
                    lambda n: server.generate([source.randint(3, 1000) for _ in range(20)], n),
                    lengths,
                )
            )
        assert [reply.status for reply in replies] == [200] * 40
        assert [len(reply.body["output_ids"]) for reply in replies] == lengths
        state = server.twp()
        assert not state["deciding"]
        assert state["fallbacks"] == 1
        assert state["fallback_reason"] == "begin_pass"
        log = server.log()
        assert log.count("TWP failed in begin_pass") == 1
        assert log.count("fault injected in pass 60") == 1
        # And it goes on serving as stock.
        assert server.generate([5, 6, 7], 5).status == 200


@pytest.mark.parametrize("module", ["twp_sglang.launch_server", SGLANG_SERVE])
def test_a_hook_that_is_not_in_force_stops_the_start(module: str, model: Path) -> None:
    target = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
    ended = run_to_end(
        model,
        "--max-total-tokens",
        "2048",
        "--twp-policy",
        "twp",
        module=module,
        environment={"TWP_FAULT_INJECTION": f"missing-hook={target}"},
    )
    assert ended.returncode not in (0, None)
    assert "TWP does not decide in this scheduler process" in ended.stderr
    assert target in ended.stderr
    assert "Uvicorn running" not in ended.stdout + ended.stderr
