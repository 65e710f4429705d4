"""Retracted requests go back in first and exempt from the gate; nobody stalls or is lost."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controllers.step_trace import Step
from tests.engine_cpu.server import SGLANG_SERVE, serving


def test_forced_retraction_under_load(model: Path, tmp_path: Path) -> None:
    source = random.Random(4)
    lengths = [source.randint(20, 60) for _ in range(30)]
    prompts = [[source.randint(3, 1000) for _ in range(20)] for _ in lengths]
    with serving(
        model,
        tmp_path,
        "--max-total-tokens",
        "4096",
        "--twp-policy",
        "twp",
        "--twp-h0-tokens",
        "300",
        "--twp-b0",
        "4",
        "--twp-trace",
        str(tmp_path / "trace"),
        # By way of SGLang's own command, which must find TWP by its flags.
        module=SGLANG_SERVE,
        # SGLang's own switch: retract on every third step as if memory had run out.
        environment={"SGLANG_TEST_RETRACT": "1"},
    ) as server:
        with ThreadPoolExecutor(30) as pool:
            replies = list(
                pool.map(lambda pair: server.generate(*pair), zip(prompts, lengths, strict=True))
            )
        assert [reply.status for reply in replies] == [200] * 30
        assert [len(reply.body["output_ids"]) for reply in replies] == lengths
        server.wait_idle()
        state = server.twp()
        assert (state["deciding"], state["fallbacks"]) == (True, 0)
        log = server.log()
        trace = Path(state["trace"])
    assert "Testing retraction" in log
    admissions = [
        admission
        for line in trace.read_text().splitlines()[1:]
        for admission in Step.model_validate_json(line).admissions
    ]
    assert any(admission.reason == "retracted" for admission in admissions)
