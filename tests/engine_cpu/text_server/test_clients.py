"""Features that need a tokenizer, and other people's clients, against the real engine."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.engine_cpu.server import Server
from tests.engine_cpu.text_server.one_server import WIDE_TOKENS, TextServer


@pytest.fixture(scope="module", autouse=True)
def narrow_window(text_server: TextServer) -> Iterator[None]:
    """So narrow that forty clients at once have to wait for each other."""

    def change(**fields: float) -> None:
        changed = text_server.server.request("/twp/config", fields, method="PATCH")
        assert changed.status == 200, changed

    change(h0_tokens=200, b0=4)
    yield
    change(h0_tokens=WIDE_TOKENS, b0=8)


def ask(server: Server, text: str, **params: object) -> str:
    reply = server.request("/generate", {"text": text, "sampling_params": params})
    assert reply.status == 200, reply
    answer: str = reply.body["text"]
    return answer


def test_stop_string(server: Server) -> None:
    letters = ["a", "e", "i", "o", "u", "s", "t", "n"]
    reply = server.request(
        "/generate",
        {
            "text": "abc",
            "sampling_params": {
                # Random weights: each byte is about as likely as any other, so that one
                # of eight letters comes soon.
                "max_new_tokens": 600,
                "temperature": 1.0,
                "ignore_eos": True,
                "stop": letters,
            },
        },
    )
    assert reply.status == 200
    reason = reply.body["meta_info"]["finish_reason"]
    assert reason["type"] == "stop"
    assert reason["matched"] in letters
    assert not any(letter in reply.body["text"] for letter in letters)


def test_grammar_constrained_output_under_load(server: Server) -> None:
    """Grammar requests enter the queue late, from SGLang's grammar queue."""
    import concurrent.futures

    def constrained(number: int) -> str:
        return ask(server, f"{number}", max_new_tokens=12, temperature=1.0, regex="[0-9]{3,6}x")

    def plain(number: int) -> str:
        return ask(server, f"p{number}", max_new_tokens=40, temperature=1.0, ignore_eos=True)

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        wanted = [pool.submit(constrained, i) for i in range(12)]
        others = [pool.submit(plain, i) for i in range(12)]
        assert all(re.fullmatch("[0-9]{3,6}x", future.result()) for future in wanted)
        assert all(future.result() for future in others)
    assert server.twp()["fallbacks"] == 0


def test_openai_client_streams_a_chat(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "Count to ten."}],
            max_tokens=20,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        if chunk.choices
    ]
    assert len(pieces) > 3


def test_openai_client_many_at_once(server: Server) -> None:
    async def run() -> list[int]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        async def one(number: int) -> int:
            answer = await client.completions.create(
                model="default",
                prompt=f"Question {number}:",
                max_tokens=10 + number % 5,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            return answer.usage.completion_tokens

        return await asyncio.gather(*(one(number) for number in range(40)))

    assert asyncio.run(run()) == [10 + number % 5 for number in range(40)]


def test_sglang_bench_serving_runs(text_server: TextServer, tmp_path: Path) -> None:
    result = tmp_path / "bench.jsonl"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sglang.bench_serving",
            "--backend",
            "sglang",
            "--base-url",
            text_server.server.url,
            "--dataset-name",
            "random-ids",
            "--model",
            str(text_server.model),
            "--tokenizer",
            str(text_server.model),
            "--num-prompts",
            "12",
            "--random-input-len",
            "30",
            "--random-output-len",
            "10",
            "--random-range-ratio",
            "1.0",
            "--request-rate",
            "20",
            "--output-file",
            str(result),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(result.read_text().splitlines()[-1])["completed"] == 12


def test_nothing_fell_back(server: Server) -> None:
    server.wait_idle()
    state = server.twp()
    assert (state["deciding"], state["fallbacks"]) == (True, 0)
