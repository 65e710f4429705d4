"""Asks a server what it is, and empties its prefix cache."""

from __future__ import annotations

from typing import Any

import aiohttp

from twp_sglang.benchmarking.results import ServerRecord

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_FLUSH_TIMEOUT = aiohttp.ClientTimeout(total=30.0)

# Only what bears on latency: the rest is long, and some of it (API keys) is secret.
_SETTINGS = (
    "device", "dtype", "kv_cache_dtype", "quantization", "tp_size", "dp_size", "pp_size",
    "attention_backend", "sampling_backend", "max_total_num_tokens", "max_running_requests",
    "max_prefill_tokens", "chunked_prefill_size", "enable_mixed_chunk",
    "prefill_decode_interval", "schedule_policy", "schedule_conservativeness", "page_size",
    "disable_radix_cache", "disable_overlap_schedule", "disable_cuda_graph",
    "stream_interval", "incremental_streaming_output", "skip_tokenizer_init",
    "speculative_algorithm", "load_format", "random_seed",
)  # fmt: skip


class Unreachable(Exception):
    """Nothing answers at the address."""


async def probe(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> ServerRecord:
    """What the server at ``url`` says of itself.

    Raises:
        Unreachable: no connection, or no reply in ten seconds.
    """
    info = None
    # The second name is the one of SGLang releases before 0.5.8.
    for path in ("/server_info", "/get_server_info"):
        info = await _get_json(session, url + path, headers)
        if info is not None:
            break
    if info is None:
        models = await _get_json(session, url + "/v1/models", headers) or {}
        return ServerRecord(kind="other", model=_first_model(models))
    twp = _twp_states(info)
    return ServerRecord(
        kind="sglang",
        model=info.get("served_model_name") or info.get("model_path"),
        version=info.get("version"),
        emulated=_emulated(info, twp),
        takes_token_ids_only=bool(info.get("skip_tokenizer_init")),
        settings={
            key: info[key]
            for key in ("model_path", *_SETTINGS)
            if isinstance(info.get(key), bool | int | float | str)
        },
        twp_before=twp,
    )


async def twp_states(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> tuple[dict[str, Any], ...]:
    """The ``twp`` internal state of each scheduler now; empty where there is none."""
    try:
        info = await _get_json(session, url + "/server_info", headers)
    except Unreachable:
        return ()
    return _twp_states(info) if info else ()


async def flush_cache(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
    """Empty the prefix cache; say in one phrase what came of it.

    The phrase is ``flushed``, ``not offered by this server`` or ``refused: ...``.
    """
    try:
        async with session.post(
            url + "/flush_cache", headers=headers, timeout=_FLUSH_TIMEOUT
        ) as response:
            if response.status in (404, 405):
                return "not offered by this server"
            if response.status >= 400:
                return f"refused: {' '.join((await response.text()).split())[:200]}"
            return "flushed"
    except (TimeoutError, aiohttp.ClientError) as error:
        return f"refused: {error or type(error).__name__}"


async def _get_json(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> dict[str, Any] | None:
    """The JSON object at ``url``; None where the server has no such thing."""
    try:
        async with session.get(url, headers=headers, timeout=_TIMEOUT) as response:
            if response.status >= 400:
                await response.read()
                return None
            try:
                body = await response.json(content_type=None)
            except ValueError:
                return None
            return body if isinstance(body, dict) else None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise Unreachable(str(error) or f"no reply in {_TIMEOUT.total:g} s") from None


def _first_model(models: dict[str, Any]) -> str | None:
    entries = models.get("data")
    if isinstance(entries, list) and entries and isinstance(entries[0], dict):
        name = entries[0].get("id")
        return str(name) if name else None
    return None


def _twp_states(info: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    states = info.get("internal_states")
    if not isinstance(states, list):
        return ()
    return tuple(
        state["twp"]
        for state in states
        if isinstance(state, dict) and isinstance(state.get("twp"), dict)
    )


def _emulated(info: dict[str, Any], twp: tuple[dict[str, Any], ...]) -> bool | None:
    for place in (info, *(info.get("internal_states") or ()), *twp):
        if isinstance(place, dict) and isinstance(place.get("emulated"), bool):
            return bool(place["emulated"])
    return None
