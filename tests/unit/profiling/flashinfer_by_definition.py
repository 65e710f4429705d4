"""FlashInfer's documented interface, computed from its definition in float64 on any device.

It stands where FlashInfer cannot run, to check what the profiler hands over: page tables,
lengths, masks, and the rules of CUDA-graph mode. Only what the documentation of
flashinfer-python 0.7.2 promises is here; an argument that it does not name is an error.
"""

from __future__ import annotations

import math
from typing import Any

import torch

__version__ = "definition"


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and base-2 logsumexp of one request; rows are aligned at the end of the keys."""
    group = q.shape[1] // k.shape[1]
    dtype = q.dtype
    q, k, v = q.double(), k.double(), v.double()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->qhk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        rows, keys = q.shape[0], k.shape[0]
        hidden = torch.ones((rows, keys), dtype=torch.bool).triu(keys - rows + 1)
        scores = scores.masked_fill(hidden[:, None, :], -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    shares = torch.exp(scores - lse[..., None]) if k.shape[0] else scores
    out = torch.einsum("qhk,khd->qhd", shares, v)
    return out.to(dtype), (lse / math.log(2)).float()


class _Wrapper:
    graph_buffers: tuple[str, ...]

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, **kw: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.numel() >= 128 * 2**20
        assert kv_layout == "NHD"
        assert kw.pop("backend") in ("auto", "fa2")
        self.graph = kw.pop("use_cuda_graph", False)
        self.tensor_cores = kw.pop("use_tensor_cores", False)
        self.buffers = {name: kw.pop(name) for name in self.graph_buffers if self.graph}
        assert not kw, f"not in the documentation: {sorted(kw)}"

    def _heads(self, num_qo_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self.heads = (num_qo_heads, num_kv_heads, head_dim)

    def _check(self, q: torch.Tensor, k: torch.Tensor) -> None:
        assert tuple(q.shape[1:]) == (self.heads[0], self.heads[2])
        assert tuple(k.shape[-2:]) == (self.heads[1], self.heads[2])
        assert q.is_contiguous()


def _pages(
    indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, page_size: int
) -> list[torch.Tensor]:
    assert indptr.dtype == indices.dtype == last.dtype == torch.int32
    assert len(indptr) == len(last) + 1
    assert len(indices) == int(indptr[-1])
    assert page_size == 1
    spans = [indices[indptr[i] : indptr[i + 1]].long() for i in range(len(last))]
    assert [min(len(span), 1) for span in spans] == last.tolist()
    return spans


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    graph_buffers = (
        "paged_kv_indptr_buffer",
        "paged_kv_indices_buffer",
        "paged_kv_last_page_len_buffer",
    )

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        if self.graph:
            assert len(self.buffers["paged_kv_last_page_len_buffer"]) == len(last_page_len)
            assert len(self.buffers["paged_kv_indptr_buffer"]) == len(indptr)
            assert len(self.buffers["paged_kv_indices_buffer"]) >= len(indices)
        self._heads(num_qo_heads, num_kv_heads, head_dim)
        self.spans = _pages(indptr, indices, last_page_len, page_size)
        self.dtypes = (q_data_type, kv_data_type)

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        keys, values = paged_kv_cache
        self._check(q, keys)
        assert (q.dtype, keys.dtype) == self.dtypes
        assert keys.dim() == 4
        assert keys.shape[1] == 1
        rows = [
            _attend(q[i : i + 1], keys[span, 0], values[span, 0], causal=False)[0]
            for i, span in enumerate(self.spans)
        ]
        return torch.cat(rows)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    graph_buffers = (
        "qo_indptr_buf",
        "paged_kv_indptr_buf",
        "paged_kv_indices_buf",
        "paged_kv_last_page_len_buf",
    )

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        if self.graph:
            assert len(self.buffers["qo_indptr_buf"]) == len(qo_indptr)
            assert len(self.buffers["paged_kv_indices_buf"]) >= len(paged_kv_indices)
        self._heads(num_qo_heads, num_kv_heads, head_dim_qk)
        self.q_indptr = qo_indptr
        self.spans = _pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self.causal = causal

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *,
        return_lse: bool = False,
    ) -> Any:
        keys, values = paged_kv_cache
        self._check(q, keys)
        parts = [
            _attend(
                q[self.q_indptr[i] : self.q_indptr[i + 1]],
                keys[span, 0],
                values[span, 0],
                causal=self.causal,
            )
            for i, span in enumerate(self.spans)
        ]
        out, lse = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        return (out, lse) if return_lse else out


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    graph_buffers = ("qo_indptr_buf", "kv_indptr_buf")

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        *,
        causal: bool = False,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        if self.graph:
            assert len(self.buffers["qo_indptr_buf"]) == len(qo_indptr)
            assert len(self.buffers["kv_indptr_buf"]) == len(kv_indptr)
        self._heads(num_qo_heads, num_kv_heads, head_dim_qk)
        self.q_indptr, self.kv_indptr, self.causal = qo_indptr, kv_indptr, causal

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False
    ) -> Any:
        self._check(q, k)
        parts = [
            _attend(
                q[self.q_indptr[i] : self.q_indptr[i + 1]],
                k[self.kv_indptr[i] : self.kv_indptr[i + 1]],
                v[self.kv_indptr[i] : self.kv_indptr[i + 1]],
                causal=self.causal,
            )
            for i in range(len(self.q_indptr) - 1)
        ]
        out, lse = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        return (out, lse) if return_lse else out


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = s_a.double(), s_b.double()
    top = torch.maximum(a, b)
    weight_a, weight_b = torch.exp2(a - top), torch.exp2(b - top)
    total = weight_a + weight_b
    merged = (
        v_a.double() * weight_a[..., None] + torch.nan_to_num(v_b.double()) * weight_b[..., None]
    ) / total[..., None]
    return merged.to(v_a.dtype), (top + torch.log2(total)).float()


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    value = x.double()
    scaled = value / (value.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    return scaled.to(x.dtype)


def fused_add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    residual.add_(x)
    x.copy_(rmsnorm(residual, weight, eps))


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :half]) * x[..., half:]


def apply_rope_with_cos_sin_cache_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    *,
    is_neox: bool,
) -> None:
    assert is_neox
    assert cos_sin_cache.dtype == torch.float32
    half = cos_sin_cache.shape[1] // 2
    cos = cos_sin_cache[positions][:, None, :half]
    sin = cos_sin_cache[positions][:, None, half:]
    for x in (query, key):
        heads = x.view(x.shape[0], -1, head_size)
        a, b = heads[..., :half].float().clone(), heads[..., half:].float().clone()
        heads[..., :half] = a * cos - b * sin
        heads[..., half:] = b * cos + a * sin
