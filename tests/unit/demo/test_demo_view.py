"""The view, rendered from given states into text of a given size."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.unit.demo.stories import point, record, story
from twp_sglang.demonstration.screen import Screen, line
from twp_sglang.demonstration.story import Point
from twp_sglang.demonstration.view import gauge, render, sparkline


def drawn(subject: object, width: int = 100, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(subject)
    return capture.get().splitlines()


class TestSparkline:
    def test_bottom_middle_top(self) -> None:
        assert sparkline([0.0, 50.0, 100.0], 3, 100.0) == "▁▅█"

    def test_keeps_the_newest_and_pads_on_the_left(self) -> None:
        assert sparkline([100.0, 0.0, 100.0], 2, 100.0) == "▁█"
        assert sparkline([100.0], 4, 100.0) == "   █"

    def test_absent_values_are_gaps(self) -> None:
        assert sparkline([None, 100.0], 2, 100.0) == " █"

    def test_nothing_leaves_the_scale(self) -> None:
        assert sparkline([-5.0, 500.0], 2, 100.0) == "▁█"
        assert sparkline([0.0, 0.0], 2, 0.0) == "▁▁"


class TestGauge:
    def test_load_fills_up_to_its_share_and_window_is_marked(self) -> None:
        text = gauge(50.0, 75.0, 20, 100.0).plain
        assert text.count("█") == 10
        assert text.index("┃") == 15

    def test_without_a_window(self) -> None:
        assert "┃" not in gauge(50.0, None, 20, 100.0).plain


class TestGate:
    def test_closed_when_one_more_would_exceed_the_window(self) -> None:
        assert story(points=[point(load=360.0, window=400.0, queue=3)]).gate() == "closed"

    def test_open_when_one_more_fits(self) -> None:
        assert story(points=[point(load=352.0, window=400.0, queue=3)]).gate() == "open"

    def test_idle_when_nobody_waits(self) -> None:
        assert story(points=[point(load=400.0, window=400.0, queue=0)]).gate() == "idle"

    def test_idle_without_a_window(self) -> None:
        assert story(points=[point(load=400.0, window=None, queue=5)]).gate() == "idle"


class TestRender:
    @pytest.mark.parametrize("width", [60, 80, 120, 200])
    @pytest.mark.parametrize("height", [24, 50])
    def test_fits_the_terminal(self, width: int, height: int) -> None:
        lines = drawn(render(busy(), width, height), width, height)
        assert max(map(len, lines)) <= width
        assert len(lines) <= height

    def test_shows_window_load_queue_and_a_closed_gate(self) -> None:
        text = "\n".join(drawn(render(busy(), 100, 40)))
        for wanted in (
            "412 tokens", "398 tokens", "7 waiting", "GATE CLOSED", "sigma 1.25", "ITL 151 ms",
            "baseline 121", "batch 8", "admitted 9", "forced 1", "1/12 answered",
        ):  # fmt: skip
            assert wanted in text

    def test_answers_stream_and_the_waiting_wait(self) -> None:
        text = "\n".join(drawn(render(busy(), 100, 40)))
        assert "How many apples?" in text
        assert "There are seven apples" in text
        assert "waits for admission" in text

    def test_a_long_answer_shows_its_end(self) -> None:
        told = busy()
        told.text(1, "word " * 500 + "THE END")
        assert "THE END" in "\n".join(drawn(render(told, 100, 40)))

    def test_markup_in_an_answer_is_text(self) -> None:
        told = busy()
        told.text(1, " [/bold] [red]brackets[/red]")
        assert "[red]brackets[/red]" in "\n".join(drawn(render(told, 100, 40)))

    def test_fallback_is_loud(self) -> None:
        told = story(points=[point(deciding=False)])
        assert "FELL BACK" in "\n".join(drawn(render(told, 100, 40)))

    def test_observing_is_no_fallback(self) -> None:
        told = story(points=[point(deciding=False)], policy="observe")
        text = "\n".join(drawn(render(told, 100, 40)))
        assert "observes only" in text
        assert "FELL BACK" not in text

    def test_policy_without_window_and_no_state_at_all(self) -> None:
        assert "–" in "\n".join(drawn(render(story(points=[point(window=None)]), 100, 40)))
        assert "stock SGLang" in "\n".join(drawn(render(story(policy="off"), 100, 40)))

    def test_failure_is_named(self) -> None:
        told = busy()
        told.done(record(1, error="http_503"))
        text = "\n".join(drawn(render(told, 100, 40)))
        assert "http_503" in text
        assert "1 failed" in text


class TestScreen:
    def test_plain_lines_where_there_is_no_terminal(self) -> None:
        out = io.StringIO()
        told = busy()
        with Screen(Console(file=out, width=200), told) as screen:
            screen.tick()
        assert "\x1b" not in out.getvalue()
        assert "H 412" in out.getvalue()
        assert "gate closed" in out.getvalue()

    def test_a_terminal_gets_the_view(self) -> None:
        out = io.StringIO()
        console = Console(file=out, width=100, height=40, force_terminal=True)
        with Screen(console, busy()) as screen:
            screen.tick()
        assert "GATE CLOSED" in out.getvalue()

    def test_line_before_any_state(self) -> None:
        assert line(story()) == "  0.0 s · 0/12 answered · 0 tokens"


class TestPoint:
    def test_reads_the_servers_state(self) -> None:
        read = Point.read(
            2.0,
            {
                "window_tokens": 400.5, "load_tokens": 96, "sigma": 1.1, "itl_ms": 140.0,
                "l_min_ms": None, "batch": 2, "queue": 1, "admitted": 3, "forced": 0,
                "deciding": True,
            },
        )  # fmt: skip
        assert read == Point(2.0, 96.0, 400.5, 1.1, 140.0, None, 2, 1, 3, 0, True)

    @pytest.mark.parametrize("odd", [None, "400", float("nan"), float("inf"), True])
    def test_odd_values_are_absent(self, odd: object) -> None:
        assert Point.read(0.0, {"window_tokens": odd}).window_tokens is None


def busy() -> object:
    """One answered, one streaming, two waiting, gate closed."""
    told = story(
        points=[
            point(t_s=1.0, window=430.0, load=300.0),
            point(
                t_s=2.0, window=412.0, load=398.0, sigma=1.25, itl=151.0, l_min=121.0, batch=8,
                queue=7, admitted=9, forced=1,
            ),
        ]
    )  # fmt: skip
    for index in range(4):
        told.sent(index, f"How many apples? ({index})")
    told.now_s = 1.0
    for index in (0, 1):
        told.tokens(index, 5)
        told.text(index, "There are seven apples")
    told.done(record(0))
    told.now_s = 5.0
    return told
