"""A small HTTP server that speaks the streaming protocols with known gaps and faults.

It stands in for the far end of the client's protocol only; nothing of the project runs
inside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def sse(event: Any) -> bytes:
    """One event on the wire."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def sglang_stream(
    gaps_s: list[float], carries: list[int] | None = None, finish: str = "length"
) -> Behaviour:
    """SGLang's /generate: after each gap an event with the cumulative count."""
    carried = carries or [1] * len(gaps_s)

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        total = 0
        for place, (gap_s, tokens) in enumerate(zip(gaps_s, carried, strict=True)):
            await asyncio.sleep(gap_s)
            total += tokens
            last = place == len(gaps_s) - 1
            meta = {
                "prompt_tokens": len(body.get("input_ids", "")) or 7,
                "cached_tokens": 0,
                "completion_tokens": total,
                "finish_reason": {"type": finish} if last else None,
            }
            await response.write(sse({"output_ids": [5] * total, "meta_info": meta}))
        await response.write(b"data: [DONE]\n\n")
        return response

    return behave


def paced(body: dict[str, Any], gap_s: float) -> list[float]:
    """A gap for every token that the request asks for."""
    count = body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]
    return [gap_s] * int(count)


@dataclass
class Peer:
    """The server's state: what it does, and what it was sent."""

    behaviours: list[Behaviour]
    info: dict[str, Any] | None = field(default_factory=lambda: {"version": "0.5.23"})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    received_s: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    flushes: int = 0
    flush_status: int = 200
    url: str = ""

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        place = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.received_s.append(asyncio.get_running_loop().time())
        return await self.behaviours[min(place, len(self.behaviours) - 1)](request, body)

    async def server_info(self, request: web.Request) -> web.Response:
        if self.info is None:
            raise web.HTTPNotFound
        return web.json_response(self.info)

    async def flush(self, request: web.Request) -> web.Response:
        self.flushes += 1
        return web.Response(
            status=self.flush_status, text="busy" if self.flush_status > 200 else ""
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "peer-model"}]})


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[Peer]:
    """Run ``peer`` on a free port of this machine."""
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/generate", peer.generate)
    app.router.add_post("/v1/completions", peer.generate)
    app.router.add_post("/v1/chat/completions", peer.generate)
    app.router.add_get("/server_info", peer.server_info)
    app.router.add_post("/flush_cache", peer.flush)
    app.router.add_get("/v1/models", peer.models)
    async with TestServer(app) as server:
        peer.url = str(server.make_url("")).rstrip("/")
        yield peer
