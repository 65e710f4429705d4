"""The three request formats: what is sent, and what a streamed event says.

Token counts come from cumulative counters where the server sends them (SGLang's
``meta_info.completion_tokens``, OpenAI's ``usage`` per chunk, which SGLang and vLLM send
on ``continuous_usage_stats``). A server that sends neither is counted one token per chunk
with text, and the record says so.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from twp_sglang.benchmarking.prompts import Prompt
from twp_sglang.benchmarking.settings import Api


class StreamUpdate(NamedTuple):
    """What one event says; None and False where it says nothing.

    Attributes:
        total_tokens: output tokens so far, as counted by the server.
        closing_total: output tokens of the whole answer, in a closing usage event that
            stands for no token of its own.
        has_text: it carried output, where the server does not count.
        text: the text it added; empty where the format repeats the whole text (sglang).
        finish_reason: why the answer ended.
        prompt_tokens: prompt length as counted by the server.
        cached_tokens: prompt tokens that came from the server's prefix cache.
        error: the server's error message.
        status: HTTP-like status that goes with ``error``.
    """

    total_tokens: int | None = None
    closing_total: int | None = None
    has_text: bool = False
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    status: int | None = None


PATHS: dict[Api, str] = {
    "sglang": "/generate",
    "openai": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}


def payload(
    api: Api,
    prompt: Prompt,
    *,
    output_tokens: int,
    model: str | None,
    temperature: float,
    ignore_eos: bool,
) -> bytes:
    """The JSON body of one streaming request."""
    content: Any = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    body: dict[str, Any]
    if api == "sglang":
        key = "text" if isinstance(content, str) else "input_ids"
        body = {
            key: content,
            "sampling_params": {
                "max_new_tokens": output_tokens,
                "temperature": temperature,
                "ignore_eos": ignore_eos,
            },
            "stream": True,
        }
        return json.dumps(body).encode()
    body = {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if ignore_eos:  # an extension; a strict server would refuse even the false value
        body["ignore_eos"] = True
    if api == "openai":
        body["prompt"] = content
    else:
        body["messages"] = [{"role": "user", "content": content}]
    return json.dumps(body).encode()


def read_event(api: Api, data: bytes) -> StreamUpdate:
    """Read one event (not the closing ``[DONE]``).

    Raises:
        ValueError: the data is not a JSON object of the format.
    """
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"event is a JSON {type(event).__name__}, not an object")
    if event.get("error"):
        return _error(event["error"], event.get("code"))
    try:
        return _read_sglang(event) if api == "sglang" else _read_openai(event)
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"event is not in the {api} format: {error}") from None


def _error(error: Any, code: Any) -> StreamUpdate:
    if isinstance(error, dict):
        message, code = error.get("message"), error.get("code", code)
    else:
        message = error
    status = code if isinstance(code, int) else None
    return StreamUpdate(error=str(message or error), status=status)


def _read_sglang(event: dict[str, Any]) -> StreamUpdate:
    meta = event.get("meta_info")
    if meta is None:
        raise ValueError("event has no meta_info; is this SGLang's /generate?")
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        message = reason.get("message") or "aborted by the server"
        status = reason.get("status_code")
        return StreamUpdate(
            finish_reason="abort",
            error=str(message),
            status=int(status) if status is not None else None,
        )
    return StreamUpdate(
        total_tokens=meta.get("completion_tokens"),
        has_text=bool(event.get("text") or event.get("output_ids")),
        finish_reason=reason.get("type") if isinstance(reason, dict) else reason,
        prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
    )


def _read_openai(event: dict[str, Any]) -> StreamUpdate:
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    choices = event.get("choices") or []
    choice = choices[0] if choices else {}
    delta = choice.get("delta") or {}
    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    reason = choice.get("finish_reason")
    return StreamUpdate(
        total_tokens=usage.get("completion_tokens") if choices else None,
        closing_total=usage.get("completion_tokens") if not choices else None,
        has_text=bool(text or delta.get("tool_calls")),
        text=text if isinstance(text, str) else "",
        finish_reason=reason,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        error="aborted by the server" if reason == "abort" else None,
    )
