"""Runtime control on a real server: two replicas, an admin key, and a queue to explain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine_cpu.server import Reply, Server, serving, until

ADMIN_KEY = "an-admin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The paper's machine twice, paced to few rows so that requests wait for seconds."""
    folder = tmp_path_factory.mktemp("control")
    with serving(
        folder,
        folder,
        "--twp-emulate",
        "paper-v100",
        "--data-parallel-size",
        "2",
        "--admin-api-key",
        ADMIN_KEY,
        "--twp-policy",
        "twp",
        "--twp-h0-tokens",
        "200",
        "--twp-l-min-ms",
        "43",
        "--twp-trace",
        str(folder / "steps"),
        own_model=False,
        orderly=False,
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
    ) as running:
        yield running


def patch(server: Server, fields: Any, key: str | None = ADMIN_KEY) -> Reply:
    """PATCH /twp/config."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return server.request("/twp/config", fields, 30.0, method="PATCH", headers=headers)


def states(server: Server) -> list[dict[str, Any]]:
    """The state of every replica."""
    found: list[dict[str, Any]] = server.request("/twp/state").body["replicas"]
    return found


def test_both_replicas_answer_in_order(server: Server) -> None:
    found = states(server)
    assert [one["replica"] for one in found] == [0, 1]
    assert all(one["deciding"] for one in found)
    assert "live page at /twp" in server.log()


def test_a_change_needs_the_admin_key_and_reading_does_not(server: Server) -> None:
    for key in (None, "another"):
        assert patch(server, {"gamma": 0.2}, key).status == 401
    assert server.request("/twp/config").body["config"]["gamma"] == 0.15


def test_a_change_reaches_both_replicas_and_the_log(server: Server) -> None:
    made = patch(server, {"gamma": 0.25, "beta": 0.5})
    assert made.status == 200, made
    assert len(made.body["replicas"]) == 2
    shown = server.request("/twp/config").body
    assert (shown["config"]["gamma"], shown["revision"]) == (0.25, 1)
    assert "replicas" not in shown, "both have the same"
    assert {one["revision"] for one in states(server)} == {1}
    log = server.log()
    assert "TWP audit: changed by 127.0.0.1:" in log
    assert "beta 0.25 -> 0.5, gamma 0.15 -> 0.25 (revision 1)" in log
    assert log.count("TWP configuration changed by 127.0.0.1:") == 2
    # One trace per configuration and replica.
    names = {path.name for path in (Path(str(states(server)[0]["trace"])).parent).iterdir()}
    assert {"steps-dp0-1.jsonl", "steps-dp1-1.jsonl"} <= names


def test_a_refused_change_changes_nothing(server: Server) -> None:
    refused = patch(server, {"gamma": 0.1, "h_min_tokens": 900})
    assert refused.status == 400
    assert "lower h_min_tokens" in refused.body["error"]
    assert server.request("/twp/config").body["config"]["gamma"] == 0.25


def test_waiting_requests_are_explained_and_a_change_lets_them_in(server: Server) -> None:
    done: dict[str, float] = {}

    def send(rid: str) -> None:
        body = {
            "text": "x" * 60,
            "rid": rid,
            "sampling_params": {"max_new_tokens": 60, "ignore_eos": True},
        }
        assert server.request("/generate", body).status == 200
        done[rid] = time.monotonic()

    names = [f"asked-{number}" for number in range(40)]
    threads = [threading.Thread(target=send, args=(rid,)) for rid in names]
    for thread in threads:
        thread.start()
    time.sleep(3.0)
    found = {rid: server.request(f"/twp/explain/{rid}") for rid in names}
    waiting = {rid: reply.body for rid, reply in found.items() if reply.status == 200}
    by_state = {one["state"] for one in waiting.values()}
    assert by_state == {"waiting", "running"}
    queued = [one for one in waiting.values() if one["state"] == "waiting"]
    for replica in (0, 1):
        mine = sorted(one["position"] for one in queued if one["replica"] == replica)
        assert mine, "both replicas hold requests back"
    first = min(queued, key=lambda one: one["position"])
    assert "more than the window" in first["why"]
    assert first["waited_s"] > 1.0
    running = next(one for one in waiting.values() if one["state"] == "running")
    assert 0 < running["output_tokens"] < 60
    assert all("requests wait: those who run" in one["why"] for one in states(server))
    # A window with room for all of them.
    assert patch(server, {"h0_tokens": 4000, "h_min_tokens": 4000}).status == 200
    until(lambda: sum(one["queue"] for one in states(server)) == 0)
    assert len(done) < 40, "they were let in, not just served in turn"
    for thread in threads:
        thread.join(60)
    assert len(done) == 40
    gone = server.request(f"/twp/explain/{names[0]}")
    assert (gone.status, "it has ended" in gone.body["error"]) == (404, True)


def test_events_come_while_somebody_reads(server: Server) -> None:
    with urllib.request.urlopen(server.url + "/twp/events", timeout=10) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        lines = [stream.readline().decode() for _ in range(5)]
    assert lines[0] == "event: past\n"
    assert lines[3] == "event: look\n"
    look = json.loads(lines[4].removeprefix("data: "))
    assert [one["replica"] for one in look["replicas"]] == [0, 1]
    assert look["replicas"][0]["why"]


def test_the_page_and_its_parts_are_served(server: Server) -> None:
    page = server.request("/twp")
    assert page.status == 200
    assert "Token Window Pacing" in page.body
    for part in ("page.js", "charts.js", "uplot.js", "page.css"):
        assert server.request(f"/twp/static/{part}").status == 200
    assert server.request("/twp/static/missing.js").status == 404


def test_the_commands_in_the_document_work(server: Server) -> None:
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    curls = [line for line in lines if line.startswith("curl ")]
    tops = [line for line in lines if line.startswith("python ") and "--once" in line]
    assert len(curls) == 4
    assert tops
    body = {"text": "x", "rid": "my-request", "sampling_params": {"max_new_tokens": 100}}
    asking = threading.Thread(target=server.request, args=("/generate", body))
    asking.start()
    time.sleep(0.5)
    for line in curls + tops:
        done = subprocess.run(
            line.replace("http://127.0.0.1:30000", server.url).replace("python", sys.executable, 1),
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "KEY": ADMIN_KEY},
        )
        assert done.returncode == 0, line + done.stderr
        if line in curls:
            answer = json.loads(done.stdout)
            assert answer.keys() & {"replicas", "config", "state"}, line + done.stdout
        else:
            assert "decides" in done.stdout
    asking.join(60)
    assert server.request("/twp/config").body["config"]["gamma"] == 0.2
