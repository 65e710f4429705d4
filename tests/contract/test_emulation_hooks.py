"""``python -m patches check --emulation``: the emulated engine's hooks, judged by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from synthetic_wheels import modules_for, write_wheel

from patches.__main__ import main
from patches.sglang_0_5.versions import EMULATION_TABLES, HTTP_TABLES, TABLES

HOOKS = EMULATION_TABLES[-1].hooks
STEERING = (*TABLES[-1].hooks, *HTTP_TABLES[-1].hooks)
WORKER = "sglang.srt.managers.tp_worker"
WHEELS = os.environ.get("TWP_SGLANG_WHEELS")


def check(wheel: Path, *flags: str) -> int:
    return main(["check", "--wheel", str(wheel), *flags])


def test_the_two_tables_are_judged_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(tmp_path / "s.whl", modules_for(HOOKS))
    assert check(wheel, "--emulation") == 0
    assert check(wheel) == 1  # nothing of the steering is in it
    steering = write_wheel(tmp_path / "t.whl", modules_for(STEERING))
    assert check(steering) == 0
    assert check(steering, "--emulation") == 1
    assert "forward_batch_generation" in capsys.readouterr().out


def test_a_forward_that_takes_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = modules_for(HOOKS)
    modules[WORKER] = modules[WORKER].replace("self, batch,", "self, batch, plan,")
    assert check(write_wheel(tmp_path / "s.whl", modules), "--emulation") == 1
    assert "FAIL  sglang.srt.managers.tp_worker" in capsys.readouterr().out


def test_what_the_emulation_reads_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = modules_for(HOOKS)
    modules[WORKER] = modules[WORKER].replace("    enable_overlap = None\n", "")
    assert check(write_wheel(tmp_path / "s.whl", modules), "--emulation") == 1
    assert "TpModelWorker.enable_overlap is gone" in capsys.readouterr().out


@pytest.mark.skipif(
    WHEELS is None, reason="TWP_SGLANG_WHEELS names no folder with SGLang's released wheels"
)
@pytest.mark.parametrize("version", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_released_wheels_fit(version: str) -> None:
    (wheel,) = Path(str(WHEELS)).glob(f"sglang-{version}-*.whl")
    assert check(wheel, "--emulation") == 0
