"""The forward of a Llama-like decoder with random weights over a paged KV pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from twp_sglang.profiling.attention import Attention, KvPool
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.step_inputs import StepInputs


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; matrices are (out, in), fused as SGLang fuses them."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norm_attention: torch.Tensor
    norm_mlp: torch.Tensor


@dataclass(frozen=True)
class Weights:
    """All weights, and the cosines and sines of the rotary positions, (positions, head_dim)."""

    layers: tuple[Layer, ...]
    embedding: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    cos_sin: torch.Tensor

    def to(self, dtype: torch.dtype) -> Weights:
        """The same weights in ``dtype``, the rotation included."""
        return Weights(
            layers=tuple(
                Layer(*(getattr(layer, name).to(dtype) for name in Layer.__annotations__))
                for layer in self.layers
            ),
            embedding=self.embedding.to(dtype),
            head=self.head.to(dtype),
            norm=self.norm.to(dtype),
            cos_sin=self.cos_sin.to(dtype),
        )


def random_weights(
    shape: ModelShape, dtype: torch.dtype, device: torch.device, seed: int
) -> Weights:
    """Normal weights scaled so that activations keep their size through the layers."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        empty = torch.empty((rows, columns), dtype=dtype, device=device)
        return empty.normal_(std=columns**-0.5, generator=generator)

    def norm() -> torch.Tensor:
        empty = torch.empty((shape.hidden_size,), dtype=dtype, device=device)
        return empty.uniform_(0.5, 1.5, generator=generator)

    hidden, width = shape.hidden_size, shape.head_dim
    layers = tuple(
        Layer(
            qkv=matrix((shape.heads + 2 * shape.kv_heads) * width, hidden),
            out=matrix(hidden, shape.heads * width),
            gate_up=matrix(2 * shape.intermediate_size, hidden),
            down=matrix(hidden, shape.intermediate_size),
            norm_attention=norm(),
            norm_mlp=norm(),
        )
        for _ in range(shape.layers)
    )
    embedding = torch.empty((shape.vocab_size, hidden), dtype=dtype, device=device)
    embedding.normal_(generator=generator)
    head = embedding if shape.tied_embeddings else matrix(shape.vocab_size, hidden)
    return Weights(layers, embedding, head, norm(), _cos_sin(shape, device))


def _cos_sin(shape: ModelShape, device: torch.device) -> torch.Tensor:
    # float32 is what FlashInfer asks for; computed in float64, because position times
    # frequency needs more digits than float32 has.
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=device)
    frequency = shape.rope_theta ** (-half / shape.head_dim)
    position = torch.arange(shape.context_tokens, dtype=torch.float64, device=device)
    angle = position[:, None] * frequency[None, :]
    return torch.cat([angle.cos(), angle.sin()], dim=-1).to(torch.float32)


class Decoder:
    """One engine's model: weights, pool and attention."""

    def __init__(
        self, shape: ModelShape, weights: Weights, pool: KvPool, attention: Attention
    ) -> None:
        self.shape = shape
        self.weights = weights
        self.pool = pool
        self.attention = attention

    def logits(self, step: StepInputs) -> torch.Tensor:
        """(requests, vocab): scores of the token after each request's last.

        The KV of the step's tokens is written to the pool. ``attention`` must be planned
        for ``step``.
        """
        shape, weights, ops = self.shape, self.weights, self.attention.elementwise
        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        x = functional.embedding(step.tokens, weights.embedding)
        residual = torch.empty_like(x)
        for number, layer in enumerate(weights.layers):
            if number == 0:
                residual.copy_(x)
                x = ops.rms_norm(x, layer.norm_attention, shape.rms_eps)
            else:
                ops.add_rms_norm(x, residual, layer.norm_attention, shape.rms_eps)
            q, k, v = functional.linear(x, layer.qkv).split([q_width, kv_width, kv_width], -1)
            ops.rotate(step.positions, q, k, shape.head_dim, weights.cos_sin)
            q = q.view(-1, shape.heads, shape.head_dim)
            k = k.view(-1, shape.kv_heads, shape.head_dim)
            v = v.view(-1, shape.kv_heads, shape.head_dim)
            self.pool.keys[number].index_copy_(0, step.write_slots, k)
            self.pool.values[number].index_copy_(0, step.write_slots, v)
            attended = self.attention.run(number, q, k, v, self.pool)
            x = functional.linear(attended.reshape(-1, q_width), layer.out)
            ops.add_rms_norm(x, residual, layer.norm_mlp, shape.rms_eps)
            x = ops.silu_and_mul(functional.linear(x, layer.gate_up))
            x = functional.linear(x, layer.down)
        ops.add_rms_norm(x, residual, weights.norm, shape.rms_eps)
        return functional.linear(x[step.last], weights.head)

    def step(self, step: StepInputs) -> torch.Tensor:
        """One engine step: the forward and greedy sampling; (requests,) token ids."""
        return self.logits(step).argmax(dim=-1)
