"""The fastest that a step could be: its bytes over the bandwidth, its FLOPs over the rate.

Both rates are measured on the machine: a large copy (bytes read and written) and a large
matrix product in the dtype of the weights.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import torch

from controllers.laws.base import FrozenModel
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_points import StepPoint
from twp_sglang.profiling.stopwatch import times_ms

_REPEATS = 7
_COPY_BYTES = {"cuda": 4 * 2**30, "cpu": 256 * 2**20}
"""Well above any cache: 60 MB of L2 on a GPU, tens of MB on a CPU."""
_MATRIX = {"cuda": 8192, "cpu": 512}


class Rates(FrozenModel):
    """What the machine reached."""

    bytes_per_s: float
    flops_per_s: float
    how: str


class Roofline(FrozenModel):
    """The bounds of one step, ms."""

    weights_ms: float
    kv_ms: float
    compute_ms: float

    @property
    def bound_ms(self) -> float:
        """The larger of memory and compute time."""
        return max(self.weights_ms + self.kv_ms, self.compute_ms)

    @property
    def bound_by(self) -> str:
        """What the bound is made of."""
        if self.compute_ms >= self.weights_ms + self.kv_ms:
            return "compute"
        return "weights" if self.weights_ms >= self.kv_ms else "kv"


def measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Bandwidth of a copy and rate of a square matrix product, medians."""
    kind = device.type
    size = _COPY_BYTES[kind]
    if kind == "cuda":
        # A copy needs both halves; a busy or small card gets a smaller one.
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    copy_ms = median(times_ms(partial(target.copy_, source), device, _REPEATS))
    side = _MATRIX[kind]
    a = torch.randn((side, side), dtype=dtype, device=device)
    b = torch.randn((side, side), dtype=dtype, device=device)
    product_ms = median(times_ms(partial(torch.mm, a, b), device, _REPEATS))
    return Rates(
        bytes_per_s=2 * size / copy_ms * 1e3,
        flops_per_s=2 * side**3 / product_ms * 1e3,
        how=f"copy of {size / 2**20:.0f} MiB, product of two {side} x {side} matrices "
        f"({str(dtype).removeprefix('torch.')}), medians of {_REPEATS}",
    )


def roofline(shape: ModelShape, point: StepPoint, rates: Rates, element_bytes: int) -> Roofline:
    """Bounds of ``point``: weights once, the KV of every request once, all multiplications."""
    pairs = point.batch * (point.context + 1)
    pairs += point.chunk * point.prefix + point.chunk * (point.chunk + 1) // 2
    sampled = point.batch + (1 if point.chunk else 0)
    flops = 2 * point.tokens * shape.layers * shape.layer_parameters
    flops += 2 * sampled * shape.vocab_size * shape.hidden_size
    flops += 4 * pairs * shape.layers * shape.heads * shape.head_dim
    kv = (point.slots + point.tokens) * shape.kv_bytes_per_token(element_bytes)
    return Roofline(
        weights_ms=1e3 * shape.step_parameters * element_bytes / rates.bytes_per_s,
        kv_ms=1e3 * kv / rates.bytes_per_s,
        compute_ms=1e3 * flops / rates.flops_per_s,
    )
