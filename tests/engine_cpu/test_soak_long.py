"""Half an hour of everything, opt-in: ``make soak``. The report goes to the terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine_cpu.server import text_model
from twp_sglang import soak

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))


@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 1200)
def test_soak(tmp_path: Path) -> None:
    code = soak.main(
        [
            *("--minutes", str(MINUTES)),
            *("--json", str(tmp_path / "soak.json"), "--log", str(tmp_path / "server.log")),
            "--",
            *("--model-path", str(text_model(tmp_path / "model")), "--load-format", "dummy"),
            *("--max-total-tokens", "16384", "--enable-metrics"),
            *("--twp-h0-tokens", "1200", "--twp-trace", str(tmp_path / "trace")),
        ]
    )
    assert code == 0, f"see {tmp_path}"
