"""The live view: the same sentence as on the page, bars, and the last minutes as sparklines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from twp_sglang.sparklines import sparkline
from twp_sglang.terminal.history import (
    History,
    State,
    kv_used,
    limit_ms,
    mode,
    out_of_reach,
    step_ms,
    window_tokens,
)

_LABELS = 15
_VALUES = 30
_NARROW = 60


def render(history: History, width: int, trouble: str = "") -> RenderableType:
    """The whole view.

    Args:
        width: columns of the terminal.
        trouble: why the newest look failed, or empty.
    """
    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(trouble, "bold red"))
    parts += [_replica(history, replica, width) for replica in history.replicas]
    return Group(*parts)


def _replica(history: History, replica: int, width: int) -> RenderableType:
    state = history.newest(replica)
    number = f" · replica {replica}" if len(history.replicas) > 1 else ""
    title = Text.assemble((history.model, "bold"), number, " · ", (mode(state), _mode_style(state)))
    body: list[RenderableType] = [Text(str(state["why"]), _why_style(state)), Text()]
    body.append(_tracks(history, replica, state, width))
    body.append(_reasons(state))
    return Panel(Group(*body), title=title, title_align="left", width=width)


def _tracks(history: History, replica: int, state: State, width: int) -> RenderableType:
    values = _VALUES if width >= _NARROW + _VALUES else 18
    inner = max(10, width - _LABELS - values - 8)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABELS, no_wrap=True)
    grid.add_column(width=inner, no_wrap=True)
    grid.add_column(width=values, no_wrap=True, overflow="ellipsis")

    def track(
        name: str, value: Callable[[State], float | None], top: float | None, says: str, style: str
    ) -> None:
        seen = history.values(replica, value)
        if all(one is None for one in seen):
            return
        highest = max([one for one in seen if one is not None] + [top or 0.0, 1e-9])
        grid.add_row(name, Text(sparkline(seen, inner, highest), style), says)

    goal = limit_ms(state)
    track("ITL", step_ms, goal, _itl(state), _itl_style(state))
    window = window_tokens(state)
    if window is not None:
        load = float(state["load_tokens"])
        grid.add_row(
            "K in H", _gauge(load, float(window), inner), f"{load:,.0f} of {window:,.0f} tokens"
        )
    track("waiting", lambda s: float(s["queue"]), 4.0, _waiting(state), "magenta")
    track("running", lambda s: float(s["batch"]), 4.0, f"{state['batch']:,}", "cyan")
    track("KV cache", kv_used, 1.0, _kv(state), "blue")
    track("tokens/s", _rate, None, _rates(state), "green")
    return grid


def _gauge(load: float, window: float, width: int) -> Text:
    """K as a bar on a scale that ends at H, or at K where that is more."""
    top = max(load, window, 1.0)
    filled = round(width * load / top)
    mark = min(width - 1, round(width * window / top))
    text = Text()
    for place in range(width):
        if place == mark:
            text.append("┃", "bold yellow")
        elif place < filled:
            text.append("█", "red" if place > mark else "cyan")
        else:
            text.append("·", "dim")
    return text


def _reasons(state: State) -> Text:
    text = Text("\n")
    for name, counts in (
        ("admitted", state.get("admissions")),
        ("held", state.get("holds")),
        ("refused", state.get("refusals")),
        ("twp would have", state.get("shadow")),
    ):
        if counts:
            ordered = sorted(counts.items(), key=lambda pair: -pair[1])
            said = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in ordered)
            text.append(f"{name}: ", "dim").append(f"{said}\n")
    text.append("configuration ", "dim")
    changes = int(state.get("revision") or 0)
    text.append("as started" if not changes else f"changed {changes} times since the start")
    return text


def _itl(state: State) -> str:
    step, goal = step_ms(state), limit_ms(state)
    if step is None:
        return "not measured yet"
    if goal is not None:
        return f"{step:.1f} ms of {goal:g}" + out_of_reach(state)
    sigma = state.get("sigma")
    return f"{step:.1f} ms" + ("" if sigma is None else f", slowdown {sigma:.2f}")


def _waiting(state: State) -> str:
    late = state.get("late")
    return f"{state['queue']:,}" + (f", {late:,} late" if late else "")


def _kv(state: State) -> str:
    used = kv_used(state)
    return "" if used is None else f"{used:.0%} of {state['kv_capacity_tokens']:,}"


def _steps(state: State) -> dict[str, Any]:
    return state.get("steps") or {}


def _rate(state: State) -> float | None:
    value: float | None = _steps(state).get("output_tokens_per_s")
    return value


def _rates(state: State) -> str:
    steps = _steps(state)
    if steps.get("output_tokens_per_s") is None:
        return ""
    return f"{steps['output_tokens_per_s']:,.0f} out, {steps['prompt_tokens_per_s']:,.0f} prompt"


def _itl_style(state: State) -> str:
    step, goal = step_ms(state), limit_ms(state)
    return "red" if step is not None and goal is not None and step > goal else "cyan"


def _mode_style(state: State) -> str:
    if state.get("fallback_reason"):
        return "bold white on red"
    return "bold green" if state.get("deciding") else "bold yellow"


def _why_style(state: State) -> str:
    if state.get("fallback_reason"):
        return "bold red"
    return "yellow" if state["queue"] else ""
