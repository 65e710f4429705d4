"""Does a backend compute what a decoder is? Against float64, on fresh random inputs.

A decoder of two layers with the heads of the shape under measurement serves three prompts:
in chunks, in a step that mixes a chunk with decoding rows, and in a decode step (captured
as a graph where the measurement captures). The reference computes the same prompts whole,
in float64, without a cache, by the textbook formula. Weights, KV writes, rotation, paging,
masks and graph replay all have to be right for the two to agree.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from controllers.laws.base import FrozenModel
from twp_sglang.profiling.attention import Attention, kv_pool
from twp_sglang.profiling.decoder import Decoder, Weights, random_weights
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_inputs import StepInputs, step_inputs
from twp_sglang.profiling.stopwatch import prepare

_LAYERS = 2
_VOCABULARY = 1024
_PROMPTS = (37, 90, 5)
"""Lengths that end within a kernel's tile, fill one, and hardly begin one."""
_CHUNK = 33

LIMITS = {"bfloat16": 0.03, "float32": 1e-4, "float64": 1e-10}
"""Relative error of the logits that rounding explains: two layers of sums in 8 bits of
mantissa come to about 0.01; a wrong mask or slot gives errors near 1."""


NO_NUMBER = 1e9
"""Error of results that are infinite or not a number."""


class Agreement(FrozenModel):
    """Relative errors of the logits, ``|ours - reference| / |reference|``, by kind of step."""

    backend: str
    dtype: str
    reference: str = "float64, no cache, textbook attention"
    prefill: float
    mixed: float
    decode: float
    limit: float
    graph: bool

    @property
    def worst(self) -> float:
        """The largest of the three."""
        return max(self.prefill, self.mixed, self.decode)

    @property
    def good(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.limit


def agreement(
    shape: ModelShape,
    backend: str,
    attention: Attention,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    *,
    graph: bool,
) -> Agreement:
    """Run the three steps and compare; ``attention`` must be made for :func:`small` shape."""
    shape = small(shape)
    weights = random_weights(shape, dtype, device, seed)
    slots = 2 * sum(_PROMPTS)
    pool = kv_pool(shape, slots, dtype, device, seed + 1)
    decoder = Decoder(shape, weights, pool, attention)
    scattered = torch.randperm(slots, generator=torch.Generator().manual_seed(seed)).to(device)
    first, second, third = _PROMPTS
    errors: dict[str, float] = {}
    captured = False
    text: dict[int, torch.Tensor] = {}

    def compare(kind: str, lengths: list[tuple[int, int]], which: list[int]) -> None:
        step = _placed(lengths, which, scattered, shape.vocab_size, seed + len(text))
        for row, index in enumerate(which):
            start, end = step.q_indptr()[row], step.q_indptr()[row + 1]
            parts = [text[index]] if index in text else []
            text[index] = torch.cat([*parts, step.tokens[start:end]])
        ours, as_graph = _logits(decoder, step, device, graph=graph and kind == "decode")
        nonlocal captured
        captured = captured or as_graph
        theirs = reference_logits(shape, weights.to(torch.float64), [text[i] for i in which])
        error = float((ours.to(torch.float64) - theirs).norm() / theirs.norm())
        # NaN would lose every comparison and pass for good.
        errors[kind] = max(errors.get(kind, 0.0), error if math.isfinite(error) else NO_NUMBER)

    compare("prefill", [(0, _CHUNK), (0, second)], [0, 1])
    compare("prefill", [(0, third)], [2])
    compare("mixed", [(_CHUNK, first - _CHUNK), (second, 1), (third, 1)], [0, 1, 2])
    compare("decode", [(first, 1), (second + 1, 1), (third + 1, 1)], [0, 1, 2])
    name = str(dtype).removeprefix("torch.")
    return Agreement(
        backend=backend,
        dtype=name,
        prefill=errors["prefill"],
        mixed=errors["mixed"],
        decode=errors["decode"],
        limit=LIMITS[name],
        graph=captured,
    )


def small(shape: ModelShape) -> ModelShape:
    """``shape`` with few layers and a small vocabulary; its heads and widths stay."""
    return shape.model_copy(
        update={
            "layers": min(shape.layers, _LAYERS),
            "vocab_size": min(shape.vocab_size, _VOCABULARY),
            "context_tokens": max(2 * max(_PROMPTS), min(shape.context_tokens, 1024)),
        }
    )


def _placed(
    lengths: list[tuple[int, int]],
    which: list[int],
    scattered: torch.Tensor,
    vocab_size: int,
    seed: int,
) -> StepInputs:
    """A step whose requests keep their slots from step to step."""
    home = [2 * sum(_PROMPTS[:index]) for index in which]
    slots = torch.cat(
        [
            scattered[start : start + prefix + new]
            for start, (prefix, new) in zip(home, lengths, strict=True)
        ]
    )
    return step_inputs(lengths, slots, vocab_size, seed)


def _logits(
    decoder: Decoder, step: StepInputs, device: torch.device, *, graph: bool
) -> tuple[torch.Tensor, bool]:
    """The logits, and whether a CUDA graph computed them."""
    if graph and device.type == "cuda":
        kept: list[torch.Tensor] = []

        class _Keeping(Decoder):
            def step(self, step: StepInputs) -> torch.Tensor:
                kept[:] = [self.logits(step)]
                return kept[0]

        keeping = _Keeping(decoder.shape, decoder.weights, decoder.pool, decoder.attention)
        prepared = prepare(keeping, step, device, graph=True)
        prepared.run()
        torch.cuda.synchronize(device)
        return kept[0].clone(), prepared.captured
    decoder.attention.plan(step, graph=False)
    return decoder.logits(step), False


def reference_logits(
    shape: ModelShape, weights: Weights, texts: list[torch.Tensor]
) -> torch.Tensor:
    """(texts, vocab): scores after each text's last token, computed whole, without a cache."""
    return torch.stack([_reference(shape, weights, text) for text in texts])


def _reference(shape: ModelShape, weights: Weights, text: torch.Tensor) -> torch.Tensor:
    length, width = text.numel(), shape.head_dim
    groups = shape.heads // shape.kv_heads
    x = weights.embedding[text]
    cos, sin = weights.cos_sin[:length, None, :].chunk(2, dim=-1)
    hidden = torch.ones((length, length), dtype=torch.bool, device=text.device).triu(1)

    def norm(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return value / (value.pow(2).mean(-1, keepdim=True) + shape.rms_eps).sqrt() * weight

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        a, b = heads.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    for layer in weights.layers:
        fused = (norm(x, layer.norm_attention) @ layer.qkv.T).view(length, -1, width)
        q = rotated(fused[:, : shape.heads])
        k = rotated(fused[:, shape.heads : shape.heads + shape.kv_heads])
        v = fused[:, shape.heads + shape.kv_heads :]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(width)
        shares = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        attended = torch.einsum("hqk,khd->qhd", shares, v).reshape(length, -1)
        x = x + attended @ layer.out.T
        gate, up = (norm(x, layer.norm_mlp) @ layer.gate_up.T).chunk(2, dim=-1)
        x = x + (functional.silu(gate) * up) @ layer.down.T
    return norm(x[-1], weights.norm) @ weights.head.T
