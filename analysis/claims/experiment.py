"""The paper's evaluation in the simulator: six schedulers, five workloads, five set-ups.

What the paper leaves open is chosen here once, with the reason beside it, and never by looking
at its results:

* step time: the profile ``paper-v100``, equation (2) with l_min = 43 ms and B0 = 8;
* rates of the four workloads: by utilisation lambda Lbar / (1/alpha) (section III-C);
* output lengths of the Poisson workload: 20 to 80, mean 50 = H0 / B0 (section V);
* decisions see the step just measured (no overlap), as section IV-B states;
* baselines take whole prompts: chunking is part of TWP (section IV-B3);
* lengths are known to every scheduler, which flatters those that use them.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from analysis.claims.published import Load, Published, Scheduler
from controllers.laws.base import FrozenModel
from twp_sglang.config import PolicyName, TwpConfig
from twp_sglang.latency_metrics import TokenTimes, decode_gap_ms, e2e_ms, itl_ms, ttft_ms
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.placement import PlacementName
from twp_sglang.simulator.pool_settings import LoadingRates, PoolModel, PoolSettings
from twp_sglang.simulator.serverless import PoolRun, simulate_pool
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.step_models import AffineStep, StepModel
from twp_sglang.simulator.step_sources import build
from twp_sglang.step_profiles import named_profile
from twp_sglang.workloads.generate import Phase, Poisson, Stream, WorkloadSpec, generate
from twp_sglang.workloads.request import Request

WorkloadName = Literal["poisson", "low", "medium", "high", "burst"]
WORKLOADS: tuple[WorkloadName, ...] = ("poisson", "low", "medium", "high", "burst")

SetupName = Literal["paper", "steep", "prompts", "window only", "cold pool"]
SETUPS: dict[SetupName, str] = {
    "paper": "one warm V100, step time by equation (2)",
    "steep": "the same with alpha = 2 l_min / B0: tokens per second fall beyond B0, which favours "
    "a window most",
    "prompts": "as paper with 0.084 ms per prompt token: a long prompt doubles one step (II-A)",
    "window only": "as paper, nobody is forced in: the window alone decides",
    "cold pool": "2 nodes of 2 V100s that start cold, two models, one stored on each node",
}

UTILISATION: dict[Load, float] = {"low": 0.5, "medium": 0.8, "high": 1.1, "burst": 0.8}
"""lambda Lbar alpha; the burst comes on top of the medium load."""

BURST_FACTOR = 4.0
BURST_SHARE = 0.1
"""Of the run's time, in its middle."""

POISSON_OUTPUTS = "20-80"

PROMPT_MS = 43.0 / 512
"""The longest prompt of VI-A admitted in one shot "can temporarily double" ITL (II-A)."""

WARM_UP_S = 60.0
"""Before the first measured request the container is loaded by one that is not measured: no
figure of the paper holds a cold start."""

V100_RATES = LoadingRates(nvme_gb_per_s=3.0, dram_gb_per_s=12.0)
"""PCIe 3.0 instead of 4.0: half the local rates."""

_POLICIES: dict[Scheduler, tuple[PolicyName, PlacementName]] = {
    "FCFS": ("fcfs", "plain"),
    "RoundRobin": ("fcfs", "round-robin"),
    "Priority": ("priority", "plain"),
    "DynBatch": ("dynamic-batch", "plain"),
    "ServerlessLLM": ("fcfs", "serverlessllm"),
    "TWP": ("twp", "plain"),
}

NEVER_STEPS = 10**9


class Task(FrozenModel):
    """One simulation: equal tasks give equal metrics."""

    setup: SetupName
    workload: WorkloadName
    scheduler: Scheduler
    run: int
    requests: int


class Measured(NamedTuple):
    """A run with the token times of its measured requests, in order of arrival."""

    times: list[TokenTimes]
    pooled: PoolRun


@functools.cache
def plant(setup: SetupName) -> AffineStep:
    """Step time of a set-up."""
    step = named_profile("paper-v100").step
    assert isinstance(step, AffineStep)
    if setup == "steep":
        return step.model_copy(update={"alpha_ms": 2.0 * step.l_min_ms / step.b0})
    if setup == "prompts":
        return step.model_copy(update={"prefill_ms_per_token": PROMPT_MS})
    return step


def token_bound_per_s() -> float:
    """1/alpha, the most tokens per second that section III-C allows."""
    return 1e3 / plant("paper").alpha_ms


def rate_rps(workload: WorkloadName, paper: Published) -> float:
    """Requests per second, outside the burst."""
    if workload == "poisson":
        return paper.arrival_rps
    return UTILISATION[workload] * token_bound_per_s() / paper.mean_output_tokens


def requests_of(task: Task, paper: Published) -> list[Request]:
    """The measured requests of a task: the same for all schedulers and set-ups."""
    rate = rate_rps(task.workload, paper)
    if task.workload == "poisson":
        prompts = ",".join(f"{p.low}-{p.high}@{p.probability:g}" for p in paper.prompts)
        stream = functools.partial(_stream, prompts, POISSON_OUTPUTS)
    else:
        shares = paper.table_probabilities
        stream = functools.partial(
            _stream, _mixture(paper.table_prompts, shares), _mixture(paper.table_outputs, shares)
        )
    phases: tuple[Phase, ...]
    if task.workload == "burst":
        mean_rate = rate * (1 - BURST_SHARE + BURST_SHARE * BURST_FACTOR)
        span_s = task.requests / mean_rate
        quiet_s = 0.5 * (1 - BURST_SHARE) * span_s
        phases = (
            stream(rate, quiet_s),
            stream(rate * BURST_FACTOR, BURST_SHARE * span_s),
            stream(rate, 2.0 * quiet_s + 60.0),
        )
    else:
        # Half as long again as wanted on average, so that the draw is hardly ever short.
        phases = (stream(rate, 1.5 * task.requests / rate + 5.0),)
    spec = WorkloadSpec(name=task.workload, phases=phases)
    return list(generate(spec, seed=task.run, limit=task.requests).requests)


def _stream(prompts: str, outputs: str, rate: float, duration_s: float) -> Phase:
    arrivals = Poisson(rate_rps=rate)
    stream = Stream(arrivals=arrivals, input_tokens=prompts, output_tokens=outputs)
    return Phase(duration_s=duration_s, streams=(stream,))


def _mixture(lengths: tuple[int, ...], shares: tuple[float, ...]) -> str:
    return ",".join(f"{n}@{p:g}" for n, p in zip(lengths, shares, strict=True))


def config_of(task: Task, paper: Published) -> TwpConfig:
    """The scheduler with the paper's parameters; l_min is the plant's, as if profiled."""
    forcing: dict[str, Any] = {"forced_per_step": None}
    if task.setup == "window only":
        forcing = {"t_max_steps": NEVER_STEPS}
    return TwpConfig(
        policy=_POLICIES[task.scheduler][0],
        h0_tokens=paper.h0_tokens,
        gamma=paper.gamma,
        b0=paper.b0,
        l_min_ms=plant("paper").l_min_ms,
        **forcing,
    )


def pool_of(setup: SetupName) -> PoolSettings:
    """The containers of a set-up."""
    if setup != "cold pool":
        return PoolSettings(
            nodes=1,
            gpus_per_node=1,
            models=(PoolModel(name="model", on_nvme=(0,)),),
            keep_alive_s=1e6,
            rates=V100_RATES,
        )
    return PoolSettings(
        nodes=2,
        gpus_per_node=2,
        models=(
            PoolModel(name="first", on_nvme=(0,)),
            PoolModel(name="second", on_nvme=(1,)),
        ),
        rates=V100_RATES,
    )


def simulate_task(task: Task, paper: Published | None = None) -> Measured:
    """Serve a task's requests; a warm-up request is served first and left out."""
    paper = paper or Published()
    measured = requests_of(task, paper)
    warm = task.setup != "cold pool"
    workload = measured
    if warm:
        shifted = [r._replace(arrival_s=r.arrival_s + WARM_UP_S) for r in measured]
        workload = [Request(0.0, 1, 1), *shifted]
    profile = named_profile("paper-v100")
    assert profile.kv_tokens is not None
    twp = task.scheduler == "TWP"
    settings = EngineSettings(
        kv_tokens=profile.kv_tokens,
        step_kind="mixed",
        chunk_tokens=paper.chunk_tokens if twp else None,
        overlap=False,
    )
    model: StepModel = build(plant(task.setup))
    pooled = simulate_pool(
        workload,
        settings,
        lambda: model,
        config_of(task, paper),
        pool_of(task.setup),
        _POLICIES[task.scheduler][1],
        seed=task.run,
    )
    run = pooled.run
    done = [np.frombuffer(engine.decode_done_ms, dtype=np.float64) for engine in run.engines]
    times = [
        token_times(request, done[home])
        for request, home in zip(run.requests, run.placed, strict=True)
    ]
    return Measured(times[1:] if warm else times, pooled)


def run_task(task: Task) -> dict[str, float]:
    """Metrics of a task: times in ms, ``throughput_rps`` from the first arrival to the last
    token, ``tokens_per_s`` likewise."""
    times, pooled = simulate_task(task)
    gaps = np.concatenate([itl_ms(t) for t in times])
    first = np.array([ttft_ms(t) for t in times])
    whole = np.array([e2e_ms(t) for t in times])
    longest = np.array([gap for t in times if (gap := decode_gap_ms(t)) is not None])
    span_s = (max(t.token_ms[-1] for t in times) - times[0].submitted_ms) / 1e3
    metrics = {
        "throughput_rps": len(times) / span_s,
        "tokens_per_s": sum(t.tokens for t in times) / span_s,
        "itl_cv": float(gaps.std() / gaps.mean()),
        "itl_late_over_early": _late_over_early(times),
        "queue_growth_ms": float(
            first[-len(first) // 5 :].mean() - first[: len(first) // 5].mean()
        ),
        "cold_starts": float(sum(pooled.stats.cold_starts.values())),
        "startup_ms_mean": float(np.mean(list(pooled.pool.startup_ms.values()))),
        "forced": float(pooled.run.result.forced),
    }
    for name, values in (
        ("ttft_ms", first),
        ("itl_ms", gaps),
        ("e2e_ms", whole),
        ("gap_ms", longest),
    ):
        metrics[f"{name}_mean"] = float(values.mean())
        metrics[f"{name}_max"] = float(values.max())
        for percentile in (1, 25, 50, 75, 95, 99):
            metrics[f"{name}_p{percentile}"] = float(np.percentile(values, percentile))
    return metrics


def _late_over_early(times: list[TokenTimes]) -> float:
    """Mean ITL of the last fifth of the requests over that of the first."""
    fifth = max(1, len(times) // 5)
    early, late = (
        np.concatenate([itl_ms(t) for t in part]) for part in (times[:fifth], times[-fifth:])
    )
    return float(late.mean() / early.mean())
