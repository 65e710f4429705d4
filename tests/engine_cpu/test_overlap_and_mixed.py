"""The code path of a GPU: overlap scheduling and mixed steps, here on the CPU."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controllers.step_trace import Step
from tests.engine_cpu.server import serving
from twp_sglang import audit

CHUNK_TOKENS = 32


def test_burst_under_overlap_with_mixed_steps(model: Path, tmp_path: Path) -> None:
    source = random.Random(8)
    lengths = [source.randint(5, 50) for _ in range(40)]
    prompts = [
        [source.randint(3, 1000) for _ in range(source.choice([5, 60, 120]))] for _ in lengths
    ]
    with serving(
        model,
        tmp_path,
        "--max-total-tokens",
        "8192",
        "--enable-mixed-chunk",
        "--chunked-prefill-size",
        str(CHUNK_TOKENS),
        "--twp-policy",
        "twp",
        "--twp-h0-tokens",
        "300",
        "--twp-b0",
        "4",
        "--twp-trace",
        str(tmp_path / "trace"),
        environment={"TWP_CPU_REFERENCE_OVERLAP": "1"},
    ) as server:
        with ThreadPoolExecutor(40) as pool:
            replies = list(
                pool.map(lambda pair: server.generate(*pair), zip(prompts, lengths, strict=True))
            )
        assert [reply.status for reply in replies] == [200] * 40
        assert [len(reply.body["output_ids"]) for reply in replies] == lengths
        server.wait_idle()
        state = server.twp()
        assert (state["deciding"], state["fallbacks"]) == (True, 0)
        time.sleep(0.5)
        trace = Path(state["trace"])
    lines = trace.read_text().splitlines()
    assert '"overlap":true' in lines[0]
    steps = [Step.model_validate_json(line) for line in lines[1:]]
    mixed = [step for step in steps if step.kind == "mixed"]
    assert mixed, "no chunk rode in a decode step"
    # Decoding rows do not eat the chunk: with more of them than C it would stand still.
    assert max(step.prefill_tokens for step in mixed) == CHUNK_TOKENS
    assert max(step.batch for step in mixed) > 4
    # Two steps lie between a measurement and the decision that knows it (one in flight).
    lags = [step.step - step.sample_step for step in steps if step.sample_step is not None]
    assert min(lags) == 2
    assert sum(len(step.finished) for step in steps) >= 40
    report, _ = audit.audit(trace)
    assert report.violations == []
