"""What the engine tells policy slo of its CUDA graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from patches.informed import informed
from twp_sglang.config import TwpConfig


def scheduler(capture_bs: list[int] | None, most: int = 256) -> Any:
    """SGLang's attributes on the way to the captured sizes; None: nothing was captured."""
    runner = None if capture_bs is None else SimpleNamespace(capture_bs=capture_bs)
    model_runner = SimpleNamespace(decode_cuda_graph_runner=runner)
    return SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=model_runner), max_running_requests=most
    )


@pytest.mark.parametrize(
    ("capture_bs", "rows"),
    [([1, 2, 4, 8, 160], 160), ([], None), (None, None), ([1, 256], None)],
)
def test_the_largest_captured_batch_is_the_ceiling(
    capture_bs: list[int] | None, rows: int | None
) -> None:
    config = informed(TwpConfig(policy="slo"), scheduler(capture_bs))
    assert config.graph_ceiling_rows == rows


def test_what_is_stated_stays_and_other_policies_are_not_told() -> None:
    stated = TwpConfig(policy="slo", graph_ceiling_rows=24)
    assert informed(stated, scheduler([160])) is stated
    twp = TwpConfig(policy="twp")
    assert informed(twp, scheduler([160])) is twp


def test_an_engine_that_keeps_it_elsewhere_is_no_fault() -> None:
    config = TwpConfig(policy="slo")
    assert informed(config, SimpleNamespace()) is config
