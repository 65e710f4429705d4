"""The sizes of a decoder: bundled ones by name, or from a model's ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from controllers.laws.base import FrozenModel

_FOLDER = Path(__file__).parent / "model_shapes"

_HUGGING_FACE = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "rms_eps": "rms_norm_eps",
    "context_tokens": "max_position_embeddings",
}
"""Our field by the key of a Llama-like ``config.json``."""


class ShapeError(ValueError):
    """A shape that cannot be had; the message names it and says what to do."""


class ModelShape(FrozenModel):
    """A Llama-like decoder (RMS norm, rotary positions, grouped heads, SwiGLU) in numbers."""

    name: str = Field(min_length=1)
    hidden_size: int = Field(ge=8)
    intermediate_size: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1, description="query heads")
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=8, multiple_of=2)
    vocab_size: int = Field(ge=8)
    tied_embeddings: bool = False
    rope_theta: float = Field(default=10000.0, gt=0)
    rms_eps: float = Field(default=1e-5, gt=0)
    context_tokens: int = Field(default=4096, ge=2)

    @model_validator(mode="after")
    def _groups(self) -> ModelShape:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}: every KV "
                "head serves the same number of query heads"
            )
        return self

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer's matrices (norms are below a thousandth of them)."""
        attention = 2 * self.heads + 2 * self.kv_heads
        return self.hidden_size * (attention * self.head_dim + 3 * self.intermediate_size)

    @property
    def step_parameters(self) -> int:
        """Parameters that a step multiplies by: all layers and the output projection."""
        return self.layers * self.layer_parameters + self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters in memory."""
        embeddings = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return self.step_parameters + embeddings

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """KV cache of one token over all layers, bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    def config_json(self, dtype: str = "bfloat16") -> dict[str, Any]:
        """A ``config.json`` from which SGLang builds this decoder (``--load-format dummy``)."""
        own = {key: getattr(self, field) for field, key in _HUGGING_FACE.items()}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **own,
            "hidden_act": "silu",
            "torch_dtype": dtype,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


def shape_names() -> tuple[str, ...]:
    """The shapes that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def model_shape(which: str) -> ModelShape:
    """The shape that ``which`` names: a bundled one, a ``config.json``, or a model's folder.

    Raises:
        ShapeError: no such shape, or a file that holds none.
    """
    if which in shape_names():
        return _read(_FOLDER / f"{which}.json")
    path = Path(which)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ShapeError(
            f"--model {which}: no such shape and no such file; shapes are "
            f"{', '.join(shape_names())}, or give the config.json of a Llama-like model"
        )
    return _read(path)


def _read(path: Path) -> ModelShape:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShapeError(f"--model {path}: cannot be read as JSON ({error})") from None
    if not isinstance(loaded, dict):
        raise ShapeError(f"--model {path}: must hold one JSON object")
    if "num_hidden_layers" in loaded:
        loaded = _from_hugging_face(loaded, path)
    try:
        return ModelShape.model_validate(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "shape"
        raise ShapeError(f"--model {path}: {place}: {first['msg']}") from None


def _from_hugging_face(loaded: dict[str, Any], path: Path) -> dict[str, Any]:
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank"):
        if loaded.get(key):
            raise ShapeError(
                f"--model {path}: {key} = {loaded[key]}: the profiler knows dense decoders with "
                "grouped heads; measure this model through SGLang (twp_sglang.calibrate)"
            )
    found = {field: loaded.get(key) for field, key in _HUGGING_FACE.items()}
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    if not found["head_dim"] and found["heads"] and found["hidden_size"]:
        found["head_dim"] = found["hidden_size"] // found["heads"]
    name = Path(str(loaded.get("_name_or_path") or "")).name
    known = {field: value for field, value in found.items() if value is not None}
    return {"name": name or path.resolve().parent.name or path.stem, **known}
