"""One run from a workload to its result: what the command line and the analysis call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from controllers.laws.base import FrozenModel
from twp_sglang.config import TwpConfig
from twp_sglang.latency_metrics import Distribution, FloatArray, LatencySummary, Slo, distribution
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.metrics import summarise_run
from twp_sglang.simulator.policy_driver import StepSink
from twp_sglang.simulator.replicas import RouterName, build_router, serve
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.step_models import StepModel, StepTimer
from twp_sglang.workloads.request import Request


class SimulationResult(FrozenModel):
    """What a run came to. ``wall_s`` is the only field that differs between equal runs.

    Attributes:
        latency: the metrics, over all requests.
        refused: requests refused at arrival, by reason.
        failed: admitted requests that could not be finished, by reason.
        retractions: times a request lost its memory and was computed again.
        preemptions: times a request made way for one of higher priority.
        forced: admissions past the guards because of waiting time.
        prefix_hit_tokens: prompt tokens that were not computed because their KV was there.
        window_tokens: the window H over the run; no samples where the policy has none.
        steps: engine steps, all replicas together.
        wall_s: seconds that the simulation took.
    """

    latency: LatencySummary
    refused: dict[str, int]
    failed: dict[str, int]
    retractions: int
    preemptions: int
    forced: int
    prefix_hit_tokens: int
    window_tokens: Distribution
    steps: int
    wall_s: float


class Run(NamedTuple):
    """A finished run with everything in it, for tests and analyses."""

    result: SimulationResult
    requests: list[LiveRequest]
    engines: list[Engine]
    placed: list[int]
    """Engine of each request."""

    def decode_done_ms(self, engine: int = 0) -> FloatArray:
        """Completion times of an engine's decode launches."""
        return np.frombuffer(self.engines[engine].decode_done_ms, dtype=np.float64)


def policy_of(config: TwpConfig) -> Policy | None:
    """A fresh policy object as ``config`` names it; None for stock SGLang."""
    return None if config.policy == "off" else build_policy(config)


def simulate(
    workload: Sequence[Request],
    settings: EngineSettings,
    model: Callable[[], StepModel],
    config: TwpConfig,
    *,
    replicas: int = 1,
    router: RouterName = "round-robin",
    report_every_ms: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    slos: Sequence[Slo] = (),
    sinks: Sequence[StepSink] = (),
    progress: Callable[[int], None] | None = None,
    leap: bool = True,
) -> Run:
    """Serve ``workload`` and summarise.

    Args:
        workload: requests in order of arrival.
        settings: of every engine.
        model: makes the step model of one engine.
        config: policy and its parameters; every engine gets its own policy object.
        replicas: engines behind the router.
        router, report_every_ms: see :mod:`~twp_sglang.simulator.replicas`.
        noise: scatter of the step times, see
            :class:`~twp_sglang.simulator.step_models.StepTimer`.
        seed: of the scatter; equal seeds give equal runs to the bit.
        slos: objectives for goodput.
        sinks: one for the step records of each engine, or none at all.
        progress: called with the number of requests that left so far.
        leap: see :class:`~twp_sglang.simulator.engine.Engine`.

    Raises:
        ValueError: no replica, arrivals out of order, or sinks for only some engines.
        SimulationStalled: a policy admits nobody to an empty engine.
    """
    if replicas < 1:
        raise ValueError(f"replicas = {replicas}: give at least 1")
    if sinks and len(sinks) != replicas:
        raise ValueError(f"{len(sinks)} sinks for {replicas} replicas: give one each or none")
    began = time.perf_counter()
    if not any(request.prefix for request in workload):
        # Nothing can be found again: the free pages need no order.
        settings = settings.model_copy(update={"prefix_cache": False})
    live = live_requests(workload)
    left = 0

    def on_left(request: LiveRequest) -> None:
        nonlocal left
        left += 1
        if progress is not None:
            progress(left)

    engines = [
        Engine(
            settings,
            StepTimer(model(), noise, seed + index),
            policy_of(config),
            sinks[index] if sinks else None,
            leap=leap,
            on_left=on_left,
        )
        for index in range(replicas)
    ]
    placed = serve(engines, build_router(router, engines, report_every_ms), live)
    result = result_of(live, engines, placed, slos, began)
    return Run(result, live, engines, placed)


def live_requests(workload: Sequence[Request]) -> list[LiveRequest]:
    """The workload's requests, ready to be served.

    Raises:
        ValueError: arrivals out of order.
    """
    live = [
        LiveRequest(request, index, request.arrival_s * 1e3)
        for index, request in enumerate(workload)
    ]
    for index in range(1, len(live)):
        if live[index].arrival_ms < live[index - 1].arrival_ms:
            raise ValueError(f"request {index} arrives before the one before it: sort by time")
    return live


def result_of(
    live: list[LiveRequest],
    engines: list[Engine],
    placed: list[int],
    slos: Sequence[Slo],
    began_s: float,
) -> SimulationResult:
    """The result of a finished run; ``placed`` holds the engine of each request."""
    members: list[list[LiveRequest]] = [[] for _ in engines]
    for request, chosen in zip(live, placed, strict=True):
        members[chosen].append(request)
    first_ms = live[0].arrival_ms if live else 0.0
    last_ms = max((engine.gpu_free_ms for engine in engines), default=first_ms)
    latency = summarise_run(
        [
            (requests, np.frombuffer(engine.decode_done_ms, dtype=np.float64))
            for requests, engine in zip(members, engines, strict=True)
        ],
        max(0.0, last_ms - first_ms) / 1e3,
        slos,
    )
    windows = np.concatenate([np.array(engine.driver.windows) for engine in engines])
    return SimulationResult(
        latency=latency,
        refused=_reasons(live, "refused"),
        failed=_reasons(live, "failed"),
        retractions=sum(engine.batcher.retractions for engine in engines),
        preemptions=sum(engine.batcher.preemptions for engine in engines),
        forced=sum(engine.driver.forced for engine in engines),
        prefix_hit_tokens=sum(engine.pool.hit_tokens for engine in engines),
        window_tokens=distribution(windows),
        steps=sum(engine.steps for engine in engines),
        wall_s=time.perf_counter() - began_s,
    )


def _reasons(live: list[LiveRequest], status: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for request in live:
        if request.status == status:
            # Numbers differ from request to request; the words say what it was.
            reason = _KINDS.get(request.reason.split(" ")[0], request.reason)
            counts[reason] = counts.get(reason, 0) + 1
    return counts


_KINDS = {"needs": "larger than the KV pool", "queue": "queue full"}
