"""Draws a story with rich: window against load, and some answers as they stream."""

from __future__ import annotations

import textwrap
from itertools import islice

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from twp_sglang.demonstration.story import Answer, Point, Story
from twp_sglang.sparklines import sparkline

_LINGER_S = 2.0
"""A finished answer stays on show so long, or nobody could read its end."""

_PANE_LINES = 5
_TRACK_LINES = 9
WINDOW_COLOUR, LOAD_COLOUR = "cyan", "yellow"


def gauge(load: float, window: float | None, width: int, top: float) -> Text:
    """K as a filled bar and H as a mark on one scale from 0 to ``top`` tokens."""
    cells = [" "] * width
    text = Text()
    filled = min(width, round(width * load / top)) if top > 0 else 0
    mark = None if window is None or top <= 0 else min(width - 1, round(width * window / top))
    for place in range(width):
        if place == mark:
            text.append("┃", f"bold {WINDOW_COLOUR}")
        elif place < filled:
            text.append("█", LOAD_COLOUR)
        else:
            text.append(cells[place] if mark is None or place > mark else "·", "dim")
    return text


def track(story: Story, width: int) -> RenderableType:
    """Window, load and what follows from them."""
    points = list(story.points)
    if not points:
        words = "stock SGLang: no TWP state" if story.policy == "off" else "waiting for its state"
        return Panel(Text(words, "dim"), title=_title(story), width=width)
    last = points[-1]
    inner = max(20, width - 26)
    top = max([p.window_tokens or 0.0 for p in points] + [p.load_tokens for p in points] + [1.0])
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(width=inner, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(
        Text("H window", WINDOW_COLOUR),
        Text(sparkline([p.window_tokens for p in points], inner, top), WINDOW_COLOUR),
        Text(_tokens(last.window_tokens), WINDOW_COLOUR),
    )
    grid.add_row(
        Text("K load", LOAD_COLOUR),
        Text(sparkline([p.load_tokens for p in points], inner, top), LOAD_COLOUR),
        Text(_tokens(last.load_tokens), LOAD_COLOUR),
    )
    grid.add_row("K in H", gauge(last.load_tokens, last.window_tokens, inner, top), "")
    deepest = max(max(p.queue for p in points), 1)
    grid.add_row(
        Text("queue", "magenta"),
        Text(sparkline([float(p.queue) for p in points], inner, float(deepest)), "magenta"),
        Text(f"{last.queue} waiting", "magenta"),
    )
    return Panel(Group(grid, _facts(story, last)), title=_title(story), width=width)


def panes(story: Story, width: int, rows: int) -> RenderableType:
    """Up to ``2 * rows`` answers: those that stream, then those that have just ended."""
    across = 2 if width >= 80 else 1
    each = width // across
    chosen = list(islice(_on_show(story), rows * across))
    return Columns(
        [_pane(answer, story, each) for answer in chosen], width=each, padding=0, expand=False
    )


def render(story: Story, width: int, height: int) -> RenderableType:
    """The whole view in ``width`` x ``height`` cells."""
    rows = max(1, (height - _TRACK_LINES - 1) // (_PANE_LINES + 2))
    return Group(track(story, width), panes(story, width, rows), progress(story))


def progress(story: Story) -> Text:
    """One line: how far the run is."""
    active = len(story.answers) - story.finished
    text = Text(
        f"{story.now_s:5.0f} s · {story.finished}/{story.planned} answered · {active} in flight · "
        f"{story.output_tokens} tokens"
    )
    if story.failed:
        text.append(f" · {story.failed} failed", "bold red")
    return text


def _title(story: Story) -> str:
    return f"[bold]{story.title}[/bold]" if story.title else "Token Window Pacing"


def _tokens(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} tokens"


def _facts(story: Story, last: Point) -> Text:
    text = Text()
    gate = story.gate()
    if gate == "closed":
        text.append("GATE CLOSED: the window is full", "bold red")
    elif gate == "open":
        text.append(
            "GATE OPEN: the next goes in when the prompt before it is through", "bold green"
        )
    else:
        text.append("nobody waits" if not last.queue else f"policy {story.policy}", "green")
    text.append(
        f"\nsigma {_value(last.sigma, '.2f')} · ITL {_value(last.itl_ms, '.0f')} ms "
        f"(baseline {_value(last.l_min_ms, '.0f')}) · batch {last.batch} · "
        f"admitted {last.admitted} · forced {last.forced}"
    )
    if not last.deciding:
        watching = story.policy == "observe"
        text.append(
            " · observes only" if watching else " · TWP FELL BACK TO STOCK",
            "dim" if watching else "bold red",
        )
    return text


def _value(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _on_show(story: Story) -> list[Answer]:
    """Streaming answers in order of arrival, so that a pane keeps its place; then the rest."""
    answers = story.answers.values()
    live = [
        a
        for a in answers
        if a.first_s is not None and (a.ended_s is None or story.now_s - a.ended_s < _LINGER_S)
    ]
    waiting = [a for a in answers if a.first_s is None and a.ended_s is None]
    return live + waiting


def _pane(answer: Answer, story: Story, width: int) -> Panel:
    inner = width - 4
    question = Text(_one_line(answer.question), "dim", no_wrap=True, overflow="ellipsis")
    if answer.first_s is None:
        waited = story.now_s - answer.sent_s
        body, style = Text(f"waits for admission, {waited:.0f} s", "magenta"), "magenta"
    else:
        # The newest lines: an answer is watched at its end.
        lines = textwrap.wrap(_one_line(answer.text), max(inner, 1))
        body = Text("\n".join(lines[1 - _PANE_LINES :]))
        style = "green" if answer.ended_s is None else "dim"
    if answer.error:
        body, style = Text(f"failed: {answer.error}", "red"), "red"
    first = "" if answer.first_s is None else f" · TTFT {answer.first_s - answer.sent_s:.1f} s"
    return Panel(
        Group(question, body),
        title=f"#{answer.index + 1} · {answer.tokens} tokens{first}",
        title_align="left",
        border_style=style,
        width=width,
        height=_PANE_LINES + 2,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
