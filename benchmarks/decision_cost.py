"""``python -m benchmarks.decision_cost``: what TWP costs the engine per scheduling pass.

Times the calls that the hooks make in one pass, on stand-ins of SGLang's objects:
``begin_pass``, ``order`` (the decision), ``may_admit`` and ``admitted`` for each request
taken, ``end_pass``, ``completed``, and the sample's way through ``outgoing`` and
``deliver``. The engine's own work is left out, and so is the hooks' one function call
each. Medians, because a shared machine has stray slow passes; P95 beside them.

Exit code 1 if a median misses its target.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from benchmarks.real_prefix_cache import RealPrefixCache
from controllers.step_trace import Header
from patches.arrivals import info_of
from patches.runtime import Ranks, Runtime
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.request_terms import KEY

CAPACITY_TOKENS = 2_000_000

TAKEN_PER_PASS = 4
"""Requests that the engine takes in a pass in which the gate is open."""

QUEUES = (100, 10_000, 100_000)
BATCHES = (64, 256)

TARGET_US = {
    "closed": {100: 30.0, 10_000: 30.0, 100_000: 30.0},
    "open": {10_000: 400.0, 100_000: 4000.0},
}
"""Most microseconds per decision, by gate and queue length."""


class Row(NamedTuple):
    """Medians and 95th percentiles of one case, in microseconds."""

    gate: str
    queue: int
    batch: int
    passes: int
    decision_us: float
    decision_p95_us: float
    pass_us: float
    pass_p95_us: float
    target_us: float | None

    @property
    def met(self) -> bool:
        """Whether the decision's median keeps its target."""
        return self.target_us is None or self.decision_us <= self.target_us


SLO_TARGET_US = {
    "closed": {100: 60.0, 10_000: 60.0},
    "open": {10_000: 500.0},
    "memory": {10_000: 500.0},
    "own": {10_000: 1000.0},
}
"""The same for policy slo, which predicts steps, memory and lateness; ``memory`` is a gate that
the forecast of the KV cache shuts, computed over all rows in every pass; with ``own`` requests
have TTFT objectives of their own and three priorities, which the prompt rate can keep for most."""

OWN_TTFT_MS = (None, 30_000.0, 120_000.0, 600_000.0)
PRIORITIES = 3
OWN_PREFILL_MS_PER_TOKEN = 0.05
"""10,000 prompts of 205 tokens take 103 s: those of low priority with an early date are late."""

OWN_ITL_SLO_MS = 50.0
"""Steps take some 900 prompt tokens, as they do where a prompt token costs that much."""

CLIENTS = 8
"""Clients that the requests name under policy slo."""

ANSWERS = 1_000
"""Answers from which policy slo has learned output lengths."""


def _target(policy: str, gate: str, queue: int) -> float | None:
    targets = SLO_TARGET_US if policy == "slo" else TARGET_US
    return targets[gate].get(queue)


def measure_case(
    gate: str,
    queue: int,
    batch: int,
    passes: int,
    trace_dir: Path,
    policy: str = "twp",
    exporter: Any = None,
    *,
    prefix_cache: bool = False,
) -> Row:
    """Time ``passes`` passes with ``queue`` waiting and ``batch`` running requests."""
    engine = _Engine(gate, queue, batch, trace_dir, policy, exporter, prefix_cache=prefix_cache)
    for _ in range(max(3, passes // 10)):
        engine.run_pass()
    engine.decision_us.clear()
    engine.pass_us.clear()
    gc.collect()
    gc.disable()
    try:
        for _ in range(passes):
            engine.run_pass()
    finally:
        gc.enable()
    return Row(
        gate,
        queue,
        batch,
        passes,
        round(median(engine.decision_us), 1),
        round(quantiles(engine.decision_us, n=20)[-1], 1),
        round(median(engine.pass_us), 1),
        round(quantiles(engine.pass_us, n=20)[-1], 1),
        _target(policy, gate, queue),
    )


def _window(gate: str) -> TwpConfig:
    """The window decides whether the gate is open; the load is the same in both cases."""
    window = 1.0 if gate == "closed" else 1e9
    return TwpConfig(
        law="fixed",
        h0_tokens=window,
        h_min_tokens=window,
        h_max_tokens=window,
        l_min_ms=20.0,
        t_max_steps=10**9,
        warmup_steps=0,
    )


def _model(gate: str) -> TwpConfig:
    """The cost of a row decides whether the predicted step has room for another."""
    return TwpConfig(
        policy="slo",
        itl_slo_ms=OWN_ITL_SLO_MS if gate == "own" else 1000.0,
        l_min_ms=0.01,
        a_ms=100.0 if gate == "closed" else 0.0,
        prefill_ms_per_token=OWN_PREFILL_MS_PER_TOKEN if gate == "own" else 1e-6,
        warmup_steps=0,
    )


class _Engine:
    """Drives one runtime as the hooks do; the queue keeps its length."""

    def __init__(
        self,
        gate: str,
        queue: int,
        batch: int,
        trace_dir: Path,
        policy: str = "twp",
        exporter: Any = None,
        *,
        prefix_cache: bool = False,
    ) -> None:
        self._random = random.Random(20_26)
        self._prefixes = RealPrefixCache(random.Random(7)) if prefix_cache else None
        self._names = iter(range(10**9))
        self._slo = policy == "slo"
        self._own = gate == "own"
        running = Batch([self._request() for _ in range(batch)])
        # With 4 % of the pool to be kept free, a newcomer's prompt does not fit any more.
        free = 0.04 if gate == "memory" else 0.6
        self.scheduler = Scheduler(running, CAPACITY_TOKENS, int(free * CAPACITY_TOKENS))
        if self._prefixes is not None:
            self.scheduler.tree_cache = self._prefixes.cache
        self.plan = Plan(running, running)
        self.scheduler.enable_priority_scheduling = self._own
        config = _window(gate) if policy == "twp" else _model(gate)
        self.runtime = Runtime(
            config, self.scheduler, Ranks(0, None), trace_dir, Header(), exporter=exporter
        )
        self.runtime.outgoing()
        if self._slo:
            self._serve_before(running.reqs)
        for _ in range(queue):
            self._join()
        self.decision_us: list[float] = []
        self.pass_us: list[float] = []

    def _request(self) -> Req:
        req = Req(
            str(next(self._names)),
            self._random.randint(10, 400),
            self._random.randint(200, 2000),
            self._random.randint(0, 150),
        )
        if self._slo:
            terms: dict[str, Any] = {"client": self._client()}
            own_ttft_ms = self._random.choice(OWN_TTFT_MS) if self._own else None
            if own_ttft_ms is not None:
                terms["ttft_slo_ms"] = own_ttft_ms
            req.sampling_params.custom_params = {KEY: terms}
        if self._own:
            req.priority = self._random.randrange(PRIORITIES)
        if self._prefixes is not None:
            req.origin_input_ids = self._prefixes.prompt(len(req.origin_input_ids))
        return req

    def _client(self) -> str:
        return f"client {self._random.randrange(CLIENTS)}"

    def _serve_before(self, running: list[Req]) -> None:
        """What policy slo knows when it has served for a while: lengths, and who runs."""
        policy = self.runtime.policy
        for _ in range(ANSWERS):
            output = min(int(self._random.lognormvariate(5.0, 1.0)) + 1, 1999)
            prompt = self._random.randint(10, 400)
            policy.finished(FinishedAnswer(prompt, output, 2000, self._client()))
        for req in running:
            self.runtime.enqueued(req, retracted=False)
            info = info_of(req)
            assert info is not None
            policy.taken(info)

    def _join(self) -> None:
        req = self._request()
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, retracted=False)

    def run_pass(self) -> None:
        """One pass; what SGLang itself does between the calls is not timed."""
        runtime, scheduler = self.runtime, self.scheduler
        timed = _Stopwatch()
        timed.run(self._deliver)
        timed.run(runtime.begin_pass)
        before = timed.total_s
        timed.run(lambda: runtime.order(scheduler.waiting_queue, scheduler.running_batch))
        self.decision_us.append((timed.total_s - before) * 1e6)
        taken = [req for req in scheduler.waiting_queue[:TAKEN_PER_PASS] if runtime.may_admit(req)]
        timed.run(lambda: self._take(taken))
        if taken:
            chosen = set(map(id, taken))
            scheduler.waiting_queue = [r for r in scheduler.waiting_queue if id(r) not in chosen]
        timed.run(lambda: runtime.end_pass(self.plan))
        timed.run(lambda: runtime.completed(scheduler.running_batch))
        self.pass_us.append(timed.total_s * 1e6)
        for req in scheduler.running_batch.reqs:
            if len(req.output_ids) < 190:
                req.output_ids.append(0)
        for req in taken:
            if self._prefixes is not None:
                # Free or evictable, the pool stays as full as it was.
                kept = self._prefixes.computed(req.origin_input_ids)
                scheduler.token_to_kv_pool_allocator.free -= kept
            self._join()

    def _deliver(self) -> None:
        envelope = self.runtime.outgoing()
        if envelope is not None:
            self.runtime.deliver(envelope)

    def _take(self, taken: list[Req]) -> None:
        for req in taken:
            if self.runtime.may_admit(req):
                self.runtime.admitted(req)


def _exporter(folder: str) -> Any:
    """Writes to files that several processes share, as under SGLang."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    from patches.metrics.exporter import Exporter

    return Exporter({"model_name": "m"}, time.monotonic)


class _Stopwatch:
    """Adds up the time of calls."""

    def __init__(self) -> None:
        self.total_s = 0.0

    def run(self, call: Callable[[], None]) -> None:
        """Time ``call``."""
        start = time.perf_counter()
        call()
        self.total_s += time.perf_counter() - start


def as_table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [
        "gate     waiting  batch   decision us (P95)      whole pass us (P95)    target us",
    ]
    for row in rows:
        target = (
            "" if row.target_us is None else f"{row.target_us:g}{'' if row.met else '  MISSED'}"
        )
        lines.append(
            f"{row.gate:<7}{row.queue:>9,}{row.batch:>7}"
            f"{row.decision_us:>14,.1f} ({row.decision_p95_us:,.1f})"
            f"{row.pass_us:>16,.1f} ({row.pass_p95_us:,.1f})   {target}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decision_cost", description="Time TWP's decisions."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--passes", type=int, default=400, help="passes per case, a tenth of it at 100,000 waiting"
    )
    parser.add_argument("--policy", choices=("twp", "slo"), default="twp", help="[%(default)s]")
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="with metrics exported as --enable-metrics does; needs an engine extra",
    )
    parser.add_argument(
        "--prefix-cache",
        action="store_true",
        help="with SGLang's own prefix cache, asked about those who wait; needs an engine extra",
    )
    arguments = parser.parse_args(argv)
    if arguments.passes < 40:
        parser.error(f"--passes {arguments.passes}: at least 40, for a median that means something")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        exporter = _exporter(folder) if arguments.metrics else None
        for gate in SLO_TARGET_US if arguments.policy == "slo" else TARGET_US:
            for queue in QUEUES:
                for batch in BATCHES:
                    passes = arguments.passes if queue < 100_000 else arguments.passes // 4
                    rows.append(
                        measure_case(
                            gate,
                            queue,
                            batch,
                            passes,
                            Path(folder),
                            arguments.policy,
                            exporter,
                            prefix_cache=arguments.prefix_cache,
                        )
                    )
    print(as_table(rows))
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps(
                {
                    "machine": platform.processor() or platform.machine(),
                    "python": platform.python_version(),
                    "policy": arguments.policy,
                    "prefix_cache": arguments.prefix_cache,
                    "rows": [{**row._asdict(), "met": row.met} for row in rows],
                },
                indent=2,
            )
            + "\n"
        )
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
