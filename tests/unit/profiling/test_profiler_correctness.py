"""The profiled decoder computes what a decoder is, by either backend's calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.unit.profiling import flashinfer_by_definition
from twp_sglang.profiling.attention import Attention
from twp_sglang.profiling.correctness import NO_NUMBER, Agreement, agreement, small
from twp_sglang.profiling.flashinfer_attention import FlashInferAttention
from twp_sglang.profiling.model_shape import ModelShape, model_shape
from twp_sglang.profiling.sdpa_attention import SdpaAttention
from twp_sglang.profiling.step_inputs import StepInputs

CPU = torch.device("cpu")
SHAPE = model_shape("tiny").model_copy(update={"context_tokens": 512})
GROUP_OF_FOUR = SHAPE.model_copy(update={"heads": 8})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def by_definition(shape: ModelShape, extend: Any = "ragged") -> FlashInferAttention:
    return FlashInferAttention(
        small(shape), torch.float32, CPU, extend, flashinfer_by_definition, 128 * 2**20
    )


def agree(
    attention: Attention, dtype: torch.dtype = torch.float32, shape: ModelShape = SHAPE
) -> Agreement:
    with torch.inference_mode():
        return agreement(shape, "test", attention, dtype, CPU, seed=3, graph=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa_agrees_with_float64(dtype: torch.dtype) -> None:
    result = agree(SdpaAttention(small(SHAPE)), dtype)
    assert result.good, result
    # Zero would mean that it was compared with itself.
    assert result.worst > 0


@pytest.mark.parametrize("extend", ["ragged", "paged"])
@pytest.mark.parametrize("shape", [SHAPE, GROUP_OF_FOUR], ids=["group 2", "group 4"])
def test_flashinfers_calls_mean_the_same_decoder(extend: Any, shape: ModelShape) -> None:
    attention = by_definition(shape, extend)
    result = agree(attention, shape=shape)
    assert result.good, result
    assert result.worst > 0


def test_wrappers_for_graphs_get_buffers_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in asserts their sizes and that the batch is the buffers'."""
    attention = by_definition(SHAPE)
    plan, kinds = attention.plan, []

    def with_buffers(step: StepInputs, *, graph: bool) -> None:
        plan(step, graph=True)
        kinds.append(step.decode_only)

    monkeypatch.setattr(attention, "plan", with_buffers)
    assert agree(attention).good
    assert set(kinds) == {True, False}


def test_tensor_cores_as_sglang_chooses_them() -> None:
    wide = by_definition(GROUP_OF_FOUR)
    assert wide._tensor_cores
    narrow = by_definition(SHAPE)
    assert not narrow._tensor_cores


def test_seeing_the_future_is_noticed() -> None:
    class NoMask(SdpaAttention):
        def plan(self, step: StepInputs, *, graph: bool) -> None:
            super().plan(step, graph=graph)
            for group in self._groups:
                if group.mask is not None:
                    group.mask.fill_(True)

    result = agree(NoMask(small(SHAPE)), torch.bfloat16)
    assert not result.good
    assert result.prefill > 5 * result.limit


def test_results_that_are_no_numbers_are_noticed() -> None:
    class NotANumber(SdpaAttention):
        def run(self, *args: Any) -> torch.Tensor:
            return super().run(*args) * torch.nan

    result = agree(NotANumber(small(SHAPE)))
    assert not result.good
    assert result.worst == NO_NUMBER


def test_a_step_with_one_wrong_slot_is_noticed() -> None:
    class OneSlotOff(SdpaAttention):
        def plan(self, step: StepInputs, *, graph: bool) -> None:
            super().plan(step, graph=graph)
            for group in self._groups:
                group.slots[:, 0] = group.slots[:, -1]

    assert not agree(OneSlotOff(small(SHAPE))).good
