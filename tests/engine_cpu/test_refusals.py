"""Combinations that TWP does not steer are refused at start, naming flag and way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from twp_sglang.serving import launch

REFUSED = [
    (["--pp-size", "2"], "--pipeline-parallel-size"),
    (["--disaggregation-mode", "prefill"], "--disaggregation-mode"),
    (["--encoder-only"], "--encoder-only"),
    (["--dllm-algorithm", "LowConfidence"], "--dllm-algorithm"),
    (["--enable-pdmux"], "--enable-pdmux"),
    (["--enable-hisparse"], "--enable-hisparse"),
    (["--speculative-algorithm", "NGRAM"], "--speculative-algorithm"),
    (["--is-embedding"], "--is-embedding"),
    (["--enable-lora"], "--enable-lora"),
    (["--schedule-policy", "lpm"], "--schedule-policy"),
    (["--use-ray"], "--use-ray"),
    (["--attn-dp-size", "2", "--tp-size", "2"], "--attn-dp-size"),
]


@pytest.mark.parametrize(("flags", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_refused_before_any_model_is_looked_for(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch.main(["--model-path", "/nowhere", *flags]) == 2
    message = capsys.readouterr().err
    assert f"twp: {named}" in message
    assert "--twp-policy off" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", ["SGLANG_USE_MLX", "SGLANG_RUST_SERVER"])
def test_refused_environment(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "1")
    assert launch.main(["--model-path", "/nowhere"]) == 2
    assert f"{name}=1" in capsys.readouterr().err


def test_a_trace_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model-path", "/nowhere", "--twp-policy", "off", "--twp-trace", str(tmp_path)]
    assert launch.main(flags) == 2
    assert "--twp-policy off has no step trace" in capsys.readouterr().err


def test_nonsense_faults_are_refused_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWP_FAULT_INJECTION", "nonsense")
    assert launch.main(["--model-path", "/nowhere"]) == 2
    assert "TWP_FAULT_INJECTION: 'nonsense'" in capsys.readouterr().err
