"""Fluid simulation: requests are divisible, so the gate holds K = H whenever it can.

This is the model behind the closed forms, with everything nonlinear kept: the knee, the
clamps, and that nothing admitted can be taken back. K falls by at most B a step, so where H
falls faster, K leads it down by draining.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from controllers.laws.base import LawSample
from controllers.models import LoopModel
from controllers.operating_point import queue_depth
from controllers.simulation.run import Run, empty_run


def simulate_fluid(
    loop: LoopModel,
    steps: int,
    *,
    arrivals: Sequence[float] | None = None,
    initial_window_tokens: float | None = None,
    initial_batch: float = 0.0,
    admit_negative: bool = False,
    disturbance: tuple[int, float] | None = None,
) -> Run:
    """Run ``loop`` for ``steps`` decode steps.

    Args:
        loop: what to simulate.
        steps: length of the run.
        arrivals: requests arriving at each step; by default the queue never runs dry.
        initial_window_tokens: H at the start instead of the law's own.
        initial_batch: stationary requests already running (with their length-biased ages).
        admit_negative: let admissions be negative, as the linear plant does; for comparing
            with linear theory only.

        disturbance: (step, tokens): an impulse on the window before that step.

    Raises:
        ValueError: fewer than 1 step, or arrivals shorter than the run.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps}: simulate at least 1 step")
    if arrivals is not None and len(arrivals) < steps:
        raise ValueError(f"arrivals: {len(arrivals)} values for {steps} steps: give one each")
    law, latency = loop.make_law(), loop.latency
    survival = loop.lengths.survival_array
    remaining = loop.lengths.remaining_array
    per_request_kv = loop.prompt_tokens + np.arange(survival.size)
    mean = float(remaining[0])
    state: Any = law.initial()
    if initial_window_tokens is not None:
        state = state._replace(window_tokens=initial_window_tokens)
    window = law.window(state)
    # alive[s]: requests admitted s steps ago that still run; ratio[s] of them go on.
    ratio = np.append(survival[1:] / survival[:-1], 0.0)
    mean_rest = remaining / survival
    alive = initial_batch * survival / mean
    itl: float | None = None
    queue = 0.0
    pending: deque[LawSample] = deque()
    run = empty_run(steps)
    for t in range(steps):
        if disturbance is not None and t == disturbance[0]:
            window += disturbance[1]
            state = state._replace(window_tokens=window)
        survivors = alive * ratio
        alive = np.concatenate([[0.0], survivors[:-1]])
        load = float(alive @ mean_rest)
        room = (window - load) / mean
        if not admit_negative:
            room = max(room, 0.0)
        if arrivals is None:
            admitted, depth = room, queue_depth(loop)
        else:
            queue += arrivals[t]
            admitted = min(room, queue)
            queue -= admitted
            depth = queue
        alive[0] = admitted
        batch = float(alive.sum())
        kv = float(alive @ per_request_kv)
        step_ms = latency.step_ms(batch, kv)
        itl = step_ms if itl is None else itl + loop.beta * (step_ms - itl)
        prompts = admitted * loop.prompt_tokens
        load += admitted * mean
        pending.append(
            LawSample._make(
                (
                    itl / latency.l_min_ms,
                    itl,
                    step_ms + latency.prefill_ms_per_token * prompts,
                    depth,
                    load,
                    batch,
                    kv,
                    prompts,
                )
            )
        )
        row = (window, load, batch, step_ms, itl / latency.l_min_ms, depth, admitted)
        for series, value in zip(run, row, strict=True):
            series[t] = value
        if len(pending) > loop.timing.delay_steps:
            window, state = law.step(pending.popleft(), state)
            if not math.isfinite(window):
                raise ValueError(f"law {loop.law!r} gave window {window} at step {t}")
    return run
