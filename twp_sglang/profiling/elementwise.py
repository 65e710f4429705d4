"""What runs between the matrix products: RMS norm, rotary positions, SwiGLU.

FlashInfer's kernels are those that SGLang runs (its own library takes them from there);
torch's are the same mathematics for machines without them. Both change their arguments
in place where SGLang does.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn import functional


class Elementwise(Protocol):
    """The operations of a layer that are bound by memory or by launching."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x / rms(x) * weight``, new tensor."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        """``residual += x``, then ``x = residual / rms(residual) * weight``; in place."""

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(first half) * second half`` of the last dimension."""

    def rotate(
        self,
        positions: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        head_dim: int,
        cos_sin: torch.Tensor,
    ) -> None:
        """Rotate ``q`` (T, heads * head_dim) and ``k`` in place, halves apart (NeoX)."""


class TorchElementwise:
    """See :class:`Elementwise`; norms and rotation accumulate in float32 or better."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See :class:`Elementwise`."""
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        """See :class:`Elementwise`."""
        residual.add_(x)
        x.copy_(functional.rms_norm(residual, (x.shape[-1],), weight, eps))

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See :class:`Elementwise`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def rotate(
        self,
        positions: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        head_dim: int,
        cos_sin: torch.Tensor,
    ) -> None:
        """See :class:`Elementwise`."""
        cos, sin = cos_sin[positions].chunk(2, dim=-1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        for x in (q, k):
            heads = x.view(x.shape[0], -1, head_dim)
            first, second = heads.to(cos.dtype).chunk(2, dim=-1)
            heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


class FlashInferElementwise:
    """See :class:`Elementwise`."""

    def __init__(self, flashinfer: Any) -> None:
        """Of the imported module ``flashinfer``."""
        self._flashinfer = flashinfer

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See :class:`Elementwise`."""
        return self._flashinfer.rmsnorm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        """See :class:`Elementwise`."""
        self._flashinfer.fused_add_rmsnorm(x, residual, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See :class:`Elementwise`."""
        return self._flashinfer.silu_and_mul(gate_up)

    def rotate(
        self,
        positions: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        head_dim: int,
        cos_sin: torch.Tensor,
    ) -> None:
        """See :class:`Elementwise`."""
        self._flashinfer.apply_rope_with_cos_sin_cache_inplace(
            positions, q, k, head_dim, cos_sin, is_neox=True
        )
