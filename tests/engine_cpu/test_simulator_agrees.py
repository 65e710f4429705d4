"""The simulator takes SGLang's steps one by one where they are mixed, in pages, with few rows.

``test_serving.py`` has its counterpart with a decode step after each chunk.
"""

from __future__ import annotations

from pathlib import Path

from tests.engine_cpu.agreement import WINDOW_TOKENS, takes_the_simulators_steps
from tests.engine_cpu.server import serving

ROWS = 8


def test_every_step_is_the_same(model: Path, tmp_path: Path) -> None:
    with serving(
        model,
        tmp_path,
        *("--max-total-tokens", "2048", "--twp-policy", "twp", "--enable-mixed-chunk"),
        *("--page-size", "16", "--max-running-requests", str(ROWS)),
        *("--twp-law", "fixed", "--twp-h0-tokens", str(WINDOW_TOKENS)),
        *("--twp-trace", str(tmp_path / "trace")),
        orderly=False,
    ) as server:
        takes_the_simulators_steps(
            server, step_kind="mixed", decode_chunk_tokens=64, max_running_requests=ROWS
        )
