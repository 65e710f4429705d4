"""Attention by torch's ``scaled_dot_product_attention`` over gathered KV.

Runs everywhere, a CPU included. Requests of the same shape are gathered into one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from twp_sglang.profiling.attention import KvPool
from twp_sglang.profiling.elementwise import TorchElementwise
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_inputs import StepInputs


@dataclass(frozen=True)
class _Group:
    """Neighbouring requests of one shape: rows ``start`` to ``end`` of the step."""

    start: int
    end: int
    new: int
    slots: torch.Tensor  # (requests, prefix + new)
    mask: torch.Tensor | None  # (new, prefix + new), None where a row sees everything


class SdpaAttention:
    """See :class:`~twp_sglang.profiling.attention.Attention`."""

    def __init__(self, shape: ModelShape) -> None:
        self.elementwise = TorchElementwise()
        self._shape = shape
        self._groups: list[_Group] = []

    def plan(self, step: StepInputs, *, graph: bool) -> None:
        """See :class:`~twp_sglang.profiling.attention.Attention`."""
        self._groups = []
        row, index = 0, 0
        requests = step.requests
        while index < len(requests):
            first = requests[index]
            same = index
            while same < len(requests) and (requests[same].prefix, requests[same].new) == (
                first.prefix,
                first.new,
            ):
                same += 1
            slots = torch.stack([request.slots for request in requests[index:same]])
            end = row + first.new * (same - index)
            mask = None
            if first.new > 1:
                length = first.prefix + first.new
                mask = torch.ones((first.new, length), dtype=torch.bool, device=slots.device)
                mask = mask.tril(diagonal=first.prefix)
            self._groups.append(_Group(row, end, first.new, slots, mask))
            row, index = end, same

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pool: KvPool
    ) -> torch.Tensor:
        """See :class:`~twp_sglang.profiling.attention.Attention`."""
        out = torch.empty_like(q)
        keys, values = pool.keys[layer], pool.values[layer]
        grouped = self._shape.heads != self._shape.kv_heads
        for group in self._groups:
            requests = group.slots.shape[0]
            rows = q[group.start : group.end].view(requests, group.new, *q.shape[1:])
            answer = functional.scaled_dot_product_attention(
                rows.transpose(1, 2),
                keys[group.slots].transpose(1, 2),
                values[group.slots].transpose(1, 2),
                attn_mask=group.mask,
                enable_gqa=grouped,
            )
            out[group.start : group.end] = answer.transpose(1, 2).reshape(-1, *q.shape[1:])
        return out
