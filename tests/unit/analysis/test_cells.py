"""Cells: machines by name, traffic at a load, utilisation by hand, results that are kept."""

import io
import json

import pytest
from rich.console import Console

from analysis.cells import store as store_module
from analysis.cells.machines import machine, slug
from analysis.cells.measure import Task, run_task
from analysis.cells.progress import Lines, bar
from analysis.cells.store import ResultFile, task_key
from analysis.cells.traffic import cell_traffic, check, mean_output_tokens
from analysis.cells.utilisation import engine_time, span_s
from analysis.cells.workers import Progress, run_plans
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.latency_metrics import meets
from twp_sglang.simulator.step_models import Affine, AffineStep
from twp_sglang.workloads.request import Request

V100 = "paper-v100"


def task(**changes):
    values = {
        "machine": V100,
        "traffic": "paper-mixture",
        "half": "test",
        "load": 0.8,
        "requests": 60,
        "seed": 0,
        "config": {"policy": "off"},
        "engine": {"step_kind": "mixed", "chunk_tokens": 128},
        "slos": ("ttft=2s,itl_p99=90ms",),
    }
    return Task(**{**values, **changes})


# ----------------------------------------------------------------------------- machines


def test_overrides_change_terms_and_pool():
    changed = machine("paper-v100,alpha_ms=8.6,kv_tokens=5000")
    assert changed.kv_tokens == 5000
    assert changed.step.alpha_ms == 8.6
    assert changed.model.step_ms(10, 0, 0) == pytest.approx(43 + 2 * 8.6)
    assert machine(V100).step.alpha_ms == 4.3


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nowhere", "no such profile"),
        ("paper-v100,alpha=3", "alpha_ms"),
        ("paper-v100,kv_tokens=-3", "whole number"),
        ("paper-v100,alpha_ms=nan", "finite"),
        ("paper-v100,alpha_ms=-1", "alpha_ms"),
        ("paper-v100,alpha_ms", "KEY=VALUE"),
    ],
)
def test_bad_machines_name_value_and_mend(text, word):
    with pytest.raises(ValueError, match=word) as caught:
        machine(text)
    assert text.split(",")[0] in str(caught.value)


def test_a_machine_without_pool_asks_for_one(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"l_min_ms": 10.0}))
    with pytest.raises(ValueError, match="kv_tokens=N"):
        machine(str(file))
    assert machine(f"{file},kv_tokens=100").kv_tokens == 100


def test_slug_is_a_file_name():
    assert slug("a,b=1", "c d/e") == "a-b-1-c-d-e"


# -------------------------------------------------------------------------- utilisation


def test_engine_time_of_a_flat_engine_by_hand():
    # Two rows fit (k = 100 + 5.5 over 10 decode steps); a step costs 10 ms whatever rides in it.
    requests = [Request(float(i), 100, 11) for i in range(4)]
    found = engine_time(requests, Affine(AffineStep(l_min_ms=10.0)), kv_tokens=215)
    assert found.kv_per_row_tokens == pytest.approx(105.5)
    assert found.batch == 2
    assert found.needed_s == pytest.approx(40 / 2 * 0.010)


def test_engine_time_counts_prompts_and_finds_the_knee():
    requests = [Request(float(i), 50, 11) for i in range(100)]
    steep = Affine(AffineStep(l_min_ms=10.0, b0=8, alpha_ms=100.0, prefill_ms_per_token=0.1))
    found = engine_time(requests, steep, kv_tokens=1_000_000)
    assert found.batch == 8
    # 125 steps of 8 rows, each with its 40 of the 5,000 prompt tokens.
    assert found.needed_s == pytest.approx(125 * (10.0 + 0.1 * 40) / 1e3)


def test_requests_of_one_token_need_prefill_only():
    step = Affine(AffineStep(l_min_ms=10.0, prefill_ms_per_token=0.1))
    found = engine_time([Request(0.0, 8192, 1)] * 3, step, kv_tokens=100_000)
    assert found.needed_s == pytest.approx(3 * (10.0 + 819.2) / 1e3)


def test_an_engine_at_its_best_batch_cannot_beat_the_engine_time():
    """A run that gets everything at once still takes at least that long."""
    for policy in ("off", "fcfs", "priority"):
        got = run_task(task(load=20.0, config={"policy": policy}, requests=200))
        assert got["duration_s"] >= 20.0 * got["span_s"]


# ------------------------------------------------------------------------------ traffic


@pytest.mark.parametrize("name", ["paper-mixture", "paper-burst"])
def test_traffic_has_the_load_asked_for(name):
    where = machine(V100)
    traffic = cell_traffic(name, where, "test", 0.7, 3, 200)
    requests = traffic.requests
    assert len(requests) == 200
    needed = engine_time(requests, where.model, where.kv_tokens).needed_s
    assert needed / span_s(requests) == pytest.approx(0.7)
    assert needed / traffic.span_s == pytest.approx(0.7)
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0


def _write_trace(path, count):
    lines = ["t_s,input_tokens,output_tokens"]
    lines += [f"{i},{10 + i},{5 + i % 7}" for i in range(count)]
    path.write_text("\n".join(lines) + "\n")


def test_halves_and_seeds_of_a_recorded_trace(tmp_path):
    file = tmp_path / "t.csv"
    _write_trace(file, 100)
    name, where = f"{file}:csv", machine(V100)

    def prompts(half, seed, count=20):
        return [r.input_tokens for r in cell_traffic(name, where, half, 0.5, seed, count).requests]

    tune, test = prompts("tune", 0), prompts("test", 0)
    assert max(tune) < 60 <= min(test)
    assert tune == list(range(tune[0], tune[0] + 20))
    assert any(prompts("tune", seed) != tune for seed in range(1, 5))
    assert prompts("tune", 0) == tune
    whole = cell_traffic(name, where, "test", 0.5, 1, 500)
    assert whole.whole_half
    assert len(whole.requests) == 50
    assert mean_output_tokens(name, "tune") == pytest.approx(sum(5 + i % 7 for i in range(50)) / 50)


def test_generated_halves_share_no_draw():
    where = machine(V100)
    draws = {
        tuple(r.arrival_s for r in cell_traffic("paper-mixture", where, half, 0.5, s, 30).requests)
        for half in ("tune", "test")
        for s in range(4)
    }
    assert len(draws) == 8


@pytest.mark.parametrize("name", ["nothing", "no-such-file.csv:csv", "x:unknown"])
def test_unknown_traffic_is_told(name):
    with pytest.raises(ValueError, match=name.partition(":")[0]):
        check(name)


def test_phases_reach_their_load_each(monkeypatch, tmp_path):
    from analysis.cells import traffic as traffic_module

    _write_trace(tmp_path / "a.csv", 60)
    _write_trace(tmp_path / "b.csv", 90)
    parts = (f"{tmp_path}/a.csv:csv", f"{tmp_path}/b.csv:csv")
    monkeypatch.setattr(traffic_module, "PHASES", parts)
    where = machine(V100)
    traffic = cell_traffic("phases", where, "tune", 0.6, 0, 40)
    first, second = traffic.requests[:20], traffic.requests[20:]
    for part in (first, second):
        needed = engine_time(part, where.model, where.kv_tokens).needed_s
        assert needed / span_s(part) == pytest.approx(0.6)
    assert second[0].arrival_s > first[-1].arrival_s


# ------------------------------------------------------------------- measuring, keeping


def test_equal_tasks_give_equal_metrics():
    first, second = run_task(task(noise=0.05)), run_task(task(noise=0.05))
    first.pop("wall_s"), second.pop("wall_s")
    assert first == second
    other = run_task(task(noise=0.05, seed=1))
    assert other["itl_ms_mean"] != first["itl_ms_mean"]


@pytest.mark.parametrize(
    "slo", ["ttft=300ms", "itl_p99=50ms", "itl_max=60ms,e2e=5s", "tpot=45ms", "itl_p50=44ms"]
)
def test_goodput_is_what_the_metrics_module_calls_it(slo):
    from twp_sglang.config import TwpConfig
    from twp_sglang.simulator.metrics import token_times
    from twp_sglang.simulator.settings import EngineSettings
    from twp_sglang.simulator.simulate import simulate

    asked = task(slos=(slo,), load=1.1, requests=120)
    got = run_task(asked)["goodput"][slo]
    where = machine(V100)
    requests = cell_traffic("paper-mixture", where, "test", 1.1, 0, 120).requests
    settings = EngineSettings(kv_tokens=where.kv_tokens, **asked.engine)
    run = simulate(requests, settings, lambda: where.model, TwpConfig(policy="off"))
    times = [token_times(r, run.decode_done_ms()) for r in run.requests]
    met = [all(meets(one, limit) for limit in parse_slos(slo)) for one in times]
    assert got["fraction"] == pytest.approx(sum(met) / len(met))
    assert 0 <= got["tight_fraction"] <= got["fraction"]
    longest = sorted(range(120), key=lambda i: -requests[i].input_tokens)[:12]
    assert got["long_fraction"] == pytest.approx(sum(met[i] for i in longest) / 12)


def test_results_are_kept_and_a_torn_line_is_dropped(tmp_path):
    path = tmp_path / "runs.jsonl"
    key = task_key(task())
    with ResultFile(path) as kept:
        kept.add(key, {"task": {}}, {"x": 1})
    with path.open("a") as handle:
        handle.write('{"key": "half a li')
    with ResultFile(path) as again:
        assert again.known == {key: {"x": 1}}
        again.add("b", {}, {"x": 2})
    assert set(ResultFile(path).known) == {key, "b"}


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="line 1"):
        ResultFile(path)


def test_keys_follow_task_file_and_code(tmp_path, monkeypatch):
    assert task_key(task()) == task_key(task())
    assert task_key(task()) != task_key(task(seed=1))
    before = task_key(task())
    monkeypatch.setattr(store_module, "code_fingerprint", lambda: "other code")
    assert task_key(task()) != before


def _count(name, loads):
    seen = []
    for load in loads:
        seen += yield [task(load=load, requests=20), task(load=load, requests=20, seed=1)]
    return name, len(seen)


@pytest.mark.parametrize("jobs", [1, 2])
def test_plans_get_their_answers_in_order_and_nothing_runs_twice(tmp_path, jobs):
    path = tmp_path / "runs.jsonl"
    told = []
    with ResultFile(path) as kept:
        outcomes = run_plans(
            [_count("a", (0.3, 0.5)), _count("b", (0.5,))], kept, jobs, told.append
        )
    assert outcomes == [("a", 4), ("b", 2)]
    assert len(path.read_text().splitlines()) == 4
    assert told[0] == (0, 2, 0, 0, 4), "what there is to do comes first"
    last = told[-1]
    assert (last.plans_done, last.simulated, last.waiting) == (2, 4, 0)
    with ResultFile(path) as kept:
        run_plans([_count("a", (0.3, 0.5))], kept, 1, told.append)
    assert len(path.read_text().splitlines()) == 4
    assert told[-1].simulated == 0
    assert told[-1].reused == 4


def test_where_there_is_no_terminal_progress_comes_in_lines():
    now_s = 0.0
    console = Console(file=io.StringIO())
    lines = Lines(console, "comparing", lambda: now_s)
    for number in range(101):
        now_s = number * 0.1
        lines(Progress(number, 100, 3 * number, 0, 300 - 3 * number))
    said = console.file.getvalue().splitlines()
    assert len(said) == 11
    assert said[0] == "comparing: 0 of 100 done; 0 runs measured, 0 known, 300 to go, 0 s"
    now_s = 69.0
    lines(Progress(100, 100, 300, 0, 0))
    assert len(console.file.getvalue().splitlines()) == 11
    now_s = 71.0
    lines(Progress(100, 100, 300, 0, 0))
    assert len(console.file.getvalue().splitlines()) == 12


def test_progress_that_is_not_wanted_is_not_shown():
    with bar(Console(file=io.StringIO()), "comparing", shown=False) as tell:
        assert tell is None
