"""An HTTP server that steps like an engine with a known step time.

It stands in for the far end of the client's protocol only; nothing of the project runs
inside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class _Request:
    prompt: int
    wanted: int
    made: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class EnginePeer:
    """One batch, one token per request and step; prompts stall it for their own time."""

    step_ms: Callable[[int], float]
    prefill_ms_per_token: float = 0.05
    trace: Path | None = None
    info: dict[str, Any] = field(default_factory=dict)
    twp: dict[str, Any] = field(default_factory=dict)
    foreign: int = 0
    answers_info: bool = True
    refuse: str | None = None
    flushes: int = 0
    prompts: list[list[int]] = field(default_factory=list)
    url: str = ""
    _waiting: list[_Request] = field(default_factory=list)
    _running: list[_Request] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _step: int = 0
    _noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            if not self._waiting and not self._running:
                self._woken.clear()
                await self._woken.wait()
                at = loop.time()
            joining, self._waiting = self._waiting, []
            if joining:
                tokens = sum(r.prompt for r in joining)
                duration = self.prefill_ms_per_token * tokens
                at = await self._until(at + duration / 1e3)
                self._running += joining
                self._tell(joining, "prefill", duration, tokens, 0)
            if self._running:
                batch = len(self._running)
                at = await self._until(at + self.step_ms(batch) / 1e3)
                self._tell(self._running, "decode", self.step_ms(batch), 0, batch)

    async def _until(self, end_s: float) -> float:
        await asyncio.sleep(max(end_s - asyncio.get_running_loop().time(), 0.0))
        return asyncio.get_running_loop().time()

    def _tell(
        self, requests: list[_Request], kind: str, duration: float, prefill: int, batch: int
    ) -> None:
        for request in requests:
            request.made += 1
            request.news.set()
        over = [r for r in self._running if r.made >= r.wanted]
        self._running = [r for r in self._running if r.made < r.wanted]
        if self.trace is not None:
            self._step += 1
            row = {
                "step": self._step,
                "kind": kind,
                "duration_ms": duration * self._noise.normal(1.0, 0.01),
                "batch": batch,
                "prefill_tokens": prefill,
                "kv_tokens": sum(r.prompt + r.made for r in [*self._running, *over]),
                "finished": [[r.prompt, r.made] for r in over],
            }
            with self.trace.open("a") as file:
                file.write(json.dumps(row) + "\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.refuse is not None:
            return web.json_response({"error": {"message": self.refuse}}, status=400)
        self.prompts.append(body["input_ids"])
        mine = _Request(len(body["input_ids"]), body["sampling_params"]["max_new_tokens"])
        assert body["sampling_params"]["ignore_eos"] is True
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._waiting.append(mine)
        self._woken.set()
        told = 0
        while told < mine.wanted:
            await mine.news.wait()
            mine.news.clear()
            told = mine.made
            meta = {
                "prompt_tokens": mine.prompt,
                "cached_tokens": 0,
                "completion_tokens": told,
                "finish_reason": {"type": "length"} if told >= mine.wanted else None,
            }
            event = {"output_ids": [5], "meta_info": meta}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def server_info(self, request: web.Request) -> web.Response:
        if not self.answers_info:
            raise web.HTTPNotFound
        state: dict[str, Any] = {"effective_max_running_requests_per_dp": 64}
        if self.trace is not None or self.twp:
            state["twp"] = {"policy": "fcfs", "trace": str(self.trace or ""), **self.twp}
        info = {
            "version": "0.5.23",
            "model_path": "peer-model",
            "device": "cpu",
            "dtype": "float32",
            "max_total_num_tokens": 100_000,
            "max_req_input_len": 4000,
            "chunked_prefill_size": 4096,
            "internal_states": [state],
        }
        return web.json_response(info | self.info)

    async def loads(self, request: web.Request) -> web.Response:
        running = len(self._running) + self.foreign
        load = {"num_running_reqs": running, "num_waiting_reqs": len(self._waiting)}
        return web.json_response({"loads": [load]})

    async def flush(self, request: web.Request) -> web.Response:
        self.flushes += 1
        return web.Response()


@asynccontextmanager
async def serving(peer: EnginePeer) -> AsyncIterator[EnginePeer]:
    """Run ``peer`` on a free port of this machine."""
    app = web.Application()
    app.router.add_post("/generate", peer.generate)
    app.router.add_get("/server_info", peer.server_info)
    app.router.add_get("/v1/loads", peer.loads)
    app.router.add_post("/flush_cache", peer.flush)
    engine = asyncio.create_task(peer.run())
    try:
        async with TestServer(app) as server:
            peer.url = str(server.make_url("")).rstrip("/")
            yield peer
    finally:
        engine.cancel()
