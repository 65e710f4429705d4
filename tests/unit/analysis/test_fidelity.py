"""What ``analysis.fidelity`` computes, on runs whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import fidelity
from analysis.judging import decisions, engine, latency, report
from analysis.judging.calibration import calibrate, part, step_errors
from controllers.trace_reader import StepTrace, read_step_trace
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import simulate
from twp_sglang.simulator.step_models import Affine, AffineStep
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.simulator.steps import StepFile, header_for
from twp_sglang.workloads.request import Request

TRUTH = AffineStep(l_min_ms=12.0, a_ms=0.8, kappa_ms_per_token=0.002, prefill_ms_per_token=0.05)


def info(config: TwpConfig, **changes: Any) -> dict[str, Any]:
    """/server_info as far as it is read."""
    return {
        "max_total_num_tokens": 32768,
        "page_size": 1,
        "enable_mixed_chunk": True,
        "prefill_decode_interval": None,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "disable_overlap_schedule": False,
        "schedule_conservativeness": 1.0,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": 2048,
                "twp": {"chunk_tokens": 64, "config": config.model_dump(mode="json")},
            }
        ],
        **changes,
    }


def recorded(
    folder: Path,
    planned: list[Request],
    config: TwpConfig,
    settings: EngineSettings,
    model: Callable[[], Any],
    noise: float = 0.0,
) -> Path:
    """A folder with the step trace of a simulated engine."""
    folder.mkdir(parents=True, exist_ok=True)
    with StepFile(folder / "steps.jsonl", header_for(settings, config, "truth")) as sink:
        simulate(planned, settings, model, config, noise=noise, sinks=[sink])
    return folder


def poisson(count: int) -> list[Request]:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.12, count))
    return [
        Request(float(t), int(n), int(m))
        for t, n, m in zip(
            times, rng.integers(32, 256, count), rng.integers(16, 64, count), strict=True
        )
    ]


@pytest.fixture(scope="module")
def interval_trace(tmp_path_factory: pytest.TempPathFactory) -> StepTrace:
    """Prefill steps and decode steps, 3 % scatter."""
    settings = EngineSettings(
        kv_tokens=8192, step_kind="interval", chunk_tokens=2048, decode_chunk_tokens=64,
        overlap=False,
    )  # fmt: skip
    folder = recorded(
        tmp_path_factory.mktemp("trace"),
        poisson(400),
        TwpConfig(policy="fcfs"),
        settings,
        lambda: Affine(TRUTH),
        noise=0.03,
    )
    return read_step_trace(folder)


def test_the_first_half_foretells_the_second(interval_trace: StepTrace) -> None:
    early = np.arange(len(interval_trace)) < len(interval_trace) // 2
    calibrated = calibrate(part(interval_trace, early))
    assert calibrated.prefill is not None
    everything, decode, prefill, mixed = step_errors(part(interval_trace, ~early), calibrated)
    assert everything.steps == decode.steps + prefill.steps
    assert mixed.steps == 0
    assert mixed.mape_percent is None
    for errors in (everything, decode, prefill):
        # 3 % scatter leaves a mean absolute error of 3 % x sqrt(2/pi) = 2.4 %.
        assert errors.mape_percent == pytest.approx(2.4, abs=0.6)
        assert abs(errors.bias_percent or 0.0) < 1.0


def test_a_half_keeps_its_own_finished_requests(interval_trace: StepTrace) -> None:
    early = np.arange(len(interval_trace)) < len(interval_trace) // 3
    first, rest = part(interval_trace, early), part(interval_trace, ~early)
    assert len(first) + len(rest) == len(interval_trace)
    assert len(first.finished) + len(rest.finished) == len(interval_trace.finished) == 400
    assert rest.finished_row.max() < len(rest)
    whole = interval_trace.finished_row[len(first.finished) :]
    assert (rest["step"][rest.finished_row] == interval_trace["step"][whole]).all()


def test_an_engine_that_decides_alike_is_found_alike(tmp_path: Path) -> None:
    config = TwpConfig(policy="twp", l_min_ms=43.0, h0_tokens=120)
    planned = decisions.waves(2, 12, "30-200", "16@.5,48@.5", seed=1)
    settings = engine.settings_of(info(config))
    assert (settings.step_kind, settings.chunk_tokens) == ("mixed", 8192)
    assert settings.decode_chunk_tokens == 64
    folder = recorded(
        tmp_path / "steps",
        [request for wave in planned for request in wave],
        config,
        settings,
        lambda: step_source("paper-v100").model,
    )
    found = decisions.compare(
        info(config), "paper-v100", planned, engine.admissions_of(folder), 100
    )
    assert found.requests == 24
    assert found.same_order
    assert found.same_step == found.same_reasons == found.same_load == 1.0
    assert found.step_difference_max == 0


def test_an_engine_of_another_policy_is_found_out(tmp_path: Path) -> None:
    planned = decisions.waves(1, 16, "30-200", "16@.5,48@.5", seed=1)
    other = TwpConfig(policy="priority")
    folder = recorded(
        tmp_path / "steps",
        planned[0],
        other,
        engine.settings_of(info(other)),
        lambda: step_source("paper-v100").model,
    )
    found = decisions.compare(
        info(TwpConfig(policy="twp", l_min_ms=43.0, h0_tokens=120)),
        "paper-v100",
        planned,
        engine.admissions_of(folder),
        100,
    )
    assert not found.same_order
    assert found.same_step < 1.0
    files = report.write_decisions([found], "command", tmp_path)
    assert all(path.stat().st_size > 100 for path in files)
    lines = (tmp_path / "decisions.csv").read_text().splitlines()
    assert len(lines) == 17
    assert lines[0].startswith("policy,profile,wave,request,engine_place,simulator_place")


def test_waves_depend_on_the_seed_alone() -> None:
    first, second = (decisions.waves(2, 5, "1-9", "1-9", seed) for seed in (1, 2))
    assert first == decisions.waves(2, 5, "1-9", "1-9", 1)
    assert first != second


def test_spread_and_error_are_of_the_runs_mean() -> None:
    def summary(value: float) -> Any:
        from twp_sglang.latency_metrics import TokenTimes, summarise

        return summarise([TokenTimes(0.0, np.array([1.0, 1.0 + value]))], 1.0)

    found = latency._compared(
        "ITL P50", summary(11.0), [summary(9.0), summary(10.0), summary(11.0)], "itl_ms", "p50"
    )
    assert found.runs == (9.0, 10.0, 11.0)
    assert found.error_percent == pytest.approx(10.0)
    assert found.spread_percent == pytest.approx(20.0)
    assert found.within_spread


def test_a_server_without_a_trace_cannot_be_judged() -> None:
    with pytest.raises(engine.JudgementError, match="policy other than off"):
        engine.twp_of({"internal_states": [{}]})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decisions", "--profile", "nothing"], "no such profile"),
        (["decisions", "--input-tokens", "many"], "many"),
        (["latency", "--burst", "4"], "FACTOR:START_S:DURATION_S"),
    ],
)
def test_bad_input_ends_before_a_server_starts(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fidelity.main([*words, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_off_is_not_offered(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        fidelity.main(["decisions", "--policy", "off", "--out", str(tmp_path)])
    assert ended.value.code == 2


def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["decisions", "--out", str(tmp_path), "--", "--twp-gamma", "-3"]
    assert fidelity.main(words) == 1
    assert "gamma" in capsys.readouterr().err
