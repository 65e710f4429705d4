"""The routes under /twp. SGLang's own keys protect them as they protect its routes."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sglang.srt.utils.auth import AuthLevel, auth_level

from patches.http import changes
from patches.http.asking import Unanswered, ask, tokenizer_manager
from patches.http.broadcast import FULL, Broadcast
from twp_sglang import page
from twp_sglang.config_changes import FIXED
from twp_sglang.one_line import one_line, shown

PREFIX = "/twp"

router = APIRouter(prefix=PREFIX, tags=["twp"])

_FORWARDED_MAX_CHARACTERS = 100

_BODY_MAX_BYTES = 65_536
"""Some fifty fields take 2 kB."""

Handler = Callable[..., Awaitable[Response]]


def _answering(handler: Handler) -> Handler:
    """What cannot be answered becomes a status and one line of words."""

    @functools.wraps(handler)
    async def guarded(*args: Any, **kwargs: Any) -> Response:
        try:
            return await handler(*args, **kwargs)
        except (Unanswered, changes.Refused) as error:
            return JSONResponse({"error": str(error)}, error.status)

    return guarded


@router.get("/config")
@_answering
async def get_config() -> Response:
    """The configuration in force, and what was changed since the start."""
    answers = await ask("config")
    first = answers[0]
    same = all(said["config"] == first["config"] for said in answers)
    return JSONResponse(
        {
            "config": first["config"],
            "revision": first["revision"],
            "chunk_tokens_in_force": first["chunk_tokens"],
            "fixed": dict(FIXED),
            "changes": list(changes.history),
            **({} if same else {"replicas": answers}),
        }
    )


@router.patch("/config")
@auth_level(AuthLevel.ADMIN_OPTIONAL)  # type: ignore[untyped-decorator]
@_answering
async def patch_config(request: Request) -> Response:
    """Change fields on all ranks and replicas, or none."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise changes.Refused("send the fields as JSON, with Content-Type: application/json", 415)
    origin = request.headers.get("origin")
    if origin is not None and _host_of(origin) != request.headers.get("host"):
        # SGLang lets pages of any site call it; with a browser inside the network and no key
        # that would be enough to change the configuration.
        raise changes.Refused(f"a page of {shown(origin)} may not change this server", 403)
    made = await changes.change(changes.parsed(await _body(request)), _who(request))
    made["changes"] = {
        name: {"from": old, "to": new} for name, (old, new) in made["changes"].items()
    }
    return JSONResponse(made)


@router.get("/state")
@_answering
async def get_state() -> Response:
    """The state of every replica, now."""
    return JSONResponse(await _state({}))


@router.get("/explain/{rid:path}")
@_answering
async def explain(rid: str) -> Response:
    """Why a request waits, or how far it is."""
    for said in await ask("explain", rid=rid):
        if said["found"] is not None:
            return JSONResponse({"replica": said["replica"], **said["found"]})
    return JSONResponse(
        {
            "error": f"no request {shown(rid)} waits or runs here: it has ended, was aborted, has "
            "not reached the scheduler yet, or never came"
        },
        404,
    )


@router.get("")
async def get_page() -> Response:
    """The live page. It holds no data: those come from the routes that keys protect."""
    return _file("index.html")


@router.get("/static/{name}")
async def get_static(name: str) -> Response:
    """What the page is made of."""
    return _file(name)


@router.get("/events")
async def get_events() -> Response:
    """States as server-sent events, twice a second, for the page."""
    if _broadcast.full:
        return JSONResponse({"error": FULL}, 503, headers={"Retry-After": "10"})
    # nginx would keep events back until its buffer is full.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(), media_type="text/event-stream", headers=headers)


async def _events() -> AsyncIterator[str]:
    async for event in _broadcast.watch():
        yield event


def _file(name: str) -> Response:
    file = page.files().get(name)
    if file is None:
        return JSONResponse({"error": f"the page has no part {shown(name)}"}, 404)
    return Response(file.content, media_type=file.media_type, headers=page.HEADERS)


async def _state(after_step: dict[str, int]) -> dict[str, Any]:
    manager = tokenizer_manager()
    answers = await ask("state", after_step=after_step)
    return {
        "time_unix_s": round(time.time(), 3),
        "model": str(manager.served_model_name),
        "replicas": [{"replica": said["replica"], **said["state"]} for said in answers],
    }


class _Looks:
    """Looks that remember which steps the last one has told."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    async def __call__(self) -> dict[str, Any]:
        try:
            state = await _state(self._seen)
        except Unanswered as error:
            return {"time_unix_s": round(time.time(), 3), "error": str(error)}
        for replica in state["replicas"]:
            newest = replica["steps"]["newest_step"]
            if newest is not None:
                self._seen[str(replica["replica"])] = newest
        return state


async def _body(request: Request) -> bytes:
    """The body, as long as it can be a configuration."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _BODY_MAX_BYTES:
            raise changes.Refused(f"the body is longer than {_BODY_MAX_BYTES:,} bytes", 413)
    return body


def _host_of(origin: str) -> str | None:
    """Host and port of an ``Origin``; None, which is no server's, where it is no address."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _stopping() -> bool:
    try:
        return bool(tokenizer_manager().gracefully_exit)
    except Unanswered:
        return False


_broadcast = Broadcast(_Looks(), _stopping)


def _who(request: Request) -> str:
    """The client's address; a proxy's word for another is told, and not believed."""
    client = request.client
    address = "an unknown address" if client is None else one_line(f"{client.host}:{client.port}")
    forwarded = request.headers.get("x-forwarded-for")
    if not forwarded:
        return address
    return f"{address} (forwarded for {forwarded[:_FORWARDED_MAX_CHARACTERS]!r})"
