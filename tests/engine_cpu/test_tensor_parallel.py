"""Two tensor-parallel ranks with clocks that disagree must form the same batches."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine_cpu.server import Server, serving

REQUESTS = 80
CHANGES = 12
"""Changes of the configuration made meanwhile."""
FEWEST_SAMPLES = 25
"""A batch that takes everybody at once needs about as many decode steps as the longest answer has
tokens, 32; how many more there are depends on the machine."""

POLICY_FLAGS = {
    # A given baseline: a learned one would be skewed like the latency, and their ratio not.
    "twp": ("--twp-h0-tokens", "120", "--twp-b0", "4", "--twp-l-min-ms", "8"),
    # Refusing by predicted wait would leave fewer requests to disagree about.
    "slo": ("--twp-itl-slo", "20ms", "--twp-ttft-slo", "1s"),
}


@pytest.mark.parametrize("policy", list(POLICY_FLAGS))
def test_ranks_agree_under_clock_skew(model: Path, tmp_path: Path, policy: str) -> None:
    """SGLang's own rank-consensus checker raises where the ranks' schedules differ."""
    source = random.Random(5)
    lengths = [source.randint(4, 32) for _ in range(REQUESTS)]
    prompts = [
        [source.randint(3, 1000) for _ in range(source.choice([5, 40, 90]))] for _ in lengths
    ]
    with serving(
        model,
        tmp_path,
        "--tp-size",
        "2",
        "--max-total-tokens",
        "4096",
        "--twp-policy",
        policy,
        *POLICY_FLAGS[policy],
        environment={
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
            "TWP_FAULT_INJECTION": "skew=1:0.02",
        },
        orderly=False,
    ) as server:
        assert server.log().count("TWP decides admissions") == 2
        with ThreadPoolExecutor(REQUESTS) as pool:
            answers = pool.map(
                lambda pair: server.generate(*pair), zip(prompts, lengths, strict=True)
            )
            changes = [_change(server, number) for number in range(CHANGES)]
            replies = list(answers)
        assert [reply.status for reply in replies] == [200] * REQUESTS
        assert [len(reply.body["output_ids"]) for reply in replies] == lengths
        state = server.twp()
        assert state["deciding"]
        assert state["fallbacks"] == 0
        assert state["samples"] >= FEWEST_SAMPLES
        assert "consensus" not in _errors(server.log())
        # Each change was in force from the same pass on, on both ranks.
        assert changes == [200] * CHANGES
        passes = re.findall(
            r"TWP configuration changed by .*, in force from pass (\d+) on", server.log()
        )
        assert len(passes) == 2 * CHANGES
        assert sorted(Counter(passes).values()) == [2] * CHANGES
        assert len(set(passes)) == CHANGES, "made in different passes of a busy server"
        assert server.request("/twp/config").body["revision"] == CHANGES


def _change(server: Server, number: int) -> int:
    """Another window, ranking, baseline and objectives while requests come, wait and run."""
    fields = {
        "h0_tokens": 80 + 40 * (number % 3),
        "b0": 4 + number % 2,
        "w_starvation": 0.6 + 0.1 * (number % 2),
        "t_max_steps": 100 + 50 * (number % 3),
        "gamma": round(0.1 + 0.01 * number, 2),
        "itl_slo_ms": 15 + number,
        "ttft_slo_ms": 800 + 100 * number,
        "late_share": round(0.1 + 0.01 * number, 2),
    }
    answer = server.request("/twp/config", fields, 60.0, method="PATCH")
    time.sleep(0.1)
    return answer.status


def _errors(log: str) -> str:
    return "\n".join(line.lower() for line in log.splitlines() if "error" in line.lower())
