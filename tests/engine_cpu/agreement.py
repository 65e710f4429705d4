"""Whether the simulator and SGLang's own scheduler take the same steps, one by one.

A batch of requests arrives at once and the window is held fixed, so that nothing depends on
how long steps take; then every step of the server's trace must be the simulator's: kind,
rows, prompt tokens, KV held, queue, load, who was admitted with what the gate saw, who
finished, and for how many passes each request waited.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from controllers.step_trace import Header, Step
from tests.engine_cpu.server import Server
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import simulate
from twp_sglang.simulator.step_models import Affine, AffineStep
from twp_sglang.trace import StepRecord
from twp_sglang.workloads.request import Request

REQUESTS = 30

ATTEMPTS = 6
"""On a busy machine a batch may reach the scheduler in two passes; then it is sent again."""

IGNORED = {
    *("t_ms", "duration_ms", "step", "window_tokens", "sigma", "itl_ms", "sample_step"),
    *("rid", "kv_threshold"),
}
"""What depends on measured time, on the server's warm-up requests (the memory threshold
remembers them, steps are counted from them), or is a random name."""


WINDOW_TOKENS = 900

FIXED_WINDOW = {
    "law": "fixed",
    # All three: on a server that serves already, the window is somewhere else.
    **dict.fromkeys(("h0_tokens", "h_min_tokens", "h_max_tokens"), WINDOW_TOKENS),
}


class Records:
    """Keeps the simulator's steps."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def put(self, record: StepRecord) -> None:
        self.steps.append(record)


def takes_the_simulators_steps(server: Server, **settings: Any) -> None:
    """Send a batch to ``server``, whose window is fixed, and to a simulator with ``settings``.

    The server is told to ignore the end token: SGLang then reserves whole limits.
    """
    source = random.Random(7)
    limits = [source.randint(5, 120) for _ in range(REQUESTS)]
    sizes = [source.randint(10, 150) for _ in limits]
    header, served, lengths = _served(server, sizes, limits)
    engine = EngineSettings(
        kv_tokens=header.kv_capacity_tokens or 1,
        page_size=header.page_size or 1,
        overlap=bool(header.overlap),
        chunk_tokens=4096,
        ignore_eos=True,
        **settings,
    )
    workload = [
        Request(0.0, size, made, limit)
        for size, made, limit in zip(sizes, lengths, limits, strict=True)
    ]
    records = Records()
    simulate(
        workload,
        engine,
        lambda: Affine(AffineStep(l_min_ms=10.0)),
        TwpConfig.model_validate(header.config),
        sinks=[records],
    )
    simulated = [_comparable(record._asdict()) for record in records.steps]
    assert len(simulated) == len(served)
    for number, (ours, theirs) in enumerate(zip(simulated, served, strict=True)):
        assert ours == theirs, f"step {number}"


def _served(
    server: Server, sizes: list[int], limits: list[int]
) -> tuple[Header, list[dict[str, Any]], list[int]]:
    """Header, steps and output lengths of a batch that arrived in one pass."""
    sampling = [{"max_new_tokens": limit, "ignore_eos": True} for limit in limits]
    source = random.Random(8)
    server.wait_idle()
    trace = Path(server.twp()["trace"])
    for _ in range(ATTEMPTS):
        before = len(trace.read_text().splitlines())
        # Other tokens each time: a prompt seen before would come from the prefix cache.
        prompts = [[source.randint(3, 1000) for _ in range(size)] for size in sizes]
        reply = server.request("/generate", {"input_ids": prompts, "sampling_params": sampling})
        assert reply.status == 200, reply.body
        server.wait_idle()
        lengths = [len(answer["output_ids"]) for answer in reply.body]
        lines = trace.read_text().splitlines()
        steps = [Step.model_validate_json(line).model_dump() for line in lines[before:]]
        if steps[0]["admitted"] + steps[0]["queue"] == len(sizes):
            header = Header.model_validate_json(lines[0])
            return header, [_comparable(step) for step in steps], lengths
    pytest.skip(f"the batch never arrived in one pass in {ATTEMPTS} attempts: machine too busy")


def _comparable(step: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in step.items() if key not in IGNORED}
    # Requests that end in the same step have no order among each other: SGLang lists them by
    # their rows, and a mixed batch puts the prompts' rows first.
    kept["finished"] = sorted(list(pair) for pair in step["finished"])
    kept["admissions"] = [
        {key: value for key, value in _fields(admission).items() if key not in IGNORED}
        for admission in step["admissions"]
    ]
    return kept


def _fields(admission: Any) -> dict[str, Any]:
    fields: dict[str, Any] = admission if isinstance(admission, dict) else admission._asdict()
    return fields
