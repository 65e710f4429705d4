"""The comparison: who takes part, how each is tuned, and what the command writes."""

import csv
import itertools
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.cells.machines import machine
from analysis.compare import main
from analysis.comparing import figures
from analysis.comparing.contenders import (
    CATALOGUE,
    Contender,
    choose,
    itl_limit_ms,
    read_contenders,
    setting,
)
from analysis.comparing.contest import Cell, Effort, contest
from analysis.comparing.figures import pareto_front
from analysis.comparing.intervals import capacity, mean_over_seeds, paired_difference

SLO = "ttft=2s,itl_p99=90ms"
CELL = Cell(machine="paper-v100", traffic="paper-mixture", load=0.8, slo=SLO)
EFFORT = Effort(requests=40, noise=0.0, seeds=2, tune_seeds=1)


# --------------------------------------------------------------------------- contenders


def test_every_contender_of_the_catalogue_runs():
    from analysis.cells.measure import run_task

    for contender in CATALOGUE.values():
        tasks = next(contest(CELL, contender, EFFORT))
        got = run_task(tasks[0])
        assert "error" not in got, contender.name
        assert got["completed"] + got["refused"] == 40, contender.name


def test_settings_carry_the_machine_and_the_traffic():
    twp = CATALOGUE["twp"]
    config, engine = setting(
        twp, {"h0_batch": 8, "chunk_tokens": 256}, machine("paper-v100"), 50.0, SLO
    )
    assert config["h0_tokens"] == 400.0
    assert config["l_min_ms"] == 43.0
    assert config["b0"] == 8
    assert engine == {"step_kind": "mixed", "chunk_tokens": 256}
    config, _ = setting(
        CATALOGUE["dynamic-batch"], {"itl_target_share": 0.5}, machine("paper-v100"), 50.0, SLO
    )
    assert config["itl_target_ms"] == 45.0
    assert itl_limit_ms("ttft=1s") == 100.0


def test_contenders_from_a_file_take_part_and_override(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[mine]\nconfig = { policy = "twp", law = "regulated" }\n'
        'engine = { step_kind = "mixed" }\naxes = { h0_batch = [4, 8] }\n'
        '[stock]\ntitle = "other"\nconfig = { policy = "off" }\n'
    )
    found = choose(["mine", "stock"], read_contenders(file))
    assert [c.label for c in found] == ["mine", "other"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mine = 3\n", "table"),
        ('[mine]\nconfig = { polici = "twp" }\n', "polici"),
        ("[mine]\naxes = { chunk = [3] }\n", "chunk"),
        ("[mine]\naxes = { chunk_tokens = [] }\n", "no candidate"),
        ('[mine]\nconfig = { policy = "nobody" }\n', "policy"),
        ("[mine\n", "TOML"),
    ],
)
def test_bad_contender_files_name_what_is_wrong(tmp_path, text, word):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=word):
        read_contenders(file)


# ------------------------------------------------------------------------------- tuning


def _play(plan, goodput_of):
    """Drive a contest with made-up results; its outcome and the tasks it asked for."""
    asked = []
    answer = None
    try:
        while True:
            tasks = next(plan) if answer is None else plan.send(answer)
            asked += tasks
            answer = [
                {
                    "goodput": {SLO: {"fraction": f, "tight_fraction": t}},
                    "ttft_ms_p99": 1.0,
                    "itl_ms_p99": 1.0,
                }
                for f, t in map(goodput_of, tasks)
            ]
    except StopIteration as end:
        return end.value, asked


def _two_axes(**changes):
    return Contender(
        name="x",
        config={"policy": "off"},
        engine={"step_kind": "mixed"},
        axes={"chunk_tokens": (1, 2, 4, 8), "max_running_requests": (1, 2, 4, 8, 16)},
        **changes,
    )


def test_the_search_finds_a_peak_off_the_start_and_measures_it_on_the_other_half():
    def peak(task):
        chunk, cap = task.engine["chunk_tokens"], task.engine["max_running_requests"]
        near = abs(np.log2(chunk / 1)) + abs(np.log2(cap / 16))
        return 1.0 - 0.1 * near, 0.0

    outcome, asked = _play(contest(CELL, _two_axes(), EFFORT), peak)
    assert outcome.choice == {"chunk_tokens": 1, "max_running_requests": 16}
    assert {t.half for t in asked[:-2]} == {"tune"}
    assert [t.half for t in asked[-2:]] == ["test", "test"]
    assert [t.seed for t in asked[-2:]] == [0, 1]
    tuned = [json.dumps(t.engine) for t in asked[:-2]]
    assert len(tuned) == len(set(tuned)) == outcome.tried < 20


def test_hindsight_is_tuned_on_the_half_it_is_measured_on():
    _, asked = _play(contest(CELL, _two_axes(), EFFORT, hindsight=True), lambda task: (1.0, 1.0))
    assert {t.half for t in asked} == {"test"}


def test_among_equals_the_one_with_more_to_spare_wins():
    def plateau(task):
        cap = task.engine["max_running_requests"]
        return (1.0 if cap >= 2 else 0.5), (0.9 if cap == 8 else 0.5)

    outcome, _ = _play(contest(CELL, _two_axes(), EFFORT), plateau)
    assert outcome.choice["max_running_requests"] == 8


def test_a_candidate_that_cannot_end_loses():
    plan = contest(CELL, _two_axes(), EFFORT)
    tasks = next(plan)
    answer = [{"error": "stalled"} for _ in tasks]
    answer[2] = {
        "goodput": {SLO: {"fraction": 0.0, "tight_fraction": 0.0}},
        "ttft_ms_p99": None,
        "itl_ms_p99": None,
    }
    following = plan.send(answer)
    assert {t.engine["chunk_tokens"] for t in following} == {tasks[2].engine["chunk_tokens"]}


# ---------------------------------------------------------------------------- intervals


def test_intervals_hold_the_mean_and_shrink_with_paired_seeds():
    found = mean_over_seeds([0.1, 0.5, 0.9, 0.3, 0.7])
    assert found.mean == pytest.approx(0.5)
    assert found.low < 0.5 < found.high
    assert mean_over_seeds([0.1, 0.5, 0.9, 0.3, 0.7]) == found
    same = paired_difference([0.2, 0.6], [0.1, 0.5])
    assert (same.low, same.high) == pytest.approx((0.1, 0.1))
    assert mean_over_seeds([]) is None
    assert mean_over_seeds([3.0]) == (3.0, None, None)
    assert paired_difference([1.0], [1.0, 2.0]) is None


def test_capacity_is_where_the_mean_curve_falls_through():
    loads = [0.3, 0.6, 0.9]
    found = capacity(loads, np.array([[1.0, 1.0, 0.8], [1.0, 1.0, 0.8]]), 0.9)
    assert found.load == pytest.approx(0.75)
    assert found.bound == ""
    assert found.low == found.high == pytest.approx(0.75)
    assert capacity(loads, np.array([[0.5, 0.4, 0.3]]), 0.9)[:2] == (0.3, "<")
    assert capacity(loads, np.array([[1.0, 0.95, 0.9]]), 0.9)[:2] == (0.9, ">")


def test_the_pareto_front_drops_who_is_worse_in_both():
    assert pareto_front([(1, 5), (2, 3), (3, 4), (2, 6), (4, 1)]) == [(1, 5), (2, 3), (4, 1)]


# ------------------------------------------------------------------------------ command


def test_the_command_writes_tables_and_figures_and_goes_on(tmp_path, capsys):
    words = [
        *("--machine", "paper-v100", "--traffic", "paper-mixture", "--load", "0.5", "0.9"),
        *("--contender", "stock", "sarathi", "--hindsight", "sarathi", "--reference", "sarathi"),
        *("--requests", "40", "--seeds", "2", "--tune-seeds", "1", "--jobs", "1"),
        *("--slo", SLO, "--out", str(tmp_path)),
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "sarathi*" in printed
    rows = list(csv.DictReader((tmp_path / "compare.csv").open()))
    assert [(r["load"], r["contender"]) for r in rows] == [
        (load, name) for load in ("0.5", "0.9") for name in ("stock", "sarathi", "sarathi*")
    ]
    for row in rows:
        assert float(row["goodput_fraction_low"]) <= float(row["goodput_fraction"])
        if row["contender"] == "sarathi":
            assert float(row["goodput_fraction_minus_reference"]) == 0.0
    content = json.loads((tmp_path / "compare.json").read_text())
    assert content["simulated"] is True
    assert "prefill delayer" in content["cannot_be_simulated"]
    assert len(content["capacity"]) == 3
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert len(pictures) == 3
    kept = (tmp_path / "runs.jsonl").read_text()
    first = (tmp_path / "compare.csv").read_text()
    assert main([*words, "--no-png"]) == 0
    assert (tmp_path / "runs.jsonl").read_text() == kept
    assert (tmp_path / "compare.csv").read_text() == first


@pytest.mark.parametrize(
    "words",
    [
        ["--machine", "nowhere"],
        ["--traffic", "nowhere"],
        ["--load", "0"],
        ["--load", "nan"],
        ["--contender", "nobody"],
        ["--hindsight", "nobody"],
        ["--slo", "ttft=2"],
        ["--jobs", "0"],
        ["--requests", "-1"],
        ["--capacity", "2"],
        ["--contenders", "no-such-file.toml"],
        ["--nonsense"],
    ],
)
def test_bad_input_ends_with_status_2_and_one_message(words, tmp_path, capsys):
    base = ["--machine", "paper-v100", "--traffic", "paper-mixture", "--out", str(tmp_path)]
    try:
        status = main([*base, *words])
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err.strip()
    assert "error:" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("low", "high"), [(217, 262), (60, 140), (150, 9500), (90, 900), (0.5, 8e4), (3.0, 7e6)]
)
def test_numbers_on_a_logarithmic_axis_are_plain_and_apart(low: float, high: float) -> None:
    figure = Figure(figsize=(3.6, 3))
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.plot([low, high], [0, 1], "o")
    figures._plain_numbers(axes.xaxis)
    figure.draw_without_rendering()
    shown = [
        label
        for label, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
        if axes.get_xlim()[0] <= place <= axes.get_xlim()[1]
    ]
    assert len(shown) >= 2
    assert all("e" not in label.get_text() for label in shown)
    boxes = [label.get_window_extent() for label in shown]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes)), [s.get_text() for s in shown]
