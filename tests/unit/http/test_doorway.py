"""The ASGI layer around a FastAPI application that answers and streams as SGLang's does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

fastapi = pytest.importorskip("fastapi")

from fastapi import FastAPI, HTTPException, Request  # noqa: E402
from fastapi.responses import JSONResponse, StreamingResponse  # noqa: E402

from patches.http.doorway_install import add_doorway  # noqa: E402
from patches.http.exchange import current  # noqa: E402
from patches.http.serving_state import PROBE_EVERY_S, EngineSeen, ServingState  # noqa: E402
from patches.install import ProofError  # noqa: E402
from patches.sglang_0_5.http_requests import (  # noqa: E402
    generate_request,
    handle_abort_finish_reason,
)
from twp_sglang.scheduling.overload import RETRY_UNKNOWN_S  # noqa: E402


class Manager:
    """As much of SGLang's tokenizer manager as the doorway looks at."""

    def __init__(self) -> None:
        self.is_generation = True
        self.gracefully_exit = False
        self.last_receive_tstamp = 0.0
        self.server_status = _Status("Up")


class _Status:
    def __init__(self, name: str) -> None:
        self.name = name


class Obj:
    """A request as SGLang's endpoints hand it on."""

    def __init__(self) -> None:
        self.sampling_params: Any = {}


class State:
    """SGLang's record of a request."""

    def __init__(self, obj: Obj) -> None:
        self.obj = obj


def refused(obj: Obj, status: int = 429, **more: Any) -> None:
    """What the hook sees when the scheduler refuses ``obj``."""
    reason = {"type": "abort", "status_code": status, "message": "too much", **more}
    handle_abort_finish_reason(None, {"meta_info": {"finish_reason": reason}}, State(obj), True)


class Site:
    """An application behind the doorway, asked without a network."""

    def __init__(self) -> None:
        self.app = app = FastAPI()
        self.manager = Manager()
        self.seen: list[Any] = []

        @app.exception_handler(HTTPException)
        async def worded(request: Request, error: HTTPException) -> JSONResponse:
            return JSONResponse(
                {"object": "error", "message": error.detail, "code": error.status_code},
                error.status_code,
            )

        @app.post("/generate")
        async def generate(request: Request) -> Any:
            body = await request.json()
            obj = Obj()
            try:
                generate_request(self.manager, obj)
            except ValueError as error:
                return JSONResponse({"error": {"message": str(error)}}, 400)
            self.seen.append(obj.sampling_params)
            if body.get("refuse") and not body.get("stream"):
                refused(obj, twp_retry_after_s=7)
                raise HTTPException(429, "too much")
            return StreamingResponse(self._stream(obj, body), media_type="text/event-stream")

        @app.get("/health")
        async def health() -> Any:
            return JSONResponse({}, 503)

        state = type("State", (), {"tokenizer_manager": self.manager})()
        add_doorway(app, lambda: state)

    async def _stream(self, obj: Obj, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body.get("refuse") == "first":
            refused(obj, twp_retry_after_s=7)
            yield b'data: {"meta_info": {"finish_reason": {"type": "abort"}}}\n\n'
        elif body.get("refuse") == "one of a batch":
            refused(Obj(), twp_retry_after_s=7)
            yield b'data: {"index": 0, "meta_info": {"finish_reason": {"type": "abort"}}}\n\n'
        else:
            yield b"data: a\n\n"
        if body.get("refuse") == "later":
            refused(obj, 503)
            yield b"data: error\n\n"
        yield b"data: [DONE]\n\n"

    def ask(
        self, body: Any = None, path: str = "/generate", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        return asyncio.run(self._ask(body, path, method, headers))

    async def _ask(
        self, body: Any, path: str, method: str, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], str]:
        raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        scope = {
            **{"type": "http", "method": method, "path": path, "root_path": "", "scheme": "http"},
            **{"query_string": b"", "headers": [(b"content-type", b"application/json"), *raw]},
            **{"server": ("test", 80), "client": ("test", 1), "http_version": "1.1"},
            **{"asgi": {"version": "3.0", "spec_version": "2.3"}},
        }
        sent: list[Any] = []
        coming = [{"type": "http.request", "body": json.dumps(body or {}).encode()}]

        async def receive() -> Any:
            if coming:
                return coming.pop()
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        starts = [item for item in sent if item["type"] == "http.response.start"]
        assert len(starts) == 1, "one answer, one head"
        text = b"".join(item.get("body", b"") for item in sent[1:]).decode()
        assert not sent[-1].get("more_body"), "the answer ends"
        found = {name.decode().lower(): value.decode() for name, value in starts[0]["headers"]}
        return starts[0]["status"], found, text


def test_a_stream_passes_as_it_is() -> None:
    status, headers, text = Site().ask({"stream": True})
    assert (status, text) == (200, "data: a\n\ndata: [DONE]\n\n")
    assert headers["content-type"].startswith("text/event-stream")
    assert "retry-after" not in headers


def test_a_refused_answer_says_when_to_come_again() -> None:
    status, headers, text = Site().ask({"refuse": True})
    assert (status, headers["retry-after"]) == (429, "7")
    assert json.loads(text)["message"] == "too much"


def test_a_stream_refused_before_its_first_token_is_a_refusal_not_a_stream() -> None:
    status, headers, text = Site().ask({"stream": True, "refuse": "first"})
    assert (status, headers["retry-after"]) == (429, "7")
    assert json.loads(text) == {"object": "error", "message": "too much", "code": 429}


def test_a_stream_that_has_begun_ends_with_its_own_error() -> None:
    status, _, text = Site().ask({"stream": True, "refuse": "later"})
    assert status == 200
    assert text.endswith("data: error\n\ndata: [DONE]\n\n")


def test_one_refused_of_a_batch_does_not_end_the_others() -> None:
    status, _, text = Site().ask({"stream": True, "refuse": "one of a batch"})
    assert status == 200
    assert text.endswith("[DONE]\n\n")


def test_terms_reach_the_request() -> None:
    site = Site()
    site.ask({}, x_twp_client="team", x_twp_ttft_slo="2s", authorization="Bearer k")
    site.ask({}, authorization="Bearer k")
    site.ask({})
    first, second, third = (params.get("custom_params") for params in site.seen)
    key = second["twp"]["client"]
    assert key.startswith("key-")
    assert first == {"twp": {"client": f"{key}/team", "ttft_slo_ms": 2000.0}}
    assert third is None
    assert current() is None, "nothing is left behind"


def test_a_bad_header_is_400_in_sglangs_words_and_reaches_nobody() -> None:
    site = Site()
    status, headers, text = site.ask({}, x_twp_itl_slo="fast")
    assert status == 400
    assert "X-TWP-ITL-SLO: 'fast'" in json.loads(text)["message"]
    assert "retry-after" not in headers
    assert site.seen == []


def test_bad_terms_in_the_body_end_a_stream_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    monkeypatch.setattr(
        Obj,
        "__init__",
        lambda self: setattr(self, "sampling_params", {"custom_params": {"twp": 1}}),
    )
    status, _, text = site.ask({"stream": True})
    assert status == 400
    assert "custom_params.twp" in text


def test_a_server_that_shuts_down_takes_nobody_and_says_when_to_ask_again() -> None:
    site = Site()
    site.manager.gracefully_exit = True
    status, headers, text = site.ask({"stream": True})
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert "shutting down" in json.loads(text)["message"]


def test_sglangs_own_503_gets_a_time_too() -> None:
    status, headers, _ = Site().ask(path="/health", method="GET")
    assert (status, headers["retry-after"]) == (503, str(RETRY_UNKNOWN_S))


def test_an_unhealthy_engine_gets_a_probe_now_and_then_until_it_answers() -> None:
    now = [100.0]
    seen = [EngineSeen(False, True, 90.0)]
    state = ServingState(lambda: seen[0], lambda: now[0])
    assert state.refusal() is not None
    now[0] += PROBE_EVERY_S - 1
    assert state.refusal() is not None
    now[0] += 1
    assert state.refusal() is None, "the probe"
    assert state.refusal() is not None
    seen[0] = EngineSeen(False, True, now[0] + 1)
    assert state.refusal() is None, "an answer came"
    seen[0] = EngineSeen(False, False, 0.0)
    assert state.refusal() is None


def test_before_there_is_an_engine_nobody_is_refused() -> None:
    assert ServingState(lambda: None, lambda: 0.0).refusal() is None


def test_an_application_that_words_no_errors_is_not_served() -> None:
    bare = FastAPI()
    with pytest.raises(ProofError, match="words no"):
        add_doorway(bare, lambda: None)


def test_one_that_serves_already_cannot_be_wrapped() -> None:
    site = Site()
    site.ask({})
    with pytest.raises(ProofError, match="serves already"):
        add_doorway(site.app, lambda: None)
