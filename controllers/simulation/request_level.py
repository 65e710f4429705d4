"""Request-level simulation: whole requests, head of line, K + r <= H, lengths known exactly.

What the fluid leaves out is in here: requests are not divisible, so the gate leaves a gap
H - K; the batch is a number of requests that fluctuates; an idle engine always admits its
head. No KV limit and no forced admission: those belong to the scheduler's own simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from controllers.laws.base import LawSample
from controllers.models import LoopModel
from controllers.operating_point import queue_depth
from controllers.simulation.run import Run, empty_run

MAX_BATCH = 100_000
"""Requests at once beyond which a simulation is refused: far above any server's batch, and
a window that lets in more is a slip of a unit that would never come to an end."""


def simulate_requests(
    loop: LoopModel,
    steps: int,
    *,
    seed: int,
    arrivals: Sequence[int] | None = None,
    noise: float = 0.0,
) -> Run:
    """Run ``loop`` for ``steps`` decode steps with random output lengths.

    Args:
        loop: what to simulate.
        steps: length of the run.
        seed: same seed, same run.
        arrivals: requests arriving at each step; by default the queue never runs dry.
        noise: standard deviation of the log of each step's duration.

    Raises:
        ValueError: fewer than 1 step, arrivals shorter than the run, or more than
            ``MAX_BATCH`` requests at once.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps}: simulate at least 1 step")
    if arrivals is not None and len(arrivals) < steps:
        raise ValueError(f"arrivals: {len(arrivals)} values for {steps} steps: give one each")
    rng = np.random.default_rng(seed)
    law, latency = loop.make_law(), loop.latency
    state: Any = law.initial()
    window = law.window(state)
    # ends[i]: running requests that finish after step i; a ring, since none outlives longest.
    size = loop.lengths.longest + 1
    ends = [0] * size
    lengths = iter(())
    batch = load = waiting = 0
    output_kv = 0
    ended_kv = [0] * size
    head: int | None = None
    itl: float | None = None
    saturated = arrivals is None
    pending: deque[LawSample] = deque()
    run = empty_run(steps)
    factors = np.exp(noise * rng.standard_normal(steps)) if noise > 0 else np.ones(steps)
    for t in range(steps):
        slot = t % size
        if arrivals is not None:
            waiting += int(arrivals[t])
        admitted = 0
        while saturated or waiting > 0:
            if head is None:
                head = next(lengths, None)
                if head is None:
                    lengths = iter(loop.lengths.sample(rng, 1024).tolist())
                    head = next(lengths)
            if load + head > window and batch > 0:
                break
            if batch >= MAX_BATCH:
                raise ValueError(
                    f"a window of {window:g} tokens lets more than {MAX_BATCH} requests run at "
                    "once: lower h0_tokens or h_max_tokens"
                )
            ends[(t + head - 1) % size] += 1
            ended_kv[(t + head - 1) % size] += head
            batch += 1
            load += head
            waiting -= 1
            admitted += 1
            head = None
        depth = queue_depth(loop) if saturated else float(waiting)
        kv = output_kv + batch * loop.prompt_tokens
        step_ms = latency.step_ms(batch, kv) * float(factors[t])
        if batch > 0:
            itl = step_ms if itl is None else itl + loop.beta * (step_ms - itl)
        filtered = latency.l_min_ms if itl is None else itl
        prompts = admitted * loop.prompt_tokens
        if batch > 0:
            pending.append(
                LawSample._make(
                    (
                        filtered / latency.l_min_ms,
                        filtered,
                        step_ms + latency.prefill_ms_per_token * prompts,
                        depth,
                        load,
                        batch,
                        kv,
                        prompts,
                    )
                )
            )
        row = (window, load, batch, step_ms, filtered / latency.l_min_ms, depth, admitted)
        for series, value in zip(run, row, strict=True):
            series[t] = value
        # Every running request makes one token, then those at their end leave.
        load -= batch
        output_kv += batch - ended_kv[slot]
        batch -= ends[slot]
        ends[slot] = ended_kv[slot] = 0
        if len(pending) > loop.timing.delay_steps:
            window, state = law.step(pending.popleft(), state)
    return run
