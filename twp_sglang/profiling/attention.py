"""What an attention backend is: planned once per step, run once per layer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from twp_sglang.profiling.elementwise import Elementwise
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_inputs import StepInputs


class KvPool(NamedTuple):
    """Paged KV of all layers with pages of one token, as SGLang hands it to FlashInfer.

    ``keys[layer]`` and ``values[layer]`` are (slots, kv_heads, head_dim).
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


def kv_pool(
    shape: ModelShape, slots: int, dtype: torch.dtype, device: torch.device, seed: int
) -> KvPool:
    """A pool of random content: reading zeros draws less power, and is faster on a GPU."""
    generator = torch.Generator(device).manual_seed(seed)

    def one() -> torch.Tensor:
        return torch.empty(
            (slots, shape.kv_heads, shape.head_dim), dtype=dtype, device=device
        ).normal_(generator=generator)

    return KvPool(
        keys=tuple(one() for _ in range(shape.layers)),
        values=tuple(one() for _ in range(shape.layers)),
    )


class Attention(Protocol):
    """Attention over a paged pool that already holds the K and V of the step's own tokens."""

    @property
    def elementwise(self) -> Elementwise:
        """The kernels that this backend's engine runs around it."""

    def plan(self, step: StepInputs, *, graph: bool) -> None:
        """Prepare for ``step``; with ``graph``, so that :meth:`run` can be captured."""

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pool: KvPool
    ) -> torch.Tensor:
        """(T, heads, head_dim) for ``q`` of that shape; ``k`` and ``v`` are the new ones."""


class NoAttention:
    """Leaves attention out, to tell its share of a step from the rest."""

    def __init__(self, elementwise: Elementwise) -> None:
        self.elementwise = elementwise

    def plan(self, step: StepInputs, *, graph: bool) -> None:
        """See :class:`Attention`."""

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pool: KvPool
    ) -> torch.Tensor:
        """See :class:`Attention`."""
        return q
