"""``--twp-emulate``: what is asked of SGLang, and what is refused, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twp_sglang.config_values import OptionsError
from twp_sglang.serving import emulation
from twp_sglang.serving.launch import main
from twp_sglang.serving.options import parse
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.step_profiles import profile_names

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TWP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TWP_CPU_REFERENCE_OVERLAP", raising=False)
    return tmp_path / "cache"


def arguments(**given: Any) -> SimpleNamespace:
    """SGLang's arguments as they are before it resolves them."""
    unset = {
        "tokenizer_path": None,
        "served_model_name": None,
        "load_format": "auto",
        "sleep_on_idle": False,
        "grammar_backend": None,
        "max_total_tokens": None,
        "chunked_prefill_size": None,
        # Off in tests without SGLang; what turns it on imports SGLang.
        "disable_overlap_schedule": True,
    }
    return SimpleNamespace(**(unset | given))


def big_model(folder: Path) -> Path:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "num_hidden_layers": 80,
        "eos_token_id": [128001, 128009],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_lends_its_vocabulary_and_stops_and_nothing_else(tmp_path: Path) -> None:
    path = big_model(tmp_path / "big")
    asked = arguments(model_path=str(path))
    notes = emulation.prepare(asked, step_source("h100-llama31-8b"))
    assert asked.tokenizer_path == str(path)
    assert asked.served_model_name == str(path)
    assert asked.load_format == "dummy"
    assert asked.max_total_tokens == 413696
    config = json.loads((Path(asked.model_path) / "config.json").read_text())
    assert config["vocab_size"] == 128256
    assert config["eos_token_id"] == [128001, 128009]
    assert config["max_position_embeddings"] == 131072
    assert config["num_hidden_layers"] == 1
    assert any("lower bound" in note for note in notes)  # what the profile leaves out


def test_what_was_given_stays(tmp_path: Path) -> None:
    asked = arguments(
        model_path=str(big_model(tmp_path / "big")),
        tokenizer_path="mine",
        served_model_name="name",
        max_total_tokens=1000,
        chunked_prefill_size=256,
    )
    emulation.prepare(asked, step_source("paper-v100"))
    emulation.fill_chunk(asked)
    assert (asked.tokenizer_path, asked.served_model_name) == ("mine", "name")
    assert (asked.max_total_tokens, asked.chunked_prefill_size) == (1000, 256)


def test_without_a_model_there_is_a_tokenizer_of_bytes(cache: Path) -> None:
    argv = emulation.with_model(["--port", "1"])
    assert argv[:3] == ["--port", "1", "--model-path"]
    folder = Path(argv[3])
    assert folder.parent == cache
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "a word, päper"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("abc")) == 3
    asked = arguments(model_path=str(folder))
    emulation.prepare(asked, step_source("paper-v100"))
    assert asked.model_path == str(folder)
    assert asked.served_model_name == "emulated-paper-v100"
    assert emulation.with_model(["--model-path=m"]) == ["--model-path=m"]


def test_a_step_model_without_a_pool_size_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"l_min_ms": 5.0}))
    asked = arguments(model_path=emulation.with_model([])[1])
    with pytest.raises(ValueError, match="--max-total-tokens"):
        emulation.prepare(asked, step_source(str(path)))


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("tp_size", 2, "--tensor-parallel-size"),
        ("pp_size", 2, "--pipeline-parallel-size"),
        ("speculative_algorithm", "EAGLE", "--speculative-algorithm"),
        ("is_embedding", True, "--is-embedding"),
        ("quantization", "fp8", "--quantization"),
        ("disaggregation_mode", "decode", "--disaggregation-mode"),
    ],
)
def test_what_cannot_be_emulated_names_its_flag(field: str, value: Any, flag: str) -> None:
    reasons = emulation.refused(SimpleNamespace(**({"tp_size": 1} | {field: value})))
    assert len(reasons) == 1
    assert reasons[0].startswith(flag)


def test_plain_arguments_are_not_refused() -> None:
    assert emulation.refused(SimpleNamespace(tp_size=1, pp_size=1, quantization=None)) == []


def test_an_unknown_name_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--twp-emulate", "h1000"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in profile_names())


@pytest.mark.parametrize("text", ["{", "[]", '{"l_min_ms": -1}', '{"step": {"kind": "spline"}}'])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(OptionsError, match=r"--twp-emulate .*bad\.json"):
        parse(["--twp-emulate", str(path)])


def test_the_path_is_absolute_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"l_min_ms": 5.0}))
    monkeypatch.chdir(tmp_path)
    assert parse(["--twp-emulate", "mine.json"]).emulate == str(tmp_path / "mine.json")
    assert parse(["--twp-emulate", "paper-v100"]).emulate == "paper-v100"
