"""``python -m twp_sglang.top`` against TWP's own routes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from rich.console import Console
from small_server import Replica, serving

from twp_sglang.terminal import command
from twp_sglang.terminal.client import Look
from twp_sglang.terminal.history import History
from twp_sglang.terminal.plain import lines
from twp_sglang.terminal.view import render


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "twp_sglang.top", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def held(requests: int = 60) -> Replica:
    replica = Replica(l_min_ms=10.0, h0_tokens=200.0)
    replica.arrive(requests)
    return replica


def test_once_writes_a_line_per_replica_and_ends() -> None:
    # As many as still wait when a busy machine has started the command.
    with serving(held(1000), Replica(1)) as server:
        time.sleep(0.5)
        done = top(server.url, "--once")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert " replica 0 | twp decides | itl " in first
    assert "requests wait: those who run still owe" in first
    assert second.endswith("Idle: nobody waits, nobody runs.")


def test_in_a_terminal_it_draws_a_frame() -> None:
    with serving(held()) as server:
        time.sleep(0.5)
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "twp_sglang.top", server.url, "--once"],
            stdout=follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(follower)
        text = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            text += chunk
        assert process.wait(30) == 0
    shown = text.decode()
    for part in ("small-model", "twp decides", "requests wait", "K in H", "KV cache", "held: "):
        assert part in shown, shown


def test_nobody_there_is_said_in_one_line() -> None:
    done = top("http://127.0.0.1:9", "--once")
    assert done.returncode == 1
    assert done.stderr.startswith("top: http://127.0.0.1:9: cannot be reached (")
    assert len(done.stderr.splitlines()) == 1


def test_a_key_is_asked_for_and_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(Replica(), api_key="k") as server:
        refused = top(server.url, "--once")
        assert (refused.returncode, "TWP_API_KEY" in refused.stderr) == (1, True)
        wrong = top(server.url, "--once", "--api-key", "x")
        assert (wrong.returncode, "does not take this key" in wrong.stderr) == (1, True)
        monkeypatch.setenv("TWP_API_KEY", "k")
        assert top(server.url, "--once").returncode == 0


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"not found", "--twp-policy off"),
        (404, b'{"error": "TWP is off in this server"}', "TWP is off"),
        (200, b"<html>", "no state of TWP"),
        (504, b'{"error": "the scheduler hangs"}', "the scheduler hangs"),
    ],
)
def test_servers_without_twp_are_told_apart(status: int, body: bytes, said: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        done = top(f"127.0.0.1:{other.server_port}", "--once")
        other.shutdown()
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (":30001", "http://127.0.0.1:30001"),
        ("host:1", "http://host:1"),
        ("https://host/", "https://host"),
        ("http://host:1/twp", "http://host:1"),
    ],
)
def test_addresses_are_taken_as_people_type_them(typed: str, meant: str) -> None:
    assert command._address(typed) == meant


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("policy", ["twp", "observe", "slo", "fcfs", "dynamic-batch"])
def test_every_policy_fits_every_width(width: int, policy: str) -> None:
    from patches import control

    replica = Replica(policy=policy)
    replica.arrive(3)
    for _ in range(4):
        replica.step()
    said = control.answer(replica.runtime, replica.scheduler, {"ask": "state", "id": 1})
    history = History()
    history.add(Look(0.0, "m" * 60, [{"replica": 0, **said["state"]}]))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render(history, width, "trouble"))
    drawn = console.export_text().splitlines()
    assert max(len(line) for line in drawn) <= width
    assert "None" not in "\n".join(drawn)


def test_an_objective_out_of_reach_is_said_beside_it() -> None:
    state = {
        **{"replica": 0, "policy": "slo", "deciding": True, "queue": 0, "batch": 1, "why": "w."},
        **{"itl_slo_ms": 300.0, "itl_ms": 350.0, "load_tokens": 10, "window_tokens": 20.0},
    }
    assert "itl 350.0 ms of 300 | " in lines(Look(0.0, "m", [state]))[0]
    lost = Look(0.0, "m", [{**state, "itl_slo_reachable": False}])
    assert "itl 350.0 ms of 300, out of reach | " in lines(lost)[0]
