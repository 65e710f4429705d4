"""What the server is, whether it can be calibrated, and whether it is left alone."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from twp_sglang.calibration.errors import CalibrationError, usage

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_POLL_S = 0.1
_LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
FREE_POLICIES = ("off", "observe", "fcfs")
"""Policies that admit whoever fits, so that a batch can be held."""


@dataclass(frozen=True)
class Server:
    """A server that can be calibrated.

    ``kv_tokens`` is the KV cache in tokens, ``max_batch`` the most requests it runs at
    once, ``max_prompt_tokens`` its longest prompt; None where it does not say.
    ``chunk_tokens`` bounds a chunk beside decoding requests, None where prefill is not
    chunked. ``trace`` is the step trace's
    path on the server's machine.
    """

    url: str
    headers: dict[str, str]
    model: str
    version: str
    device: str | None
    backend: str | None
    dtype: str | None
    tp_size: int
    kv_tokens: int | None
    max_batch: int | None
    max_prompt_tokens: int | None
    chunk_tokens: int | None
    interleaving: str
    stream_interval: int
    policy: str | None
    emulated: bool
    trace: str | None
    accelerator: str | None
    accelerators: int | None

    @property
    def local(self) -> bool:
        """Whether it runs on this machine."""
        return urlsplit(self.url).hostname in _LOCAL


def auth_headers(api_key_env: str | None) -> dict[str, str]:
    """Headers with the API key from the environment.

    Raises:
        CalibrationError: the variable is not set.
    """
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise usage(f"--api-key-env {api_key_env}: that variable is not set")
    return {"Authorization": f"Bearer {key}"}


async def inspect(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Server:
    """Ask the server at ``url`` what it is.

    Raises:
        CalibrationError: nobody answers, it is not SGLang, or its set-up cannot be
            calibrated; the message says what to change.
    """
    info = await _get(session, url + "/server_info", headers)
    if info is None:
        raise usage(
            f"{url} answers, but not as SGLang does (no /server_info): give the address of an "
            "SGLang server; an API gateway in front of it will not do"
        )
    loads = await _get(session, url + "/v1/loads", headers) or {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    state = state if isinstance(state, dict) else {}
    twp = state.get("twp") if isinstance(state.get("twp"), dict) else {}
    assert isinstance(twp, dict)
    _refuse(info, twp)
    # TWP's C bounds a chunk while somebody decodes, SGLang's own size bounds every chunk.
    chunks = [
        size
        for size in (info.get("chunked_prefill_size"), twp.get("chunk_tokens"))
        if isinstance(size, int) and size > 0
    ]
    return Server(
        url=url,
        headers=headers,
        model=str(info.get("served_model_name") or info.get("model_path") or "unknown"),
        version=str(info.get("version") or "unknown"),
        device=info.get("device"),
        backend=info.get("attention_backend") or info.get("decode_attention_backend"),
        dtype=info.get("dtype"),
        tp_size=int(info.get("tp_size") or 1),
        kv_tokens=info.get("max_total_num_tokens"),
        max_batch=state.get("effective_max_running_requests_per_dp")
        or info.get("max_running_requests"),
        max_prompt_tokens=info.get("max_req_input_len"),
        chunk_tokens=min(chunks) if chunks else None,
        interleaving=_interleaving(info),
        stream_interval=int(info.get("stream_interval") or 1),
        policy=twp.get("policy"),
        emulated=bool(info.get("emulated") or state.get("emulated") or twp.get("emulated")),
        trace=twp.get("trace"),
        accelerator=loads.get("accelerator"),
        accelerators=loads.get("num_accelerators"),
    )


def _interleaving(info: dict[str, Any]) -> str:
    if info.get("enable_mixed_chunk"):
        return "mixed"
    interval = info.get("prefill_decode_interval")
    return f"interval {interval}" if interval else "prefill first"


def _refuse(info: dict[str, Any], twp: dict[str, Any]) -> None:
    policy = twp.get("policy")
    if policy is not None and policy not in FREE_POLICIES and twp.get("deciding", True):
        raise usage(
            f"the server runs --twp-policy {policy}, whose gate would change the batch under "
            "measurement: start it with --twp-policy fcfs (calibrate --launch does)"
        )
    if info.get("speculative_algorithm"):
        raise usage(
            f"the server decodes speculatively ({info['speculative_algorithm']}): a step then "
            "makes several tokens and TWP does not run; start it without --speculative-algorithm"
        )
    if (info.get("dp_size") or 1) > 1:
        raise usage(
            f"the server has --dp-size {info['dp_size']}: requests would spread over replicas "
            "and no batch could be held; calibrate one replica, they share the profile"
        )
    if (info.get("pp_size") or 1) > 1:
        raise usage("the server runs pipeline parallel, which TWP does not: use --tp-size")
    if str(info.get("disaggregation_mode") or "null") != "null":
        raise usage("the server is half of a disaggregated pair, where TWP does not run")
    if info.get("is_embedding") or info.get("is_generation") is False:
        raise usage("the model does not generate: there is no decode step to measure")


async def requests_in(session: aiohttp.ClientSession, server: Server) -> int | None:
    """Requests running or waiting now; None where the server does not tell."""
    loads = await _get(session, server.url + "/v1/loads", server.headers)
    entries = loads.get("loads") if loads else None
    if not isinstance(entries, list) or not entries:
        return None
    try:
        return sum(int(e["num_running_reqs"]) + int(e["num_waiting_reqs"]) for e in entries)
    except (KeyError, TypeError, ValueError):
        return None


async def wait_idle(session: aiohttp.ClientSession, server: Server, limit_s: float) -> bool | None:
    """Wait until nothing runs or waits; False if something still does, None if untold."""
    end_s = time.monotonic() + limit_s
    while True:
        busy = await requests_in(session, server)
        if busy is None:
            return None
        if busy == 0:
            return True
        if time.monotonic() >= end_s:
            return False
        await asyncio.sleep(_POLL_S)


async def _get(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> dict[str, Any] | None:
    """The JSON object at ``url``, None where there is none."""
    try:
        async with session.get(url, headers=headers, timeout=_TIMEOUT) as response:
            if response.status in (401, 403):
                raise usage(f"{url} asks for an API key: name its variable with --api-key-env")
            if response.status >= 400:
                return None
            body = await response.json(content_type=None)
            return body if isinstance(body, dict) else None
    except ValueError:
        return None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        reason = str(error) or f"no reply in {_TIMEOUT.total:g} s"
        raise CalibrationError(
            f"no server answers at {url}: {reason}; start one, or use --launch -- FLAGS", 2
        ) from None
