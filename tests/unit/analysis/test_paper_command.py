"""``python -m analysis.paper``: a quick run from end to end, going on after a stop, errors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from analysis import paper
from analysis.cells.store import ResultFile
from analysis.claims.experiment import WORKLOADS, Task, rate_rps, requests_of, run_task
from analysis.claims.published import SCHEDULERS, Published
from analysis.claims.runs import run_all, tasks
from analysis.claims.verdict import VERDICTS

NOTEBOOK = Path(__file__).parents[3] / "analysis" / "notebooks" / "paper.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished quick run."""
    out = tmp_path_factory.mktemp("paper")
    (out / "docs").mkdir()
    arguments = ["--quick", "--jobs", "1", "--out", str(out), "--report", str(out / "docs/p.md")]
    assert paper.main(arguments) == 0
    return out


def test_a_quick_run_writes_everything(folder: Path) -> None:
    report = (folder / "paper.md").read_text()
    assert "python -m analysis.paper --quick" in report
    assert "SIMULATED" in report
    assert "## Contradictions within the paper" in report
    for picture in paper.NAMES:
        assert (folder / picture).stat().st_size > 10_000
    copied = (folder / "docs" / "p.md").read_text()
    assert "(p_claims.png)" in copied
    assert (folder / "docs" / "p_claims.png").exists()


def test_every_number_of_the_paper_is_in_the_csv_with_a_verdict(folder: Path) -> None:
    with (folder / "paper.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert {row["verdict"] for row in rows} <= set(VERDICTS)
    own = [row for row in rows if row["setup"] == "paper"]
    assert sum(row["place"].startswith("Table ") for row in own) == 4 * 6 * 5
    assert sum(row["place"].startswith("Fig. 5") for row in own) == 18
    for row in own:
        assert float(row["low"]) <= float(row["ours"]) <= float(row["high"])
        if row["verdict"] == "contradicts itself":
            assert "by ours alone" in row["why"]


def test_a_stopped_run_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the results and half a line are there, as after a kill."""
    kept = (folder / "runs.jsonl").read_text().splitlines(keepends=True)
    (folder / "runs.jsonl").write_text("".join(kept[:200]) + kept[200][:40])
    asked: list[Task] = []
    monkeypatch.setattr(
        "analysis.claims.runs.run_task", lambda task: asked.append(task) or run_task(task)
    )
    before = (folder / "paper.csv").read_bytes()
    assert paper.main(["--quick", "--jobs", "1", "--out", str(folder)]) == 0
    assert len(asked) == len(kept) - 200
    assert (folder / "paper.csv").read_bytes() == before


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    wanted = tasks(1, 30)[::20]
    told = []
    results = []
    for jobs in (1, 2):
        with ResultFile(tmp_path / f"{jobs}.jsonl") as store:
            run_all(wanted, store, jobs, lambda done, total: told.append((done, total)))
            results.append(dict(sorted(store.known.items())))
    assert results[0] == results[1]
    assert told == 2 * [(done, len(wanted)) for done in range(len(wanted) + 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "absent/paper.md"], "--report absent/paper.md: its folder does not exist"),
        (["--out", "FILE"], "exists"),
        (["--out", "OTHER"], "is no result of this command"),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "runs.jsonl").write_text("x\n")
    places = {"FILE": str(tmp_path / "file"), "OTHER": str(tmp_path / "other")}
    given = [places.get(word, word) for word in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "o")]
    assert paper.main(["--quick", *given]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_all_schedulers_meet_the_same_requests_at_the_stated_rates() -> None:
    published = Published()
    for workload in WORKLOADS:
        drawn = [
            requests_of(
                Task(setup="paper", workload=workload, scheduler=name, run=3, requests=250),
                published,
            )
            for name in SCHEDULERS
        ]
        assert all(requests == drawn[0] for requests in drawn)
        assert len(drawn[0]) == 250
        span_s = drawn[0][-1].arrival_s
        rate = rate_rps(workload, published) * (1.3 if workload == "burst" else 1.0)
        assert 250 / span_s == pytest.approx(rate, rel=0.25)
    assert rate_rps("low", published) == pytest.approx(0.5 * 1000 / 4.3 / 65)


def test_the_burst_is_four_times_the_rate_for_a_tenth_of_the_time() -> None:
    published = Published()
    inside = outside = 0
    for run in range(40):
        task = Task(setup="paper", workload="burst", scheduler="FCFS", run=run, requests=250)
        span_s = 250 / (1.3 * rate_rps("burst", published))
        for request in requests_of(task, published):
            burst = 0.45 * span_s <= request.arrival_s < 0.55 * span_s
            inside += burst
            outside += request.arrival_s < 0.9 * span_s and not burst
    assert inside / 0.1 / (outside / 0.8) == pytest.approx(4.0, rel=0.1)


def test_one_warm_container_makes_three_schedulers_one() -> None:
    """Stated in the report as the reason why ServerlessLLM does not beat FCFS there."""
    metrics = [
        run_task(Task(setup="paper", workload="high", scheduler=name, run=0, requests=60))
        for name in ("FCFS", "RoundRobin", "ServerlessLLM")
    ]
    for other in metrics[1:]:
        assert other["ttft_ms_mean"] == metrics[0]["ttft_ms_mean"]


def test_a_report_has_all_combinations_once() -> None:
    wanted = tasks(10, 250)
    assert len(wanted) == len({task.model_dump_json() for task in wanted}) == 5 * 5 * 6 * 10


def test_the_notebook_carries_no_outputs_and_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat to read a notebook")
    client = pytest.importorskip("nbclient", reason="needs nbclient to execute a notebook")
    pytest.importorskip("ipykernel", reason="needs ipykernel to execute a notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    code[0].source = code[0].source.replace('"out/paper"', repr(str(tmp_path)))
    assert str(tmp_path) in code[0].source
    client.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parents[2])}}
    ).execute()
    assert (tmp_path / "paper.md").exists()


def test_the_report_tells_which_verdicts_hang_on_the_plant() -> None:
    """Beyond B0 tokens per second fall on the steep plant: there a window raises them."""
    gain = {}
    for setup in ("paper", "steep"):
        twp, fcfs = (
            run_task(Task(setup=setup, workload="high", scheduler=name, run=0, requests=120))
            for name in ("TWP", "FCFS")
        )
        gain[setup] = twp["throughput_rps"] / fcfs["throughput_rps"]
    assert gain["paper"] < 1 < gain["steep"]
