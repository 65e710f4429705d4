"""What must hold in every run, whatever arrives and whoever decides."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.simulator.runs import affine
from twp_sglang.config import POLICY_NAMES, TwpConfig
from twp_sglang.latency_metrics import summarise
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.policy_driver import Launched
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run, policy_of, simulate
from twp_sglang.simulator.step_models import StepTimer
from twp_sglang.simulator.steps import StepFile, header_for
from twp_sglang.trace import StepRecord
from twp_sglang.workloads.request import PrefixBlock, Request

MODEL = affine(b0=4, alpha_ms=2, a_ms=0.3, kappa_ms_per_token=0.001, prefill_ms_per_token=0.05)

check = hypothesis_settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    count = draw(st.integers(1, 25))
    arrival = 0.0
    requests = []
    for _ in range(count):
        arrival += draw(st.sampled_from([0.0, 0.003, 0.02, 0.5, 3.0]))
        prompt = draw(st.integers(1, 300))
        output = draw(st.sampled_from([1, 2, 7, 40, 150, 300]))
        limit = draw(st.sampled_from([None, 0, 60]))
        shared = draw(st.sampled_from([(), ("a",), ("a", "b"), ("c",)]))
        fits = len(shared) * 32 <= prompt
        requests.append(
            Request(
                arrival,
                prompt,
                output,
                None if limit is None else output + limit,
                priority=draw(st.sampled_from([0, 0, 20])),
                prefix=tuple(PrefixBlock("".join(shared[: i + 1]), 32) for i in range(len(shared)))
                if fits
                else (),
            )
        )
    return requests


engines = st.builds(
    EngineSettings,
    kv_tokens=st.sampled_from([700, 1200, 5000, 50_000]),
    page_size=st.sampled_from([1, 4, 16]),
    step_kind=st.sampled_from(["prefill-first", "interval", "mixed"]),
    chunk_tokens=st.sampled_from([64, 512, None]),
    decode_chunk_tokens=st.sampled_from([None, 32]),
    overlap=st.booleans(),
    ignore_eos=st.booleans(),
    # Reserving little makes retractions common.
    schedule_conservativeness=st.sampled_from([0.05, 1.0]),
    max_running_requests=st.sampled_from([3, 200]),
    max_queued_requests=st.sampled_from([None, 5]),
    priority_preemption=st.booleans(),
)

configs = st.builds(
    TwpConfig,
    policy=st.sampled_from(POLICY_NAMES),
    h0_tokens=st.sampled_from([None, 200.0]),
)


class Watcher:
    """Checks memory at every step and keeps the records."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def put(self, record: StepRecord) -> None:
        self.records.append(record)


def run_of(
    workload: list[Request], engine: EngineSettings, config: TwpConfig, **options: Any
) -> Run:
    return simulate(workload, engine, lambda: MODEL, config, **options)


@check
@given(workloads(), engines, configs)
def test_requests_and_memory_are_conserved(
    workload: list[Request], engine: EngineSettings, config: TwpConfig
) -> None:
    watcher = Watcher()
    run = run_of(workload, engine, config, sinks=[watcher])
    capacity = engine.kv_tokens // engine.page_size * engine.page_size
    assert all(0 <= record.kv_tokens <= capacity for record in watcher.records)
    assert all(record.load_tokens >= 0 for record in watcher.records)
    counts = dict.fromkeys(("completed", "refused", "failed"), 0)
    for request in run.requests:
        counts[request.status] += 1  # KeyError: somebody was forgotten
        made = len(token_times(request, run.decode_done_ms()).token_ms)
        if request.status == "completed":
            assert made == request.output_tokens
    assert sum(counts.values()) == len(workload)
    assert counts["completed"] == run.result.latency.completed
    finished = sum(len(record.finished) for record in watcher.records)
    assert finished == counts["completed"]
    left = run.engines[0]
    assert left.pool.held == 0
    rows = left.batcher.rows
    assert (rows.load_tokens, rows.context_tokens, rows.shrinking) == (0, 0, 0)
    assert left.driver.queued_tokens == 0
    if left.pool.cache is not None:
        assert 0 <= left.pool.cache.unused_tokens <= capacity


@check
@given(workloads(), engines, configs)
def test_nothing_happens_before_its_cause_and_time_never_runs_back(
    workload: list[Request], engine: EngineSettings, config: TwpConfig
) -> None:
    watcher = Watcher()
    run = run_of(workload, engine, config, sinks=[watcher])
    shortest = 10.0  # the model's constant
    for request in run.requests:
        times = token_times(request, run.decode_done_ms()).token_ms
        if len(times):
            assert times[0] >= request.arrival_ms + shortest
            assert (np.diff(times) >= shortest - 1e-6).all()
    for before, after in itertools.pairwise(watcher.records):
        assert after.step > before.step
        assert after.t_ms >= before.t_ms
    assert all(
        record.sample_step is None or record.sample_step < record.step for record in watcher.records
    )


@check
@given(workloads(), engines, configs)
def test_like_steps_taken_together_are_the_steps_one_by_one(
    workload: list[Request], engine: EngineSettings, config: TwpConfig
) -> None:
    runs = [run_of(workload, engine, config, leap=leap) for leap in (True, False)]
    first, second = (_everything(run) for run in runs)
    assert first == second


@check
@given(workloads(), engines, configs, st.integers(0, 3))
def test_metrics_are_those_of_the_token_times(
    workload: list[Request], engine: EngineSettings, config: TwpConfig, seed: int
) -> None:
    run = run_of(workload, engine, config, noise=0.1, seed=seed)
    latency = run.result.latency
    times = [token_times(request, run.decode_done_ms()) for request in run.requests]
    expected = summarise(times, latency.duration_s)
    got, wanted = (_flat(value.model_dump()) for value in (latency, expected))
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name] == (None if value is None else pytest.approx(value, rel=1e-7, abs=1e-6)), (
            name
        )


@check
@given(workloads(), engines)
def test_first_come_first_served_keeps_the_order(
    workload: list[Request], engine: EngineSettings
) -> None:
    plain = [request._replace(priority=0) for request in workload]
    watcher = Watcher()
    run_of(plain, engine, TwpConfig(policy="fcfs"), sinks=[watcher])
    first_admissions: list[int] = []
    for record in watcher.records:
        for admission in record.admissions:
            if int(admission.rid) not in first_admissions:
                first_admissions.append(int(admission.rid))
    assert first_admissions == sorted(first_admissions)


class Bounded(Engine):
    """Notes when the engine was idle although a request could have run."""

    idle_with_work = 0

    def _pass(self) -> bool:
        worked = super()._pass()
        if not worked and self.driver.waiting:
            self.idle_with_work += 1
        return worked


@check
@given(workloads(), engines, st.sampled_from(["off", "fcfs", "priority", "twp"]))
def test_an_engine_with_work_is_not_idle(
    workload: list[Request], engine: EngineSettings, policy: str
) -> None:
    config = TwpConfig.model_validate({"policy": policy})
    bounded = Bounded(engine, StepTimer(MODEL), policy_of(config))
    for index, request in enumerate(workload):
        bounded.submit(LiveRequest(request, index, request.arrival_s * 1e3))
    bounded.run()
    # The pass after a prefill step may belong to decoding and find nobody to decode; a prompt
    # takes as many such steps as it has chunks.
    chunk = engine.chunk_tokens or max(request.input_tokens for request in workload)
    steps = sum(-(-request.input_tokens // chunk) for request in workload)
    allowed = 0 if engine.step_kind != "interval" else steps
    assert bounded.idle_with_work <= allowed


@check
@given(workloads(), engines, configs)
def test_equal_runs_are_equal_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory,
    workload: list[Request],
    engine: EngineSettings,
    config: TwpConfig,
) -> None:
    folder: Path = tmp_path_factory.mktemp("bytes")
    written = []
    for name in ("a", "b"):
        path = folder / f"{name}.jsonl"
        with StepFile(path, header_for(engine, config, "m")) as sink:
            run = run_of(workload, engine, config, sinks=[sink], noise=0.2, seed=7)
        result = run.result.model_dump_json(exclude={"wall_s"})
        written.append((path.read_bytes(), json.dumps(result)))
    assert written[0] == written[1]


@check
@given(workloads(), engines, configs)
def test_recording_steps_changes_nothing(
    workload: list[Request], engine: EngineSettings, config: TwpConfig
) -> None:
    assert _everything(run_of(workload, engine, config)) == _everything(
        run_of(workload, engine, config, sinks=[Watcher()])
    )


def _flat(summary: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in summary.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat.update({f"{name}.{key}": part for key, part in inner.items()})
    return flat


def _everything(run: Run) -> tuple[Any, ...]:
    engine = run.engines[0]
    in_flight: Launched | None = engine.in_flight
    return (
        run.result.model_copy(update={"wall_s": 0.0}),
        [(request.segments, request.status) for request in run.requests],
        list(engine.decode_done_ms),
        engine.driver.pass_index,
        engine.driver.windows,
        in_flight,
    )
