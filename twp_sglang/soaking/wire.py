"""The bodies of the requests, good and bad, for each of the server's interfaces."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from twp_sglang.soaking.traffic import Act, Api

PATHS: dict[Api, str] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}

_LOWEST_ID = 3
"""Below are the special tokens of most vocabularies."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz "

CLIENTS = ("team-a", "team-b", "Zoë \N{SNOWMAN}", "x" * 128)
"""Names that requests give as their client; the last as long as a name may be."""


class Facts(NamedTuple):
    """What of the server decides how it can be asked."""

    text: bool
    """Whether it has a tokenizer."""
    context_tokens: int
    vocabulary: int


def request_id(act: Act, run: str) -> str:
    """The id under which the request can be aborted."""
    # Of one length: SGLang aborts every request whose id begins with the one it is told.
    return f"soak-{run}-{act.number:08d}"


def body(act: Act, facts: Facts, run: str) -> Any:
    """The JSON body of ``act``."""
    source = random.Random(f"{run}/{act.number}")
    if act.kind == "malformed":
        return malformed(act, source)
    if act.kind == "too_long":
        act = act._replace(prompt_tokens=facts.context_tokens + 1 + int(act.draw * 1000))
    ids = [source.randrange(_LOWEST_ID, facts.vocabulary) for _ in range(act.prompt_tokens)]
    text = "".join(source.choices(_LETTERS, k=act.prompt_tokens))
    terms = _terms(act.draw)
    rid: Any = request_id(act, run)
    if act.answers > 1:
        rid = None  # one id for several answers is refused
    if act.api == "generate":
        sampling: dict[str, Any] = {"max_new_tokens": act.output_tokens, "ignore_eos": True}
        if act.answers > 1:
            sampling["n"] = act.answers
        if terms:
            sampling["custom_params"] = terms
        prompt = {"text": text} if facts.text and act.draw < 0.3 else {"input_ids": ids}
        named = {} if rid is None else {"rid": rid}
        return {**prompt, "sampling_params": sampling, "stream": act.stream, **named}
    result: dict[str, Any] = {
        "model": "default",
        "max_tokens": act.output_tokens,
        "ignore_eos": True,
        "stream": act.stream,
    }
    if rid is not None:
        result["rid"] = rid
    if terms:
        result["custom_params"] = terms
    if act.api == "completions":
        result["prompt"] = ids if act.draw < 0.5 else text
        if act.answers > 1:
            result["n"] = act.answers
    else:
        result["messages"] = [{"role": "user", "content": text}]
    if act.stream:
        result["stream_options"] = {"include_usage": True}
    return result


def headers(act: Act) -> dict[str, str]:
    """Terms of its own by header for one request in ten; stock SGLang looks at none."""
    if not 0.4 <= act.draw < 0.5:
        return {}
    return {"X-TWP-Client": "gateway", "X-TWP-ITL-SLO": "80ms", "X-TWP-TTFT-SLO": "5s"}


def _terms(draw: float) -> dict[str, Any]:
    """Terms of its own for two requests in five, some of them with an objective."""
    if draw >= 0.4:
        return {}
    terms: dict[str, Any] = {"client": CLIENTS[int(draw * 1e4) % len(CLIENTS)]}
    if draw < 0.1:
        terms["ttft_slo_ms"] = 500.0
    return {"twp": terms}


def malformed(act: Act, source: random.Random) -> Any:
    """A body that no server may take; a string stands for bytes that are not JSON."""
    good = {"max_new_tokens": 4}
    if act.api != "generate":
        # No list among them: SGLang's chat interface answers one with 500 (docs/soak.md).
        return source.choice(
            (
                "{",
                {"model": "default", "max_tokens": 4},
                {"model": "default", "prompt": 7.5, "messages": "no", "max_tokens": 4},
                {"model": "default", "prompt": "a", "messages": [{}], "max_tokens": "many"},
            )
        )
    return source.choice(
        (
            "{",
            "not JSON at all",
            [],
            {"sampling_params": good},
            {"input_ids": [], "sampling_params": good},
            {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}},
            {"input_ids": [5], "sampling_params": {"max_new_tokens": 2.5}},
            {"input_ids": [5], "sampling_params": {"temperature": -1.0}},
            {"input_ids": [5], "sampling_params": {"top_p": 7}},
            {"input_ids": "text", "sampling_params": 7},
        )
    )
