"""The cached folder is whole or absent, whatever interrupts its making."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from twp_sglang.demonstration import model_cache
from twp_sglang.demonstration.model_cache import MANIFEST, cache_root, fault_of, prepared


def build(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"w" * 1000)
    (folder / "config.json").write_text("{}")


def slow_build(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"half")
    (folder.parent / "begun").touch()
    time.sleep(60)


def counting_build(folder: Path) -> None:
    with (folder.parent / "builds").open("a") as file:
        file.write("x")
    time.sleep(0.3)
    build(folder)


def prepare_counting(goal: Path) -> None:
    prepared(goal, "test", counting_build)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


class TestRoot:
    def test_own_variable_wins(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TWP_CACHE_DIR", str(tmp_path / "own"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_root() == tmp_path / "own"

    def test_xdg(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("TWP_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_root() == tmp_path / "twp-sglang"

    @pytest.mark.parametrize("value", ["", "relative/path"])
    def test_xdg_invalid_is_ignored(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
    ) -> None:
        monkeypatch.delenv("TWP_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_root() == tmp_path / ".cache" / "twp-sglang"


class TestPrepared:
    def test_builds_once(self, tmp_path: Path) -> None:
        goal = tmp_path / "deep" / "model"
        assert prepared(goal, "test", build) == goal
        assert fault_of(goal) is None

        def never(folder: Path) -> None:
            raise AssertionError("built again")

        assert prepared(goal, "test", never) == goal
        assert visible(goal.parent) == ["model"]

    @pytest.mark.parametrize(
        "harm",
        [
            lambda goal: (goal / "weights.bin").write_bytes(b"w" * 999),
            lambda goal: (goal / "weights.bin").write_bytes(b"w" * 999 + b"x"),
            lambda goal: (goal / "config.json").unlink(),
            lambda goal: (goal / MANIFEST).write_text('{"source": "te'),
            lambda goal: (goal / MANIFEST).unlink(),
        ],
        ids=["short", "changed", "absent", "torn manifest", "no manifest"],
    )
    def test_damage_is_seen_and_mended(self, tmp_path: Path, harm: object) -> None:
        goal = prepared(tmp_path / "model", "test", build)
        harm(goal)  # type: ignore[operator]
        assert fault_of(goal) is not None
        said: list[str] = []
        prepared(goal, "test", build, said.append)
        assert fault_of(goal) is None
        assert any("damaged" in line for line in said)
        assert visible(tmp_path) == ["model"]

    def test_failed_build_leaves_nothing(self, tmp_path: Path) -> None:
        def fail(folder: Path) -> None:
            (folder / "weights.bin").write_bytes(b"half")
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            prepared(tmp_path / "model", "test", fail)
        assert visible(tmp_path) == []

    def test_killed_build_leaves_no_model_and_no_lock(self, tmp_path: Path) -> None:
        goal = tmp_path / "model"
        child = multiprocessing.get_context("spawn").Process(
            target=prepared, args=(goal, "test", slow_build)
        )
        child.start()
        end = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        (tmp_path / "begun").unlink()
        assert not goal.exists()
        assert visible(tmp_path), "the kill came too late to test anything"
        prepared(goal, "test", build)
        assert fault_of(goal) is None
        assert visible(tmp_path) == ["model"]

    def test_two_at_once_build_once(self, tmp_path: Path) -> None:
        goal = tmp_path / "model"
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=prepare_counting, args=(goal,)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0]
        assert (tmp_path / "builds").read_text() == "x"
        assert fault_of(goal) is None

    def test_manifest_covers_every_file(self, tmp_path: Path) -> None:
        goal = prepared(tmp_path / "model", "package 1.0", build)
        manifest = model_cache.Manifest.model_validate_json((goal / MANIFEST).read_text())
        assert set(manifest.files) == {"weights.bin", "config.json"}
        assert manifest.source == "package 1.0"
