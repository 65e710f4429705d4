"""``--twp-emulate``: what the engine needs so that no model has to exist.

The forward is replaced (``patches.sglang_0_5.emulation``), so weights and KV are never
read. A stand-in model of one tiny layer takes the place of the real one: it keeps the
vocabulary, the stop tokens and the context length, the tokenizer stays the one asked for,
and 400,000 KV tokens cost 26 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twp_sglang.demonstration.model_cache import cache_root, prepared
from twp_sglang.simulator.arguments import STOCK_CHUNK_TOKENS
from twp_sglang.simulator.step_sources import StepSource

CONTEXT_TOKENS = 32_768
"""Of the bundled model: longer than most traces ask for; SGLang's request table holds
this many entries for each possible request."""

_HEAD_SIZE = 8
"""Smallest that torch's attention takes; KV per token is 2 x 8 floats."""

_ARCHITECTURE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _HEAD_SIZE,
    "intermediate_size": _HEAD_SIZE,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": _HEAD_SIZE,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}

_CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"

_SETTINGS = (
    ("load_format", "dummy", "there are no weights to load"),
    ("sleep_on_idle", True, "an idle scheduler spins on a core that the clients need"),
    ("grammar_backend", "none", "arbitrary tokens follow no grammar; such requests are refused"),
)

_REFUSALS = {
    "tp_size": ("--tensor-parallel-size", "the profile describes the whole machine"),
    "pp_size": ("--pipeline-parallel-size", "the profile describes the whole machine"),
    "speculative_algorithm": ("--speculative-algorithm", "no model drafts or verifies"),
    "is_embedding": ("--is-embedding", "no model embeds"),
    "encoder_only": ("--encoder-only", "no model encodes"),
    "dllm_algorithm": ("--dllm-algorithm", "no model diffuses"),
    "enable_lora": ("--enable-lora", "there is no weight to adapt"),
    "lora_paths": ("--lora-paths", "there is no weight to adapt"),
    "quantization": ("--quantization", "choose a profile of the quantised model"),
    "enable_return_hidden_states": ("--enable-return-hidden-states", "no model has states"),
    "enable_hierarchical_cache": ("--enable-hierarchical-cache", "no KV is kept to move"),
    "enable_pdmux": ("--enable-pdmux", "it runs its own loop"),
}


def with_model(engine_argv: Sequence[str]) -> list[str]:
    """SGLang's arguments with a model: the bundled one where none is named.

    Raises:
        OSError: the cache, where it is kept, cannot be written.
    """
    named = ("--model-path", "--model", "--config")
    if any(word.partition("=")[0] in named for word in engine_argv):
        return list(engine_argv)
    return [*engine_argv, "--model-path", str(_bundled())]


def refused(arguments: Any) -> list[str]:
    """Why SGLang's ``arguments`` cannot be emulated; empty if they can."""
    reasons = []
    for name, (flag, why) in _REFUSALS.items():
        value = getattr(arguments, name, None)
        # A size of 1 is none; True is not a size.
        if value is True or (value and value != 1):
            reasons.append(f"{flag}: {why}; leave it out under --twp-emulate")
    if (getattr(arguments, "disaggregation_mode", None) or "null") != "null":
        reasons.append("--disaggregation-mode: no KV is kept to move; leave it out")
    return reasons


def prepare(arguments: Any, source: StepSource) -> list[str]:
    """Point ``arguments`` at the stand-in model; the lines that tell what was set.

    Raises:
        ValueError: no size of the KV pool, or the model's configuration cannot be read.
        OSError: the cache cannot be written.
    """
    notes = [f"step times of {source.name}{_about(source)}; no model runs, tokens mean nothing"]
    asked_path = arguments.model_path
    bundled = Path(asked_path) == _bundled()
    if not bundled:
        if arguments.tokenizer_path is None:
            arguments.tokenizer_path = asked_path
        arguments.model_path = str(_stand_in(_model_config(asked_path)))
        notes.append(f"model {asked_path}: its tokenizer and vocabulary only, no weight is loaded")
    if arguments.served_model_name is None:
        arguments.served_model_name = f"emulated-{source.name}" if bundled else asked_path
    for name, value, why in _SETTINGS:
        if getattr(arguments, name, None) in (None, False, "auto"):
            setattr(arguments, name, value)
            shown = "" if value is True else f" {value}"
            notes.append(f"--{name.replace('_', '-')}{shown}: {why}")
    if arguments.max_total_tokens is None:
        kv_tokens = source.profile.kv_tokens if source.profile is not None else None
        if kv_tokens is None:
            raise ValueError(
                f"step model {source.name} names no KV pool: give --max-total-tokens N, the "
                "max_total_num_tokens that an engine on that machine logs"
            )
        arguments.max_total_tokens = kv_tokens
        notes.append(f"--max-total-tokens {kv_tokens} (the profile's)")
    if not arguments.disable_overlap_schedule:
        # The CPU platform turns overlap off, for real forwards; an emulated one runs beside
        # the scheduler as a GPU does.
        from twp_sglang.platforms.cpu_reference_platform import KEEP_OVERLAP

        os.environ.setdefault(KEEP_OVERLAP, "1")
    return notes


def _about(source: StepSource) -> str:
    profile = source.profile
    if profile is None:
        return ""
    left_out = f"; they leave out {profile.leaves_out}" if profile.leaves_out else ""
    return f" ({profile.title}){left_out}"


def fill_chunk(arguments: Any) -> None:
    """SGLang's chunk of an 80 GB GPU where nothing else was chosen: without a GPU it would
    pick that of a small one."""
    if arguments.chunked_prefill_size is None:
        arguments.chunked_prefill_size = STOCK_CHUNK_TOKENS


def chunk_tokens(source: StepSource) -> int | None:
    """The chunk that suits the emulated machine, where its profile says."""
    return source.profile.chunk_tokens if source.profile is not None else None


def _model_config(path: str) -> dict[str, Any]:
    """The facts of a model that clients can notice.

    Raises:
        ValueError: there is no configuration to read.
    """
    try:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--model-path {path}: its config.json cannot be read ({reason})"
        ) from None
    text = config.get_text_config()
    return {
        "vocab_size": int(text.vocab_size),
        "max_position_embeddings": int(
            getattr(text, "max_position_embeddings", None) or CONTEXT_TOKENS
        ),
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "pad_token_id": text.pad_token_id,
    }


def _stand_in(facts: dict[str, Any]) -> Path:
    """The folder of a stand-in with these facts, made once and kept in the cache: the server
    reads it while it starts, and a killed one could not clean up."""
    config = json.dumps({**_ARCHITECTURE, **facts}, indent=1)

    def build(folder: Path) -> None:
        (folder / "config.json").write_text(config, encoding="utf-8")

    return prepared(_cached("stand-in", config), "twp-emulate: stand-in", build)


def _bundled() -> Path:
    """A model for clients that bring none: a tokenizer of bytes with a chat template."""
    facts = {
        "vocab_size": 259,
        "max_position_embeddings": CONTEXT_TOKENS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = json.dumps({**_ARCHITECTURE, **facts}, indent=1)

    def build(folder: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {symbol: 3 + index for index, symbol in enumerate(alphabet)}
        tokenizer = Tokenizer(models.BPE({"<pad>": 0, "<s>": 1, "</s>": 2, **vocabulary}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
        )
        fast.chat_template = _CHAT_TEMPLATE
        fast.save_pretrained(folder)
        (folder / "config.json").write_text(config, encoding="utf-8")

    return prepared(_cached("bytes", config + _CHAT_TEMPLATE), "twp-emulate: bytes", build)


def _cached(kind: str, content: str) -> Path:
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return cache_root() / f"emulated-{kind}-{digest}"
