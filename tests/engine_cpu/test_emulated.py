"""The emulated engine: one server under the timing of the paper's machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import pytest

from analysis.judging import decisions
from analysis.judging.engine import admissions_of
from controllers.trace_reader import read_step_trace
from tests.engine_cpu.server import TINY_MODEL, Server, serving, text_model
from twp_sglang.benchmarking import server_probe
from twp_sglang.simulator.step_sources import step_source

PROFILE = "paper-v100"
"""Its steps of 43 ms and more dwarf the scatter of a busy machine."""

WAVES = decisions.waves(2, 14, "30-200", "24@.5,64@.5", seed=4)


class Emulated(NamedTuple):
    """A running server, what it said before the first request, and its step trace."""

    server: Server
    info: dict[str, Any]
    trace_dir: Path


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    folder = tmp_path_factory.mktemp("emulated")
    with serving(
        text_model(folder / "model"),
        folder,
        "--twp-emulate",
        PROFILE,
        "--twp-trace",
        str(folder / "steps"),
        "--twp-policy",
        "twp",
        "--twp-l-min-ms",
        "43",
        "--twp-h0-tokens",
        "300",
        # Requests of its own would pass through the policy.
        "--skip-server-warmup",
        environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"},
        orderly=False,
    ) as server:
        info = server.request("/server_info").body

        async def send() -> None:
            async with aiohttp.ClientSession() as session:
                for index, wave in enumerate(WAVES):
                    await decisions.send(session, server.url, wave, index * len(wave))

        asyncio.run(send())
        yield Emulated(server, info, folder / "steps")


def test_the_simulator_admits_in_the_same_order(emulated: Emulated) -> None:
    trace = read_step_trace(emulated.trace_dir)
    found = decisions.compare(
        emulated.info, PROFILE, WAVES, admissions_of(emulated.trace_dir)[:28], len(trace)
    )
    assert found.requests == 28
    assert found.same_order
    assert found.same_reasons == 1.0
    # The gate had to close, or agreeing would mean nothing.
    assert sum(item.step[1] > 0 for item in found.admitted) >= 10
    # The engine measures its steps, the simulator knows them: a wait may end a step apart.
    assert found.step_difference_max <= 3
    # Until one does, both meet the same load. After it a row in flight may have started and the
    # next one may come in, each so many steps apart, and every row makes a token per step.
    for wave, members in enumerate(WAVES):
        apart = 0
        for item in sorted(
            (item for item in found.admitted if item.wave == wave), key=lambda item: item.place
        ):
            engine_step, simulator_step = item.step
            apart = max(apart, abs(engine_step - simulator_step))
            engine_load, simulator_load = item.load_before_tokens
            assert abs(engine_load - simulator_load) <= 2 * apart * len(members)


def test_steps_take_what_the_model_predicts(emulated: Emulated) -> None:
    model = step_source(PROFILE).model
    trace = read_step_trace(emulated.trace_dir)
    timed = np.isfinite(trace["duration_ms"])
    facts = zip(
        trace["batch"][timed],
        trace["kv_tokens"][timed],
        trace["prefill_tokens"][timed],
        strict=True,
    )
    predicted = np.array([model.step_ms(int(b), int(kv), int(p)) for b, kv, p in facts])
    assert len(predicted) > 50
    assert np.ptp(predicted) > 10.0  # the batch went over the knee and came back
    assert abs(np.median(trace["duration_ms"][timed] / predicted) - 1) < 0.02


def test_it_says_emulated_everywhere(emulated: Emulated) -> None:
    server = emulated.server
    state = server.twp()
    assert state["emulated"] is True
    assert state["emulated_profile"] == PROFILE
    assert state["deciding"] is True
    assert state["fallbacks"] == 0
    assert server.internal_state()["emulated"] is True
    assert "EMULATED engine" in server.log()
    header = read_step_trace(emulated.trace_dir).header
    assert header.emulated
    assert header.emulated_profile == PROFILE

    async def probe() -> bool | None:
        async with aiohttp.ClientSession() as session:
            return (await server_probe.probe(session, server.url, {})).emulated

    assert asyncio.run(probe()) is True


def test_the_pool_is_the_profiles_and_nothing_of_its_size_is_allocated(
    emulated: Emulated,
) -> None:
    assert emulated.info["max_total_num_tokens"] == 32768
    # 32,768 tokens of this model's own KV would be 32 MB; the stand-in has one layer of 8.
    assert emulated.info["model_path"] != emulated.info["tokenizer_path"]
    config = json.loads((Path(emulated.info["model_path"]) / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert config["max_position_embeddings"] == TINY_MODEL["max_position_embeddings"]


def test_answers_have_the_length_asked_for_and_never_stop_by_themselves(
    emulated: Emulated,
) -> None:
    stops = list(range(40, 60))
    reply = emulated.server.generate([5] * 9, 33, ignore_eos=False, stop_token_ids=stops)
    assert reply.status == 200
    assert reply.body["meta_info"]["finish_reason"] == {"type": "length", "length": 33}
    assert reply.body["meta_info"]["completion_tokens"] == 33
    ids = reply.body["output_ids"]
    assert len(ids) == 33
    assert all(2 < token < 259 for token in ids)
    assert not set(ids) & set(stops)


def test_chat_streams_printable_text(emulated: Emulated) -> None:
    reply = emulated.server.request(
        "/v1/chat/completions",
        {
            "model": "any",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 12,
        },
    )
    assert reply.status == 200
    text = reply.body["choices"][0]["message"]["content"]
    assert len(text) == 12  # one byte a token
    assert text.isprintable()
    assert reply.body["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"return_logprob": True}, "EMULATED"),
        ({"json_schema": '{"type": "object"}'}, "grammar-backend none"),
    ],
)
def test_what_needs_a_model_is_refused_and_serving_goes_on(
    emulated: Emulated, extra: dict[str, Any], said: str
) -> None:
    body: dict[str, Any] = {"input_ids": [7] * 5, "sampling_params": {"max_new_tokens": 4}}
    if "json_schema" in extra:
        body["sampling_params"] |= extra
    else:
        body |= extra
    reply = emulated.server.request("/generate", body)
    assert reply.status == 400
    assert said in str(reply.body)
    assert emulated.server.generate([8] * 5, 4).status == 200
