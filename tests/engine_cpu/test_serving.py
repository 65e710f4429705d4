"""What users do to a server, on the real engine: every request gets a terminal reply."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from patches.sglang_0_5.versions import TABLES
from tests.engine_cpu.agreement import FIXED_WINDOW, takes_the_simulators_steps
from tests.engine_cpu.server import Reply, Server, serving, until
from twp_sglang import audit

WINDOW_TOKENS = 300
POOL_TOKENS = 4096


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    with serving(
        model,
        folder,
        "--max-total-tokens",
        str(POOL_TOKENS),
        "--twp-policy",
        "twp",
        "--twp-h0-tokens",
        str(WINDOW_TOKENS),
        "--twp-b0",
        "4",
        "--twp-trace",
        str(folder / "trace"),
        orderly=False,
    ) as running:
        yield running


def prompt(seed: int, tokens: int) -> list[int]:
    """Distinct random prompts, so that the prefix cache never hits."""
    source = random.Random(seed)
    return [source.randint(3, 1000) for _ in range(tokens)]


def at_once(calls: list[Callable[[], Reply]]) -> list[Reply]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def in_background(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_says_that_it_decides(server: Server) -> None:
    lines = [line for line in server.log().splitlines() if "TWP decides admissions" in line]
    assert len(lines) == 1
    count = len(TABLES[-1].hooks)
    assert f"{count} of {count} hooks proved" in lines[0]
    state = server.twp()
    assert {
        "policy",
        "deciding",
        "fallbacks",
        "window_tokens",
        "load_tokens",
        "batch",
        "sigma",
        "queue",
        "forced",
        "config",
    } <= set(state)
    assert (state["policy"], state["deciding"], state["fallbacks"]) == ("twp", True, 0)
    assert state["config"]["h0_tokens"] == WINDOW_TOKENS


def test_burst_is_served_whole_and_every_admission_kept_the_guards(server: Server) -> None:
    source = random.Random(1)
    lengths = [source.randint(4, 80) for _ in range(60)]
    replies = at_once(
        [
            lambda i=i, n=n: server.generate(prompt(i, source.choice([10, 70, 200])), n)
            for i, n in enumerate(lengths)
        ]
    )
    assert [reply.status for reply in replies] == [200] * 60
    assert [len(reply.body["output_ids"]) for reply in replies] == lengths
    server.wait_idle()
    time.sleep(0.5)  # the trace is written behind the engine
    report, _ = audit.audit(Path(server.twp()["trace"]))
    assert report.admissions >= 60
    assert report.violations == []


def test_window_bounds_the_load_while_many_wait(server: Server) -> None:
    seen: list[tuple[int, float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            state = server.twp()
            seen.append((state["load_tokens"], state["window_tokens"], state["queue"]))
            time.sleep(0.02)

    watcher = in_background(watch)
    replies = at_once([lambda i=i: server.generate(prompt(100 + i, 12), 60) for i in range(40)])
    done.set()
    watcher.join()
    assert all(reply.status == 200 for reply in replies)
    busy = [sample for sample in seen if sample[2] > 0]
    assert busy, "the gate never made anyone wait"
    # One forced admission (60 tokens) may stand above the window that shrank meanwhile.
    assert max(load for load, _, _ in busy) <= 2 * WINDOW_TOKENS + 60


def test_longer_than_the_window_is_served(server: Server) -> None:
    reply = server.generate(prompt(7, 10), 3 * WINDOW_TOKENS)
    assert reply.status == 200
    assert len(reply.body["output_ids"]) == 3 * WINDOW_TOKENS


def test_longer_than_the_window_is_forced_in_under_load(server: Server) -> None:
    """It cannot pass the gate; starvation lets it in beside the others."""
    stop = threading.Event()

    def traffic(worker: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            assert server.generate(prompt(worker * 10_000 + count, 5), 20).status == 200

    threads = [in_background(lambda w=w: traffic(w)) for w in range(6)]
    try:
        reply = server.generate(prompt(8, 10), 3 * WINDOW_TOKENS)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert reply.status == 200


def test_prompt_beyond_the_context_is_a_clear_400(server: Server) -> None:
    reply = server.generate(prompt(9, 5000), 10)
    assert reply.status == 400
    assert "4096" in json.dumps(reply.body)


def test_two_hundred_clients_all_get_their_answer(server: Server) -> None:
    replies = at_once(
        [lambda i=i: server.generate(prompt(1000 + i, 8), 5 + i % 7) for i in range(200)]
    )
    assert [reply.status for reply in replies] == [200] * 200
    server.wait_idle()


def test_several_completions_per_request(server: Server) -> None:
    reply = server.generate(prompt(10, 10), 12, n=3)
    assert reply.status == 200
    assert [len(item["output_ids"]) for item in reply.body] == [12, 12, 12]


def test_abort_in_the_queue_and_while_decoding(server: Server) -> None:
    server.wait_idle()
    results: dict[str, Reply] = {}

    def ask(name: str, tokens: int) -> None:
        results[name] = server.generate(prompt(hash(name) % 1000, 10), tokens, rid=name)

    runner = in_background(lambda: ask("runner", 2500))
    until(lambda: server.twp()["batch"] == 1)
    waiters = [in_background(lambda n=n: ask(f"waiter-{n}", 200)) for n in range(3)]
    until(lambda: server.twp()["queue"] == 3)
    assert server.twp()["closed"] == "window"
    assert server.request("/abort_request", {"rid": "waiter-1"}).status == 200
    until(lambda: "waiter-1" in results)
    assert server.request("/abort_request", {"rid": "runner"}).status == 200
    for thread in [runner, *waiters]:
        thread.join(60)
    assert sorted(results) == ["runner", "waiter-0", "waiter-1", "waiter-2"]
    assert len(results["waiter-0"].body["output_ids"]) == 200
    assert len(results["waiter-2"].body["output_ids"]) == 200
    assert "abort" in json.dumps(results["waiter-1"].body)
    assert "abort" in json.dumps(results["runner"].body)
    server.wait_idle()


def test_disconnected_client_frees_its_place(server: Server) -> None:
    server.wait_idle()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {
        "input_ids": prompt(11, 10),
        "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True},
        "stream": True,
    }
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().readline()
    until(lambda: server.twp()["batch"] == 1)
    connection.close()
    until(lambda: server.twp()["batch"] == 0)
    assert server.generate(prompt(12, 10), 5).status == 200


def test_malformed_bodies_are_refused_and_harm_nobody(server: Server) -> None:
    for body in (
        {"input_ids": [], "sampling_params": {"max_new_tokens": 4}},
        {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}},
        {"sampling_params": {"max_new_tokens": 4}},
        {"input_ids": "text", "sampling_params": 7},
    ):
        assert 400 <= server.request("/generate", body).status < 500, body
    assert server.generate(prompt(13, 10), 5).status == 200


def test_every_step_is_the_simulators(server: Server) -> None:
    """With a decode step after each chunk; ``test_simulator_agrees.py`` has mixed steps."""
    server.wait_idle()
    assert server.request("/flush_cache", {}).status == 200
    before = server.request("/twp/config").body["config"]
    assert server.request("/twp/config", FIXED_WINDOW, method="PATCH").status == 200
    takes_the_simulators_steps(server, step_kind="interval", decode_chunk_tokens=64)
    back = {name: before[name] for name in FIXED_WINDOW}
    assert server.request("/twp/config", back, method="PATCH").status == 200


def test_nothing_fell_back(server: Server) -> None:
    """Last in the file: after all of the above TWP still decides and nothing leaked."""
    server.wait_idle()
    state = server.twp()
    assert (state["deciding"], state["fallbacks"]) == (True, 0)
    assert "TWP failed" not in server.log()
    assert server.request("/flush_cache", {}).status == 200
