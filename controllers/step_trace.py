"""The step trace: one JSON object per line, what an engine did step by step.

Any engine can write it. The first line is a header, every further line one scheduler
step. ``duration_ms`` is null where a step's time means nothing (idle gap, warm-up,
drain); such steps still count for the order of events.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Literal["twp-step-trace"] = "twp-step-trace"
VERSION = 1

Kind = Literal["decode", "prefill", "mixed", "idle"]


class _Line(BaseModel):
    # Not "forbid": a reader of version 1 must accept a writer that adds columns.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Header(_Line):
    """First line of a trace file: what ran, and how it was configured."""

    schema_name: Literal["twp-step-trace"] = Field(default=SCHEMA, alias="schema")
    version: int = VERSION
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    emulated: bool = False
    """Step times come from a model, not from hardware."""
    emulated_profile: str = ""
    kv_capacity_tokens: int | None = None
    page_size: int | None = None
    overlap: bool | None = None
    created_unix_s: float | None = None
    config: dict[str, Any] = Field(default_factory=dict)


class Admission(_Line):
    """One request let in, with what the gate saw, so that the decision can be audited."""

    rid: str = ""
    reason: Literal["window", "idle", "retracted", "forced", "policy"] = "policy"
    prompt_tokens: int = 0
    expected_tokens: int = 0
    load_before_tokens: int = 0
    kv_free: float | None = None
    kv_threshold: float | None = None
    waited_steps: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache held and that were not computed."""


class Step(_Line):
    """One scheduler step.

    Columns that identification needs: ``step, kind, duration_ms, batch, kv_tokens,
    prefill_tokens``; for the closed loop also ``window_tokens, load_tokens, sigma,
    queue, sample_step``; for the length law ``finished``.
    """

    step: int
    t_ms: float = 0.0
    kind: Kind
    duration_ms: float | None = None
    batch: int = 0
    """Requests that decoded in the step, B."""
    prefill_tokens: int = 0
    """Prompt tokens processed in the step."""
    kv_tokens: int = 0
    """KV-cache tokens held when the step started."""
    queue: int = 0
    """Requests waiting after the admissions of this step."""
    load_tokens: int = 0
    """K after the admissions of this step: remaining output tokens of all active requests."""
    window_tokens: float | None = None
    """H in force for the admissions of this step; null where the policy has no window."""
    sigma: float | None = None
    itl_ms: float | None = None
    """Filtered inter-token latency behind ``sigma``."""
    sample_step: int | None = None
    """Newest step whose measurement was known when this step was decided."""
    admitted: int = 0
    forced: int = 0
    closed: str = ""
    """Why the gate stopped admitting: window, kv, forced-limit, chunk, engine, limit, target, or
    empty when nobody was left waiting."""
    admissions: tuple[Admission, ...] = ()
    finished: tuple[tuple[int, int], ...] = ()
    """(prompt tokens, output tokens) of requests that finished since the last step."""
    would_admit: int | None = None
    """In observe mode: how many the observed policy would have let in."""
