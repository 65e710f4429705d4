"""Asks a server for its TWP state; every way in which that fails has words of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
"""Longer than the server itself waits for its schedulers."""


class NoState(Exception):
    """There is no state to show; the message says why and what to do."""


class Look(NamedTuple):
    """One answer of the server."""

    time_unix_s: float
    model: str
    replicas: list[dict[str, Any]]


async def look(session: aiohttp.ClientSession, url: str, api_key: str | None) -> Look:
    """The state of the server at ``url``.

    Raises:
        NoState: nobody answers, not a server with TWP, or a key is missing.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with session.get(f"{url}/twp/state", headers=headers, timeout=_TIMEOUT) as answer:
            body = await _json(answer)
            if answer.status == 200 and isinstance(body, dict) and "replicas" in body:
                return Look(body["time_unix_s"], body["model"], body["replicas"])
            raise NoState(_refusal(url, answer.status, body, api_key))
    except TimeoutError:
        raise NoState(f"{url}: no answer within {_TIMEOUT.total:g} s: the server hangs") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoState(
            f"{url}: cannot be reached ({_reason(error)}): is the server up, and is this its port?"
        ) from None


async def _json(answer: aiohttp.ClientResponse) -> Any:
    try:
        return await answer.json(content_type=None)
    except ValueError:
        return None


def _refusal(url: str, status: int, body: Any, api_key: str | None) -> str:
    said = body.get("error") if isinstance(body, dict) else None
    if status in (401, 403):
        wrong = "does not take this key" if api_key else "needs its API key"
        return f"{url}: {wrong}: give it with --api-key or in TWP_API_KEY"
    if status == 404 and not said:
        return (
            f"{url}: has no /twp/state: a server without TWP, with --twp-policy off, or with "
            "several tokenizer workers; start it with python -m twp_sglang.launch_server"
        )
    if said:
        return f"{url}: {said}"
    return f"{url}: answered with HTTP {status}, which is no state of TWP"


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or error
    return str(getattr(inner, "strerror", None) or inner or type(error).__name__)
