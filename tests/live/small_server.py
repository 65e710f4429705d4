"""TWP's own routes, page and scheduler side in one process, with no engine between them.

Everything is the real thing but SGLang: requests are stand-ins that a thread serves step by
step, and questions go straight to :mod:`patches.control` instead of over SGLang's broadcast.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import uvicorn
from fastapi import FastAPI

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from patches import control, questions
from patches.http import routes
from patches.http.asking import Unanswered
from patches.runtime import Ranks, Runtime
from twp_sglang.config import TwpConfig

MODEL = "small-model"


class Replica:
    """One scheduler process: requests come, run for as many steps as they asked for, and go."""

    def __init__(self, number: int = 0, *, step_s: float = 0.01, **fields: Any) -> None:
        config = TwpConfig(
            **{"policy": "twp", "h0_tokens": 400.0, "warmup_steps": 0, "b0": 8, **fields}
        )
        self.batch = Batch([])
        self.scheduler: Any = Scheduler(self.batch, 20_000, 20_000)
        self.scheduler.chunked_prefill_size = 2048
        self.scheduler.page_size = 1
        self.scheduler.truncation_align_size = None
        ranks = Ranks(0, number)
        self.runtime = Runtime(config, self.scheduler, ranks, None, Header(), 512)
        self.lock = threading.Lock()
        self._step_s = step_s
        self._random = random.Random(number)
        self._names = 0
        self.outgoing_load = 0.0
        """Requests per step that arrive."""

    def arrive(self, count: int, prompt: int = 40, output: int = 60) -> list[str]:
        """Let ``count`` requests join; their names."""
        names = []
        with self.lock:
            for _ in range(count):
                self._names += 1
                req = Req(f"r{self._names}", prompt, output)
                self.scheduler.waiting_queue.append(req)
                if self.runtime.deciding:
                    self.runtime.enqueued(req, False)
                names.append(req.rid)
        return names

    def fall_back(self) -> None:
        """What a hook does when TWP fails in it."""
        with self.lock:
            try:
                raise RuntimeError("a fault for the page to show")
            except RuntimeError:
                self.runtime.fault("order")

    def step(self) -> None:
        """One scheduling pass and the step it forms."""
        if self._random.random() < self.outgoing_load:
            self.arrive(1, self._random.randint(10, 300), self._random.randint(10, 120))
        scheduler, runtime, batch = self.scheduler, self.runtime, self.batch
        with self.lock:
            batch.reqs = [
                r for r in batch.reqs if len(r.output_ids) < r.sampling_params.max_new_tokens
            ]
            deciding = runtime.deciding
            if deciding:
                runtime.begin_pass()
                if scheduler.waiting_queue:
                    runtime.order(scheduler.waiting_queue, batch)
            taken = [r for r in scheduler.waiting_queue if not deciding or runtime.may_admit(r)][:4]
            for req in taken:
                if deciding:
                    runtime.admitted(req)
                scheduler.waiting_queue.remove(req)
            prompts = sum(len(req.origin_input_ids) for req in taken)
            if deciding:
                ran = Batch(batch.reqs + taken) if batch.reqs or taken else None
                runtime.end_pass(Plan(ran, batch))  # type: ignore[arg-type]
            batch.reqs = batch.reqs + taken
            held = sum(len(r.origin_input_ids) + len(r.output_ids) for r in batch.reqs)
            scheduler.token_to_kv_pool_allocator.free = 20_000 - held
        rows = len(batch.reqs)
        time.sleep(self._step_s + 0.0005 * max(0, rows - 8) + prompts * 2e-5)
        with self.lock:
            for req in batch.reqs:
                req.output_ids.append(1)
            if deciding and rows:
                runtime.completed(batch)
                envelope = runtime.outgoing()
                if envelope is not None:
                    runtime.deliver(envelope)


class SmallServer:
    """A running server of TWP's routes."""

    def __init__(self, replicas: list[Replica], port: int) -> None:
        self.replicas = replicas
        self.url = f"http://127.0.0.1:{port}"
        self.manager = SimpleNamespace(served_model_name=MODEL, gracefully_exit=False)
        self.silent = False
        """Whether the schedulers have stopped to answer."""
        self.questions = 0

    async def ask(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """In the place of :func:`patches.http.asking.ask`."""
        self.questions += 1
        if self.silent:
            raise Unanswered("the scheduler did not answer within 10 s: it hangs", 504)
        said = []
        for replica in self.replicas:
            question = questions.asked(questions.written({"ask": kind, "id": 1, **fields}))
            assert question is not None
            with replica.lock:
                said.append(control.answer(replica.runtime, replica.scheduler, question))
        for one in said:
            if "fault" in one:
                raise Unanswered(str(one["fault"]), 500)
        return said


@contextmanager
def serving(*replicas: Replica, api_key: str | None = None) -> Iterator[SmallServer]:
    """Serve ``replicas`` until the block ends."""
    app = FastAPI()
    app.router.routes.extend(routes.router.routes)
    if api_key is not None:
        _lock(app, api_key)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    web = uvicorn.Server(config)
    small = SmallServer(list(replicas), 0)
    ends = threading.Event()
    threads = [threading.Thread(target=_play, args=(one, ends), daemon=True) for one in replicas]
    looks = routes.Broadcast(routes._Looks(), lambda: small.manager.gracefully_exit)
    with (
        mock.patch.object(routes, "ask", small.ask),
        mock.patch("patches.http.changes.ask", small.ask),
        mock.patch.object(routes, "tokenizer_manager", return_value=small.manager),
        mock.patch.object(routes, "_broadcast", looks),
    ):
        host = threading.Thread(target=lambda: asyncio.run(web.serve()), daemon=True)
        for thread in (host, *threads):
            thread.start()
        while not web.started:
            time.sleep(0.01)
        port = web.servers[0].sockets[0].getsockname()[1]
        small.url = f"http://127.0.0.1:{port}"
        try:
            yield small
        finally:
            small.manager.gracefully_exit = True
            ends.set()
            web.should_exit = True
            host.join(10)


def _play(replica: Replica, ends: threading.Event) -> None:
    while not ends.is_set():
        replica.step()


def _lock(app: FastAPI, api_key: str) -> None:
    """SGLang's own check of keys, with TWP's hook around its decision."""
    from sglang.srt.utils import auth

    from patches.sglang_0_5.page_access import decide_request_auth

    original = auth.decide_request_auth

    def hooked(**request: Any) -> Any:
        return decide_request_auth(original, **request)

    auth.decide_request_auth = hooked
    auth.add_api_key_middleware(app, api_key=api_key, admin_api_key=None)
