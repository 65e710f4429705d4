"""The step model that a contender of policy slo is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.cells.machines import machine
from analysis.cells.measure import Task, run_task
from analysis.comparing.contenders import CATALOGUE, read_contenders, setting
from analysis.comparing.told import told_fields

SLO = "ttft=2s,itl_p99=90ms"
CONTENDERS = Path(__file__).parents[3] / "docs/results/slo-contenders.toml"


def test_the_machines_own_model() -> None:
    told = told_fields("machine", machine("paper-v100,alpha_ms=8.6"))
    assert (told["l_min_ms"], told["b0"], told["alpha_ms"]) == (43.0, 8, 8.6)


def test_nothing_is_told_to_one_that_learns() -> None:
    config, _ = setting(
        CATALOGUE["slo-uncalibrated"], {"step_model": "learned"}, machine("paper-v100"), 50.0, SLO
    )
    assert config == {
        "policy": "slo", "itl_slo_ms": 90.0, "ttft_slo_ms": 2000.0, "itl_delivery_ms": 0.0
    }  # fmt: skip


def test_one_term_wrong_and_the_others_right() -> None:
    where = machine("paper-v100")
    right, wrong = told_fields("machine", where), told_fields("machine,alpha_ms*0.5", where)
    assert wrong.pop("alpha_ms") == pytest.approx(0.5 * right.pop("alpha_ms"))
    assert wrong == right
    assert told_fields("machine,b0*1.5", where)["b0"] == 12


def test_another_machines_model_replaces_the_knee_too() -> None:
    config, _ = setting(
        CATALOGUE["slo"], {"step_model": "h100-llama31-8b"}, machine("paper-v100"), 50.0, SLO
    )
    assert "b0" not in config
    assert config["l_min_ms"] == pytest.approx(6.2068)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("machine,alpha*0.5", "'alpha\\*0.5' is not TERM\\*FACTOR"),
        ("machine,alpha_ms*-1", "'-1' is not a finite factor"),
        ("machine,alpha_ms*x", "'x' is not a finite factor"),
        ("nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_told_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        told_fields(text, machine("paper-v100"))


def test_every_contender_of_the_results_can_be_set_up() -> None:
    for contender in read_contenders(CONTENDERS):
        choice = {axis: values[0] for axis, values in contender.axes.items()}
        setting(contender, choice, machine("paper-v100"), 50.0, SLO)


def test_the_longest_gap_leaves_out_those_who_lost_their_memory() -> None:
    """A pool for some three requests: retractions make gaps of seconds that are not counted."""
    task = Task(
        machine="paper-v100,kv_tokens=1700", traffic="paper-mixture", half="test", load=1.0,
        requests=60, seed=0, config={"policy": "off"},
        engine={"step_kind": "mixed", "chunk_tokens": 512, "schedule_conservativeness": 0.1},
    )  # fmt: skip
    found = run_task(task)
    assert found["retractions"] > 0
    assert 0 < found["itl_ms_max_unretracted"] < found["itl_ms_max"]
