"""Three minutes of everything at once, then odd requests one by one, on one server."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.engine_cpu import odd_requests
from tests.engine_cpu.server import Server, serving, text_model, until
from twp_sglang import soak
from twp_sglang.soaking.processes import ProcessWatch

REPLY_WITHIN_S = 60.0
"""An odd request's reply; the longest answer here takes some seconds."""


def odd(examples: int) -> settings:
    """No shrinking: each further try would cost a request, and the body is in the failure."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("soak")
    with serving(
        text_model(folder / "model"),
        folder,
        *("--max-total-tokens", "8192", "--context-length", "512", "--enable-metrics"),
        *("--enable-priority-scheduling", "--disable-priority-preemption"),
        *("--twp-h0-tokens", "600", "--twp-chunk-tokens", "64"),
        *("--twp-trace", str(folder / "trace")),
    ) as running:
        yield running


class Replies:
    """What odd requests were answered, by status."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self.statuses: Counter[int] = Counter()

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        """Any status will do but a fault's, and the reply must end."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REPLY_WITHIN_S)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body).encode(),
                {"Content-Type": "application/json", **(headers or {})},
            )
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        self.statuses[answer.status] += 1
        assert answer.status < 500, (answer.status, said[:300], body)

    def of_both_kinds(self) -> None:
        """A test that only ever met one of them would test half."""
        assert self.statuses[200] >= 3, self.statuses
        assert sum(self.statuses.values()) - self.statuses[200] >= 3, self.statuses


def still_decides(server: Server) -> None:
    server.wait_idle()
    state = server.twp()
    assert (state["deciding"], state["fallbacks"]) == (True, 0), state["fallback_reason"]


@pytest.mark.timeout(600)
def test_soak(server: Server, tmp_path: Path) -> None:
    result = tmp_path / "soak.json"
    code = soak.main(
        [
            *("--url", server.url, "--minutes", "3", "--measure-s", "8", "--json", str(result)),
            *("--longest-prompt-tokens", "400", "--longest-output-tokens", "90"),
        ]
    )
    found = json.loads(result.read_text())
    assert code == 0, found["invariants"]
    verdicts = {item["name"]: item["verdict"] for item in found["invariants"]}
    # Nothing was held for want of being looked at; the server's end comes below.
    unjudged = {name for name, verdict in verdicts.items() if verdict == "not judged"}
    assert unjudged == {"clean shutdown"}
    assert found["changes"]["taken"] > 3
    assert found["onlookers"]["explained"] > 3
    assert found["requests"]["endings"]["leave_streaming"]["left"] > 3
    assert found["requests"]["endings"]["abort"]["aborted"] > 3
    assert found["deepest_queue"] > 3
    still_decides(server)


@pytest.mark.parametrize(
    "prompt",
    [
        {"text": ""},
        {"input_ids": [[]]},
        {"input_ids": [5, 99_999]},
        {"input_ids": [5, -1]},
        {"input_ids": [5] * 600},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_would_end_the_scheduler_is_refused(
    server: Server, prompt: dict[str, Any], stream: bool
) -> None:
    body = {**prompt, "sampling_params": {"max_new_tokens": 2}, "stream": stream}
    reply = server.request("/generate", body)
    refused = reply.status == 400 or (stream and 'code":400' in reply.body)
    assert refused, reply
    assert server.generate([5, 6], 3).status == 200


@pytest.mark.timeout(400)
def test_odd_requests(server: Server) -> None:
    replies = Replies(server)

    @odd(150)
    @given(odd_requests.generate_bodies)
    def generate(body: Any) -> None:
        replies.send("POST", "/generate", body)

    @odd(60)
    @given(odd_requests.openai_bodies)
    def openai(body: dict[str, Any]) -> None:
        chat = "messages" in body
        replies.send("POST", "/v1/chat/completions" if chat else "/v1/completions", body)

    @odd(60)
    @given(odd_requests.headers)
    def by_header(headers: dict[str, str]) -> None:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2}}
        replies.send("POST", "/generate", body, headers)

    generate()
    replies.of_both_kinds()
    openai()
    by_header()
    still_decides(server)


@pytest.mark.timeout(300)
def test_odd_changes_and_questions(server: Server) -> None:
    replies = Replies(server)
    before = server.request("/twp/config").body
    changeable = {
        name: value for name, value in before["config"].items() if name not in before["fixed"]
    }

    @odd(80)
    @given(odd_requests.patches)
    def change(body: Any) -> None:
        replies.send("PATCH", "/twp/config", body)

    @odd(40)
    @given(odd_requests.request_ids)
    def explain(rid: str) -> None:
        replies.send("GET", "/twp/explain/" + quote(rid, safe=""))

    change()
    replies.of_both_kinds()
    explain()
    # Whatever was taken is in force, and the server serves by it.
    assert server.generate([5, 6, 7], 6).status == 200
    replies.send("PATCH", "/twp/config", changeable)
    assert server.request("/twp/config").body["config"] == before["config"]
    still_decides(server)


def test_named_clients_are_counted_and_take_turns(server: Server) -> None:
    ended: list[str] = []

    def send(client: str, number: int) -> None:
        body = {
            # No two alike: the prefix cache would take their prompts off the queue.
            "text": f"{client} {number:03} " + "x" * 400,
            "sampling_params": {"max_new_tokens": 8, "ignore_eos": True},
        }
        reply = server.request("/generate", body, headers={"X-TWP-Client": client})
        assert reply.status == 200, reply
        ended.append(client)

    known = server.twp()["clients"]
    with ThreadPoolExecutor(43) as pool:
        many = [pool.submit(send, "sends-many", number) for number in range(40)]
        until(lambda: server.twp()["queue"] >= 15)
        few = [pool.submit(send, "sends-few", number) for number in range(3)]
        until(lambda: server.twp()["clients"] == known + 2)
        for answer in [*many, *few]:
            answer.result()
    assert "sends-few" not in ended[-5:], ended
    assert server.twp()["clients"] == known + 2
    still_decides(server)


def test_ends_without_a_process_left(server: Server) -> None:
    """Last in the file: after all of this, SIGTERM to the launcher ends everything."""
    watch = ProcessWatch(server.process.pid)
    watch.read(0.0)
    assert len(watch.names) >= 3
    server.process.terminate()
    assert server.process.wait(30) == 0
    assert watch.left_over(10.0) == []
