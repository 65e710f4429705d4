"""The tensors of one step: tokens, positions, and where each request's KV lies in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from twp_sglang.profiling.step_points import StepPoint


@dataclass(frozen=True)
class Request:
    """One request in a step.

    Attributes:
        slots: (prefix + new,) int64 on the device: its KV slots, in order of position.
        prefix: tokens that are in the cache when the step starts.
        new: tokens that this step computes.
    """

    slots: torch.Tensor
    prefix: int
    new: int


@dataclass(frozen=True)
class StepInputs:
    """A step, ready for the decoder; everything here stays in place between repetitions.

    Attributes:
        requests: those in the step; a chunk's before those that decode.
        tokens: (T,) int64 ids.
        positions: (T,) int64 positions in their requests.
        write_slots: (T,) int64 slots that receive the new K and V.
        last: (R,) int64 rows whose next token is sampled: each request's last.
    """

    requests: tuple[Request, ...]
    tokens: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    last: torch.Tensor

    @property
    def decode_only(self) -> bool:
        """Whether every request brings one token to a prefix that it has."""
        return all(request.new == 1 and request.prefix > 0 for request in self.requests)

    def q_indptr(self) -> list[int]:
        """First row of each request, and the end."""
        return [0, *accumulate(request.new for request in self.requests)]

    def kv_indptr(self, *, prefix_only: bool = False) -> list[int]:
        """First entry of each request in :meth:`kv_indices`, and the end."""
        lengths = [r.prefix + (0 if prefix_only else r.new) for r in self.requests]
        return [0, *accumulate(lengths)]

    def kv_indices(self, *, prefix_only: bool = False) -> torch.Tensor:
        """KV slots of all requests, one after the other, int32."""
        parts = [r.slots[: r.prefix] if prefix_only else r.slots for r in self.requests]
        return torch.cat(parts).to(torch.int32)


def step_inputs(
    lengths: list[tuple[int, int]], slots: torch.Tensor, vocab_size: int, seed: int
) -> StepInputs:
    """A step of requests of (prefix, new) tokens with random ids.

    Args:
        lengths: of each request.
        slots: permuted slots of the pool; each request takes the next ones, so that its
            KV lies scattered as in an engine that has served for a while.
        vocab_size: ids are drawn below it.
        seed: of the ids.

    Raises:
        ValueError: fewer slots than tokens.
    """
    need = sum(prefix + new for prefix, new in lengths)
    if need > slots.numel():
        raise ValueError(f"the step needs {need} KV slots, the pool has {slots.numel()}")
    requests, start = [], 0
    for prefix, new in lengths:
        requests.append(Request(slots[start : start + prefix + new], prefix, new))
        start += prefix + new
    device = slots.device
    total = sum(request.new for request in requests)
    generator = torch.Generator().manual_seed(seed)
    ends = list(accumulate(request.new for request in requests))
    return StepInputs(
        requests=tuple(requests),
        tokens=torch.randint(vocab_size, (total,), generator=generator).to(device),
        positions=torch.cat(
            [torch.arange(r.prefix, r.prefix + r.new, device=device) for r in requests]
        ),
        write_slots=torch.cat([r.slots[r.prefix :] for r in requests]),
        last=torch.tensor([end - 1 for end in ends], device=device),
    )


def lengths_of(point: StepPoint) -> list[tuple[int, int]]:
    """(prefix, new) of the requests of ``point``: the chunk, then those that decode."""
    chunk = [(point.prefix, point.chunk)] if point.chunk else []
    return chunk + [(point.context, 1)] * point.batch
