"""What a profiling run was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from controllers.laws.base import FrozenModel

Backend = Literal["flashinfer", "sdpa"]
Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "bfloat16", "float32"]
Graphs = Literal["all", "decode", "none"]

GPU_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPU_CONTEXTS = (512, 2048, 8192)
GPU_CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)
CPU_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
CPU_CONTEXTS = (32, 128, 384)
CPU_CHUNKS = (16, 64, 192)


class ProfileSettings(FrozenModel):
    """One run of ``python -m twp_sglang.profile_step``."""

    model: str = Field(description="a bundled shape, a config.json, or a model's folder")
    backend: Backend = Field(
        description="whose attention: flashinfer as SGLang calls it, or torch's own (sdpa)"
    )
    out: Path = Field(
        description="the step model (JSON); the step trace goes beside it, with .jsonl"
    )
    device: Device = Field(default="auto", description="auto is the GPU where there is one")
    dtype: Dtype = Field(default="auto", description="auto is bfloat16 on a GPU, else float32")
    batches: tuple[int, ...] | None = Field(
        default=None,
        description="decoding requests; unset, 1 to 256 by factors of two on a GPU (up to 16 on "
        "a CPU): SGLang's usual range",
    )
    contexts: tuple[int, ...] | None = Field(
        default=None,
        description="KV tokens of each; unset, 512, 2048, 8192 on a GPU (32, 128, 384 on a CPU): "
        "a factor of 16 tells KV tokens from requests",
    )
    chunks: tuple[int, ...] | None = Field(
        default=None,
        description="prompt tokens of a step; unset, 64 to 4096 on a GPU (16, 64, 192 on a CPU)",
    )
    repeats: int = Field(
        default=20, ge=3, le=1000, description="timed runs of each step; the median counts"
    )
    budget_s: float = Field(
        default=300.0,
        gt=0,
        description="time for measuring, after the weights are made; what is measured by then is "
        "fitted: a grid takes a minute or two on a current GPU",
    )
    extend: Literal["ragged", "paged"] = Field(
        default="ragged",
        description="FlashInfer's calls for prompts: SGLang's default (ragged and paged, merged), "
        "or one paged call (SGLANG_FLASHINFER_USE_PAGED)",
    )
    graphs: Graphs = Field(
        default="all",
        description="which steps are CUDA graphs; SGLang 0.5.23 captures decode whole, and prefill "
        "but for its attention",
    )
    allow_busy: bool = Field(default=False, description="measure although others use the GPU")
    check: bool = Field(default=True, description="compare with a float64 reference first")
    threads: int | None = Field(
        default=None, ge=1, description="torch's threads on a CPU; unset, torch's own choice"
    )
    seed: int = Field(default=0, ge=0, description="of weights, inputs and order")

    @field_validator("batches", "contexts", "chunks")
    @classmethod
    def _ascending(cls, values: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if values is None:
            return None
        if not values or min(values) < 1:
            raise ValueError("give whole numbers from 1 on")
        return tuple(sorted(set(values)))

    @field_validator("out")
    @classmethod
    def _json(cls, path: Path) -> Path:
        if path.suffix != ".json":
            raise ValueError("must end in .json, by which simulator and engine tell the format")
        return path

    @property
    def trace(self) -> Path:
        """The step trace beside ``out``."""
        return self.out.with_suffix(".jsonl")
