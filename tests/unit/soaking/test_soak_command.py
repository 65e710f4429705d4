"""The command line of the soak: what it takes, and what it says to the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from twp_sglang import soak
from twp_sglang.soaking.arguments import SettingsError, parse
from twp_sglang.soaking.processes import ProcessWatch, launcher_at


def test_flags_become_settings() -> None:
    asked = parse(
        ["--url", "http://h:1/", "--minutes", "3", "--mix", "serve=2,abort=1", "--no-changes"]
    )
    assert asked.serve is None
    assert asked.settings.url == "http://h:1"
    assert asked.settings.minutes == 3.0
    assert (asked.settings.mix.serve, asked.settings.mix.malformed) == (2.0, 0.0)
    assert not asked.settings.changes


def test_a_server_to_start_stands_after_the_dashes() -> None:
    asked = parse(["--minutes", "1", "--", "--model-path", "m", "--minutes", "x"])
    assert asked.serve == ["--model-path", "m", "--minutes", "x"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--url: missing"),
        (["--url", "u", "--", "--model-path", "m"], "leave one"),
        (["--url", "u", "--minutes", "-1"], "--minutes -1"),
        (["--url", "u", "--minutes", "soon"], "--minutes soon"),
        (["--url", "u", "--burst-s", "50"], "burst_every_s"),
        (["--url", "u", "--mix", "serve"], "KIND=WEIGHT"),
        (["--url", "u", "--mix", "sing=1"], "kinds: serve"),
        (["--url", "u", "--mix", "serve=0"], "all weights are 0"),
        (["--url", "u", "--mix", "serve=much"], "--serve much"),
        (["--url", "u", "--api-key-env", "NO_SUCH_VARIABLE_HERE"], "is not set"),
    ],
)
def test_bad_command_lines_name_the_flag(argv: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse(argv)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_KEY", "k")
    assert parse(["--url", "u", "--api-key-env", "SOAK_KEY"]).settings.api_key == "k"


def test_no_server_is_a_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--url", "http://127.0.0.1:1", "--minutes", "1"]) == 2
    assert "soak: http://127.0.0.1:1: GET /server_info" in capsys.readouterr().err


def test_the_listener_is_found_by_its_port(tmp_path: Path) -> None:
    listener = subprocess.Popen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert listener.stdout is not None
        port = int(listener.stdout.readline().decode().split("port ")[1].split()[0])
        assert launcher_at(f"http://127.0.0.1:{port}") == listener.pid
        watch = ProcessWatch(listener.pid)
        watch.read(0.0)
        assert watch.names[listener.pid] == "http.server"
        assert watch.readings[listener.pid][0].rss_mib > 1
    finally:
        listener.kill()
    # Not waited for yet: a zombie, which is noted once.
    until = time.monotonic() + 10
    while psutil.Process(listener.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
    watch.read(1.0)
    watch.read(2.0)
    assert watch.ended == [f"http.server (pid {listener.pid}): zombie at 1 s"]
    listener.wait()
    assert watch.left_over(0.0) == []
    assert launcher_at("http://example.invalid") is None
