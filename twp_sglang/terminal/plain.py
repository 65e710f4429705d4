"""One line per replica and look, for pipes and logs."""

from __future__ import annotations

import time

from twp_sglang.terminal.client import Look
from twp_sglang.terminal.history import (
    State,
    kv_used,
    limit_ms,
    mode,
    out_of_reach,
    step_ms,
    window_tokens,
)


def lines(seen: Look) -> list[str]:
    """The look as text."""
    clock = time.strftime("%H:%M:%S", time.localtime(seen.time_unix_s))
    return [f"{clock} {_line(state, many=len(seen.replicas) > 1)}" for state in seen.replicas]


def _line(state: State, *, many: bool) -> str:
    step, limit, used = step_ms(state), limit_ms(state), kv_used(state)
    window = window_tokens(state)
    parts = [f"replica {state['replica']}"] if many else []
    parts.append(mode(state))
    if step is not None:
        parts.append(
            f"itl {step:.1f} ms" + ("" if limit is None else f" of {limit:g}") + out_of_reach(state)
        )
    if window is not None:
        parts.append(f"load {state['load_tokens']:.0f} of {window:.0f}")
    parts.append(f"running {state['batch']}")
    parts.append(f"waiting {state['queue']}" + _late(state))
    if used is not None:
        parts.append(f"kv {used:.0%}")
    parts.append(str(state["why"]))
    return " | ".join(parts)


def _late(state: State) -> str:
    return f" ({state['late']} late)" if state.get("late") else ""
