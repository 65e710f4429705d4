"""K and B of SGLang's requests, whether or not the batch changed since the last pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.active_load import ActiveLoadReader
from twp_sglang.scheduling.lengths import DeclaredLengths
from twp_sglang.scheduling.load import ActiveLoad


def req(prompt: int, limit: int, produced: int) -> Any:
    return SimpleNamespace(
        origin_input_ids=[0] * prompt,
        sampling_params=SimpleNamespace(max_new_tokens=limit),
        output_ids=[0] * produced,
    )


def test_nobody_is_active() -> None:
    assert ActiveLoadReader(DeclaredLengths()).read([]) == ActiveLoad(0, 0)


def test_remaining_tokens_add_up() -> None:
    reader = ActiveLoadReader(DeclaredLengths())
    assert reader.read([req(5, 100, 40), req(5, 9000, 0)]) == ActiveLoad(60 + 4096, 2)


def test_tokens_produced_since_the_last_pass_count() -> None:
    reader = ActiveLoadReader(DeclaredLengths())
    reqs = [req(5, 100, 40), req(5, 50, 0)]
    assert reader.read(reqs).load_tokens == 110
    for one in reqs:
        one.output_ids.append(0)
    assert reader.read(reqs).load_tokens == 108


def test_a_changed_batch_is_noticed_though_the_list_is_the_same() -> None:
    reader = ActiveLoadReader(DeclaredLengths())
    reqs = [req(5, 100, 40), req(5, 50, 0)]
    reader.read(reqs)
    reqs[1] = req(5, 500, 0)
    assert reader.read(reqs) == ActiveLoad(560, 2)
    reqs.pop(0)
    assert reader.read(reqs) == ActiveLoad(500, 1)
    reqs.append(req(1, 7, 0))
    assert reader.read(reqs) == ActiveLoad(507, 2)
