"""Combinations that TWP does not steer are refused at start, naming flag and way out."""

from __future__ import annotations

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
    (["--enable-priority-scheduling"], "--enable-priority-scheduling"),
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
