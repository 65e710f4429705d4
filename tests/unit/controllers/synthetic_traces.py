"""Synthetic step traces with a known truth: requests arrive, a window gates, steps take time.

A small generator of its own, apart from the package's simulations, so that a slip in
those cannot hide behind an identification that makes the same one.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Truth:
    """The engine behind a synthetic trace."""

    l_min_ms: float = 43.0
    b0: float = 8.0
    alpha_ms: float = 4.3
    kappa_ms_per_token: float = 0.0
    prefill_ms_per_token: float = 0.0
    a_ms: float = 0.0
    noise: float = 0.03
    """Standard deviation of a step's time, relative to it."""
    outliers: float = 0.0
    """Share of steps that take three to six times too long."""
    correlation: float = 0.0
    """Lag-one correlation of the noise."""
    delay_steps: int = 0


def request_trace(
    truth: Truth,
    *,
    steps: int = 4000,
    seed: int = 0,
    load: float = 1.4,
    burst: float = 2.5,
    h0_tokens: float = 400.0,
    gamma: float = 0.15,
    beta: float = 0.2,
    queue_ref: float = 16.0,
    mean_output: float = 50.0,
    mean_prompt: float = 200.0,
    max_batch: int | None = None,
) -> list[dict[str, Any]]:
    """Step records of a gated engine; ``load`` in units of B0 requests held at light load.

    Arrivals alternate every 300 steps between ``load`` and ``burst`` times as much, so a
    load below 1 with ``burst=1`` keeps B at or below B0.
    """
    rng = np.random.default_rng(seed)
    rate = load * truth.b0 / mean_output
    window = min(max(h0_tokens, h0_tokens / 4), 2 * h0_tokens)
    waiting: deque[tuple[int, int]] = deque()
    active: list[list[int]] = []  # [remaining output, KV tokens, prompt, output]
    filtered = truth.l_min_ms
    pending: deque[float] = deque()
    noise = 0.0
    records: list[dict[str, Any]] = []
    now = 0.0
    for step in range(steps):
        wanted = rate * (burst if (step // 300) % 2 else 1.0)
        for _ in range(rng.poisson(wanted)):
            output = 1 + int(rng.geometric(1.0 / max(mean_output - 1, 1.0)))
            waiting.append((int(rng.integers(1, 2 * mean_prompt)), output))
        load_tokens = sum(row[0] for row in active)
        prefill = admitted = 0
        while waiting and (max_batch is None or len(active) < max_batch):
            prompt, output = waiting[0]
            if active and load_tokens + output > window:
                break
            waiting.popleft()
            active.append([output, prompt, prompt, output])
            load_tokens += output
            prefill += prompt
            admitted += 1
        batch = len(active)
        kv = sum(row[1] for row in active)
        step_ms = (
            truth.l_min_ms
            + truth.a_ms * batch
            + truth.alpha_ms * max(batch - truth.b0, 0.0)
            + truth.kappa_ms_per_token * kv
            + truth.prefill_ms_per_token * prefill
        )
        fresh = rng.normal()
        noise = truth.correlation * noise + np.sqrt(1 - truth.correlation**2) * fresh
        step_ms *= max(1 + truth.noise * noise, 0.2)  # no step is shorter than its kernels
        if rng.random() < truth.outliers:
            step_ms *= rng.uniform(3, 6)
        sigma = filtered / truth.l_min_ms
        records.append(
            {
                "step": step,
                "t_ms": round(now, 3),
                "kind": "idle" if not batch else ("mixed" if prefill else "decode"),
                "duration_ms": round(float(step_ms), 4) if batch else None,
                "batch": batch,
                "prefill_tokens": prefill,
                "kv_tokens": kv,
                "queue": len(waiting),
                "load_tokens": load_tokens,
                "window_tokens": window,
                "sigma": sigma,
                "itl_ms": filtered,
                "sample_step": step - 1 - truth.delay_steps if step > truth.delay_steps else None,
                "admitted": admitted,
                "forced": 0,
                "finished": [[row[2], row[3]] for row in active if row[0] == 1],
            }
        )
        now += float(step_ms)
        active = [[r - 1, k + 1, p, o] for r, k, p, o in active if r > 1]
        if batch:
            pending.append(float(step_ms))
        if len(pending) > truth.delay_steps:
            filtered += beta * (pending.popleft() - filtered)
            target = (
                h0_tokens
                * (1 + min(1.0, len(waiting) / queue_ref))
                / max(0.5, filtered / truth.l_min_ms)
            )
            window += gamma * (target - window)
            window = min(max(window, h0_tokens / 4), 2 * h0_tokens)
    return records


def header(**config: Any) -> dict[str, Any]:
    """Header line of a trace."""
    return {
        "schema": "twp-step-trace",
        "version": 1,
        "engine": "synthetic",
        "model": "none",
        "config": config,
    }


def write_trace(path: Path, records: list[dict[str, Any]], **config: Any) -> Path:
    """Write a header and ``records`` to ``path``."""
    lines = [header(**config), *records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
