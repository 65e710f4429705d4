"""Replies read as endings: what is whole, what is a refusal, and what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twp_sglang.soaking.endings import ALLOWED, Progress, of_reply, of_stream
from twp_sglang.soaking.traffic import Act, Api, Kind


def act(kind: Kind = "serve", api: Api = "generate", answers: int = 1, tokens: int = 4) -> Act:
    return Act(0, 0.0, kind, api, True, 5, tokens, answers, 0.0, 0.9)


def streamed(asked: Act, *events: Any, done: bool = True) -> str:
    progress = Progress(asked)
    for event in events:
        progress.take(json.dumps(event).encode())
    if done:
        progress.take(b"[DONE]")
    return of_stream(progress).ending


def native(tokens: int, reason: str | None = None, **extra: Any) -> dict[str, Any]:
    return {
        "meta_info": {
            "completion_tokens": tokens,
            "finish_reason": None if reason is None else {"type": reason},
        },
        **extra,
    }


def choice(reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "finish_reason": reason}]}


def test_streams() -> None:
    assert streamed(act(), native(1), native(4, "length")) == "answered"
    assert streamed(act(), native(1)) == "wrong"
    assert streamed(act(), native(3, "length")) == "wrong"
    assert streamed(act(), native(4, "length"), native(4, "length")) == "wrong"
    assert streamed(act("abort"), native(2, "abort")) == "aborted"
    assert streamed(act("malformed"), native(4, "length")) == "wrong"


def test_several_answers_each_end() -> None:
    two = act(answers=2)
    ends = [native(4, "length", index=0), native(4, "length", index=1)]
    assert streamed(two, *ends) == "answered"
    assert streamed(two, ends[0]) == "wrong"


def test_openai_streams() -> None:
    asked = act(api="completions")
    usage = {"choices": [], "usage": {"completion_tokens": 4}}
    assert streamed(asked, choice(), choice("length"), usage) == "answered"
    assert streamed(asked, choice("length"), usage, done=False) == "wrong"
    assert (
        streamed(asked, choice("length"), {**usage, "usage": {"completion_tokens": 3}}) == "wrong"
    )
    assert streamed(asked, choice("length"), choice("length"), usage) == "wrong"


def test_nothing_may_come_after_the_end() -> None:
    progress = Progress(act())
    progress.take(json.dumps(native(4, "length")).encode())
    progress.take(b"[DONE]")
    with pytest.raises(ValueError, match="after the end"):
        progress.take(json.dumps(native(4)).encode())


def test_an_error_in_a_stream() -> None:
    def error(code: int, message: str) -> dict[str, Any]:
        return {"error": {"code": code, "message": message}}

    assert streamed(act(), error(503, "shed")) == "refused"
    assert streamed(act(), error(500, "oops")) == "wrong"
    assert streamed(act(), error(400, "Abort in waiting queue")) == "wrong"
    assert streamed(act("abort"), error(400, "Abort in waiting queue")) == "aborted"
    assert streamed(act("too_long"), error(400, "longer than the context")) == "rejected"


def test_a_refusal_in_the_form_of_an_abort() -> None:
    def abort(status: int, message: str) -> dict[str, Any]:
        reason = {"type": "abort", "message": message, "status_code": status}
        return {"meta_info": {"completion_tokens": 0, "finish_reason": reason}}

    assert streamed(act(), abort(429, "overloaded")) == "refused"
    assert streamed(act(), abort(500, "oops")) == "wrong"
    assert streamed(act("malformed"), abort(400, "empty prompt")) == "rejected"
    assert streamed(act("abort"), abort(400, "Abort in waiting queue")) == "aborted"


def replied(asked: Act, status: int, body: Any, **headers: str) -> str:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return of_reply(asked, status, headers, raw).ending


def test_whole_replies() -> None:
    assert replied(act(), 200, native(4, "length")) == "answered"
    assert replied(act(), 200, native(3, "length")) == "wrong"
    assert replied(act(answers=2), 200, [native(4, "length"), native(4, "length")]) == "answered"
    assert replied(act(answers=2), 200, native(4, "length")) == "wrong"
    assert replied(act(), 200, b"<html>") == "wrong"
    assert replied(act(), 500, b"Internal Server Error") == "wrong"
    assert replied(act(), 400, {"error": "x"}) == "wrong"
    assert replied(act("malformed"), 400, {"error": "x"}) == "rejected"
    assert replied(act("malformed"), 500, {"error": "x"}) == "wrong"
    assert replied(act("abort"), 400, {"error": {"message": "Abort in waiting queue"}}) == "aborted"


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_says_when_to_come_again(status: int) -> None:
    assert replied(act(), status, {"error": "full"}, **{"Retry-After": "2"}) == "refused"
    assert replied(act(), status, {"error": "full"}) == "wrong"


def test_an_abort_that_nobody_asked_for_is_not_allowed() -> None:
    assert "aborted" not in ALLOWED["serve"]
    assert all("wrong" not in allowed and "lost" not in allowed for allowed in ALLOWED.values())
