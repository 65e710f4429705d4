"""The report says what holds, draws what can be drawn, and fetches nothing."""

from __future__ import annotations

import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
from synthetic_traces import Truth, request_trace, write_trace

from controllers.identification import identify
from controllers.models import LatencyModel, LengthLaw, LoopModel
from controllers.report import Report, render, report_from_model, report_from_trace, write_report
from controllers.report.build import _recorded
from controllers.report.loop_figures import bode_figure, nyquist_figure
from controllers.report.page import Section, Table
from controllers.report.replay import law_settings, replay_window
from controllers.report.style import house_style
from controllers.report.verdict import Finding
from controllers.trace_reader import read_step_trace
from controllers.tuning import TuningGoals
from controllers.tuning.loop_set import operating_points

RAN: dict[str, Any] = {
    "law": "paper",
    "h0_tokens": 400.0,
    "gamma": 0.15,
    "beta": 0.2,
    "queue_ref": 16.0,
}
LOOP = {"bode", "nyquist", "map", "burst"}


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = Truth(kappa_ms_per_token=0.001, outliers=0.01, delay_steps=1)
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    return write_trace(path, request_trace(truth, steps=3000, seed=3), **RAN)


@pytest.fixture(scope="module")
def report(trace_file: Path) -> Report:
    return report_from_trace(read_step_trace(trace_file), TuningGoals(models=10))


class _Fetches(HTMLParser):
    """Everything that a browser would have to fetch, and every open tag."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [v or "" for k, v in attrs if k in ("src", "href")]


def test_page_is_self_contained(report: Report) -> None:
    parser = _Fetches()
    parser.feed(render(report))
    assert len([t for t in parser.tags if t == "img"]) == len(report.sections)
    assert all(url.startswith("data:image/png;base64,") for url in parser.urls)
    assert "script" not in parser.tags
    assert "link" not in parser.tags


def test_all_pictures_are_there_and_not_blank(report: Report, tmp_path: Path) -> None:
    paths = write_report(report, tmp_path / "out")
    names = {path.stem for path in paths[1:]}
    assert names == LOOP | {"fit", "prediction", "monte_carlo"}
    for path in paths[1:]:
        picture = matplotlib.image.imread(path)
        assert picture.shape[1] == 1200
        assert np.std(picture[..., :3]) > 0.02
        # The frame is white on all sides: nothing is cut off.
        edge = np.concatenate([picture[0, :, :3], picture[-1, :, :3], picture[:, 0, :3]])
        assert edge.min() > 0.95


def test_verdict_comes_first_and_names_the_numbers(report: Report) -> None:
    words = [finding.text for finding in report.findings]
    assert words[0].startswith("Set: policy = twp, law = paper, h0_tokens = ")
    text = " ".join(words)
    assert re.search(r"disk margin is 0\.\d\d \(goal 0\.67\)", text)
    assert "The engine is identified: a decode step takes 4" in text
    assert "is the one that law paper gives" in text
    assert "What ran during the recording" in text
    page = render(report)
    assert page.index('class="verdict"') < page.index("<table") < page.index("<img")


def test_the_recorded_configuration_is_judged(report: Report) -> None:
    found = next(f for f in report.findings if f.text.startswith("What ran"))
    # H0 = 400 doubles to 800 tokens: more requests than the trace has ever seen.
    assert found.level == "warn"
    assert "P(B >" in found.text


def test_refusal_leads_the_page(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", request_trace(Truth(), max_batch=7))
    report = report_from_trace(read_step_trace(path))
    assert report.findings[0] == Finding("bad", "Do not tune on this trace.")
    assert "Record a burst" in " ".join(f.text for f in report.findings)
    assert {section.name for section in report.sections} == {"fit", "prediction"}


def test_a_trace_too_short_to_fit_still_gives_a_page(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", request_trace(Truth(), steps=40))
    report = report_from_trace(read_step_trace(path))
    assert report.sections == ()
    assert "only" in " ".join(f.text for f in report.findings)


def test_emulated_engines_are_marked(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", request_trace(Truth(), steps=40))
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace("{", '{"emulated": true, ', 1)
    path.write_text("\n".join(lines))
    report = report_from_trace(read_step_trace(path))
    assert "EMULATED" in report.title
    assert any("EMULATED" in f.text for f in report.findings)


def test_same_trace_same_bytes(trace_file: Path, report: Report) -> None:
    again = report_from_trace(read_step_trace(trace_file), TuningGoals(models=10))
    assert render(again) == render(report)


@pytest.mark.parametrize(
    ("law", "names"),
    [
        ("paper", LOOP),
        ("regulated", LOOP),
        ("gradient2", {"bode", "nyquist", "burst"}),
        ("aimd", {"burst"}),
        ("fixed", {"bode", "nyquist", "burst"}),
    ],
)
def test_report_of_a_model(law: str, names: set[str]) -> None:
    report = report_from_model(LoopModel(law=law, lengths=LengthLaw.uniform(1, 99)))
    assert {section.name for section in report.sections} == names
    assert report.findings


def test_report_of_a_model_names_every_number_it_rests_on() -> None:
    loop = LoopModel(law_params={"h0_tokens": 321.0}, beta=0.17, lengths=LengthLaw.const(50))
    (table,) = report_from_model(loop).tables
    shown = {row[0]: row[1] for row in table.rows}
    assert shown["h0_tokens"] == "321"
    assert shown["gamma"] == "0.15"
    assert shown["beta"] == "0.17"
    assert shown["lengths"] == "const:50"
    assert shown["kappa_ms_per_token"] == "0"


@pytest.mark.parametrize(
    "wrong",
    [{"law": ["paper"]}, {"h0_tokens": "x"}, {"gamma": float("nan")}, {"beta": "x"}],
)
def test_rubbish_in_the_header_does_not_stop_the_report(
    trace_file: Path, wrong: dict[str, Any]
) -> None:
    trace = read_step_trace(trace_file)
    config = {**trace.header.config, **wrong}
    spoilt = dataclasses.replace(trace, header=trace.header.model_copy(update={"config": config}))
    found = identify(spoilt, seed=0)
    assert _recorded(spoilt, found, TuningGoals(models=2), {}) is None
    replay_window(spoilt)


@pytest.mark.parametrize("lengths", [LengthLaw.geometric(50), LengthLaw.const(50)])
def test_nothing_is_drawn_beyond_the_edge(lengths: LengthLaw) -> None:
    latency = LatencyModel(alpha_ms=1.5)
    loop, *others = operating_points(LoopModel(latency=latency, lengths=lengths))
    for make in (bode_figure, nyquist_figure):
        with house_style():
            figure = make(loop, others)
            figure.savefig(io.BytesIO(), format="png")  # lays out; canvas.draw() would not
            seen = figure.get_tightbbox()  # inches
        width, height = figure.get_size_inches()
        assert seen.x0 >= 0
        assert seen.y0 >= 0
        assert seen.x1 <= width
        assert seen.y1 <= height


def test_an_unstable_model_is_called_so() -> None:
    loop = LoopModel(
        latency=LatencyModel(alpha_ms=40.0),
        lengths=LengthLaw.const(50),
        law_params={"gamma": 1.0, "h0_tokens": 300.0},
        beta=1.0,
    )
    assert "UNSTABLE" in report_from_model(loop).findings[0].text


def test_replay_meets_the_recorded_window(trace_file: Path) -> None:
    trace = read_step_trace(trace_file)
    replay, _ = replay_window(trace)
    assert replay is not None
    assert replay.fit_percent > 99.9
    np.testing.assert_allclose(replay.predicted_tokens, trace["window_tokens"], rtol=1e-6)


def test_replay_with_other_gains_does_not_meet_it(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.jsonl", request_trace(Truth(), steps=1500), **(RAN | {"gamma": 0.6})
    )
    replay, _ = replay_window(read_step_trace(path))
    assert replay is not None
    assert replay.fit_percent < 90


@pytest.mark.parametrize(
    ("config", "drop", "match"),
    [
        ({}, (), "does not say which law"),
        (RAN, ("window_tokens",), "records no window"),
        (RAN, ("sigma",), "records no sigma"),
        (RAN | {"gamma": -1.0}, (), "cannot be used: gamma"),
    ],
)
def test_why_there_is_no_replay(
    tmp_path: Path, config: dict[str, Any], drop: tuple[str, ...], match: str
) -> None:
    records = [
        {k: v for k, v in record.items() if k not in drop}
        for record in request_trace(Truth(), steps=50)
    ]
    replay, why = replay_window(
        read_step_trace(write_trace(tmp_path / "t.jsonl", records, **config))
    )
    assert replay is None
    assert match in why


def test_law_settings_of_a_server_configuration() -> None:
    found = law_settings(RAN | {"policy": "twp", "h_min_tokens": None, "t_max_steps": 200})
    assert found == ("paper", {"h0_tokens": 400.0, "gamma": 0.15, "queue_ref": 16.0})
    assert law_settings({"law": "paper", "h0_tokens": None}) is None
    assert law_settings({"law": "unheard-of", "h0_tokens": 1.0}) is None


def test_text_is_escaped() -> None:
    nasty = "<script>alert(1)</script>"
    page = render(
        Report(
            title=nasty,
            source=nasty,
            findings=(Finding("bad", nasty),),
            tables=(Table(nasty, (nasty,), ((nasty,),)),),
            sections=(Section("x", nasty, nasty, b""),),
        )
    )
    assert "<script>" not in page


def test_drawing_leaves_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    report_from_model(LoopModel(law="fixed"))
    assert dict(mpl.rcParams) == before
