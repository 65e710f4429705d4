"""Attention by FlashInfer's wrappers, called as SGLang's flashinfer backend calls them.

Decode: ``BatchDecodeWithPagedKVCacheWrapper``, backend fa2, on tensor cores where four or
more query heads share a KV head. A step with prompt tokens is one *extend* over all its
requests; those that decode take part with one row each (a mixed batch of SGLang). An
extend is two calls whose results are merged: the ragged prefill wrapper over the step's
own tokens, causal, and the paged prefill wrapper over what is in the cache. With
``extend="paged"`` (SGLANG_FLASHINFER_USE_PAGED) it is one causal paged call over both.

Written against flashinfer-python 0.7.2; the calls exist alike since 0.6.8 (SGLang 0.5.11).
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from twp_sglang.profiling.attention import KvPool
from twp_sglang.profiling.elementwise import FlashInferElementwise
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_inputs import StepInputs

Extend = Literal["ragged", "paged"]

_WORKSPACE_BYTES = 1024 * 1024 * 1024
"""FlashInfer advises 128 MB, SGLang takes 384; a captured step of 256 rows and a long chunk
needs about 800 for the partial results of its tiles (heads x tiles x 128 rows x 512 bytes)."""

_PAGE_SIZE = 1
"""SGLang always plans FlashInfer with pages of one token, whatever its own page size."""

_TENSOR_CORE_GROUP = 4
"""SGLang's should_use_tensor_core for 16-bit KV."""


class FlashInferMissing(RuntimeError):
    """FlashInfer cannot be imported; the message says why and what to install."""


def import_flashinfer() -> Any:
    """The module ``flashinfer``.

    Raises:
        FlashInferMissing: not installed, or something that it imports is not.
    """
    try:
        import flashinfer
    except ModuleNotFoundError as error:
        if error.name == "flashinfer":
            what = "is not installed: pip install flashinfer-python"
        else:
            what = f"needs the module {error.name}, which is not installed"
        raise FlashInferMissing(
            f"--backend flashinfer: FlashInfer {what} (docs/gpu.md), or take --backend sdpa"
        ) from None
    except Exception as error:
        # Its import compiles and inspects the machine: anything may come out of it.
        raise FlashInferMissing(
            f"--backend flashinfer: importing FlashInfer failed: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no message'}"
        ) from None
    return flashinfer


class FlashInferAttention:
    """See :class:`~twp_sglang.profiling.attention.Attention`; on a CUDA device."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        device: torch.device,
        extend: Extend = "ragged",
        flashinfer: Any = None,
        workspace_bytes: int = _WORKSPACE_BYTES,
    ) -> None:
        """Import FlashInfer, unless the module is given, and take its workspace.

        Raises:
            FlashInferMissing: see :func:`import_flashinfer`.
        """
        self._flashinfer = import_flashinfer() if flashinfer is None else flashinfer
        self.elementwise = FlashInferElementwise(self._flashinfer)
        self._shape, self._dtype, self._device, self._extend = shape, dtype, device, extend
        self._tensor_cores = shape.heads // shape.kv_heads >= _TENSOR_CORE_GROUP
        # Zeroed: some kernels want it so at first use.
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=device)
        self._decode: Any = None
        self._ragged: Any = None
        self._paged: Any = None

    def plan(self, step: StepInputs, *, graph: bool) -> None:
        """See :class:`~twp_sglang.profiling.attention.Attention`.

        Wrappers are made anew for every step: under CUDA graphs their number of requests
        is fixed, and a step is captured once.
        """
        self._decode = self._ragged = self._paged = None
        if step.decode_only:
            self._plan_decode(step, graph)
        elif self._extend == "paged":
            self._plan_paged(step, graph, causal=True)
        else:
            self._plan_ragged(step, graph)
            if any(request.prefix for request in step.requests):
                self._plan_paged(step, graph, causal=False)

    def replan(self, step: StepInputs) -> None:
        """Plan ``step`` again on the wrapper that there is: the host's work per decode step."""
        self._call_decode_plan(step)

    def run(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pool: KvPool
    ) -> torch.Tensor:
        """See :class:`~twp_sglang.profiling.attention.Attention`."""
        q = q.contiguous()
        cache = (pool.keys[layer].unsqueeze(1), pool.values[layer].unsqueeze(1))
        if self._decode is not None:
            return self._decode.run(q, cache)
        if self._ragged is None:
            return self._paged.run(q, cache)
        if self._paged is None:
            return self._ragged.run(q, k, v)
        own, own_scale = self._ragged.run(q, k, v, return_lse=True)
        cached, cached_scale = self._paged.run(q, cache, return_lse=True)
        merged, _ = self._flashinfer.merge_state(own, own_scale, cached, cached_scale)
        return merged

    def _plan_decode(self, step: StepInputs, graph: bool) -> None:
        requests = len(step.requests)
        buffers: dict[str, Any] = {}
        if graph:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": self._ints(requests + 1),
                "paged_kv_indices_buffer": self._ints(step.kv_indptr()[-1]),
                "paged_kv_last_page_len_buffer": self._ints(requests),
            }
        self._decode = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_tensor_cores=self._tensor_cores,
            backend="fa2",
            **buffers,
        )
        self._call_decode_plan(step)

    def _call_decode_plan(self, step: StepInputs) -> None:
        indptr = torch.tensor(step.kv_indptr(), dtype=torch.int32)
        self._decode.plan(
            indptr,
            step.kv_indices(),
            _last_page_lengths(indptr),
            self._shape.heads,
            self._shape.kv_heads,
            self._shape.head_dim,
            _PAGE_SIZE,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def _plan_ragged(self, step: StepInputs, graph: bool) -> None:
        requests = len(step.requests)
        buffers: dict[str, Any] = {}
        if graph:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": self._ints(requests + 1),
                "kv_indptr_buf": self._ints(requests + 1),
            }
        # "auto" as in SGLang: FlashAttention-3 kernels on Hopper, else fa2.
        self._ragged = self._flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            self._workspace, "NHD", backend="auto", **buffers
        )
        indptr = torch.tensor(step.q_indptr(), dtype=torch.int32)
        self._ragged.plan(
            indptr,
            indptr,
            self._shape.heads,
            self._shape.kv_heads,
            self._shape.head_dim,
            causal=True,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def _plan_paged(self, step: StepInputs, graph: bool, *, causal: bool) -> None:
        requests = len(step.requests)
        prefix_only = not causal
        kv_indptr = torch.tensor(step.kv_indptr(prefix_only=prefix_only), dtype=torch.int32)
        buffers: dict[str, Any] = {}
        if graph:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": self._ints(requests + 1),
                "paged_kv_indptr_buf": self._ints(requests + 1),
                "paged_kv_indices_buf": self._ints(int(kv_indptr[-1])),
                "paged_kv_last_page_len_buf": self._ints(requests),
            }
        self._paged = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", backend="fa2", **buffers
        )
        self._paged.plan(
            torch.tensor(step.q_indptr(), dtype=torch.int32),
            kv_indptr,
            step.kv_indices(prefix_only=prefix_only),
            _last_page_lengths(kv_indptr),
            self._shape.heads,
            self._shape.kv_heads,
            self._shape.head_dim,
            _PAGE_SIZE,
            causal=causal,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def _ints(self, count: int) -> torch.Tensor:
        return torch.zeros(max(count, 1), dtype=torch.int32, device=self._device)


def _last_page_lengths(indptr: torch.Tensor) -> torch.Tensor:
    """Tokens in the last page of each request: 1, or 0 where a request has none."""
    return (indptr[1:] - indptr[:-1]).clamp(max=1).to(torch.int32)
