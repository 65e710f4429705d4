"""Many like decode steps at once.

Most steps of a serving engine decode the same requests as the one before: nobody arrives,
joins, ends or is let in. :func:`run` takes such steps in one go, by the same arithmetic and
with the same calls to the policy as single passes make; a policy that does not look at
steps is not called and the times come out of one vector operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twp_sglang.scheduling.active_rows import nobody
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.simulator.policy_driver import WINDOW_EVERY_PASSES, Launched
from twp_sglang.simulator.row_reader import rows_reader

if TYPE_CHECKING:
    from twp_sglang.simulator.engine import Engine

_VECTOR_FROM_STEPS = 12
"""Below that a vector operation costs more than the steps."""

_MOST_STEPS = 4096

_WINDOW_MASK = WINDOW_EVERY_PASSES - 1
assert not WINDOW_EVERY_PASSES & _WINDOW_MASK

_new = tuple.__new__
"""Builds the named tuples of the inner loop, past their keyword handling."""


def run(engine: Engine, until_ms: float) -> None:
    """Take as many like decode steps as there are before ``until_ms``; maybe none."""
    batcher, driver = engine.batcher, engine.driver
    rows = batcher.rows
    if not rows.running or batcher.joining or batcher.chunked is not None:
        return
    if driver.learns_lengths:
        return  # the load then falls by other than one per row
    if driver.idle_since_launch or driver.last_pass_empty or batcher.deferring:
        return
    before = engine.in_flight
    limit = rows.quiet_launches()
    if engine.settings.overlap:
        # Only with the pipeline full of decoding does one step look like the next.
        if before is None or before.kind != "decode":
            return
        # Results lag by a launch, and it is they that end a request.
        limit += 1
    if limit < 1:
        return
    policy = driver.policy
    preempts = engine.settings.priority_preemption
    asks = driver.waiting > 0 and (preempts or not batcher.full)
    if asks and (preempts or not driver.steers):
        return
    limit = min(limit, _MOST_STEPS)
    if policy is None or not _looks_at_steps(policy):
        if asks:
            return
        if limit >= _VECTOR_FROM_STEPS and engine.pool.page_size == 1 and engine.timer.leaps:
            _leap(engine, min(limit, engine.pool.free_tokens // len(rows.running)), until_ms)
            return
    _steps(engine, limit, until_ms, asks)


def _looks_at_steps(policy: Policy) -> bool:
    kind = type(policy)
    return (
        kind.observe is not Policy.observe
        or kind.end_pass is not Policy.end_pass
        or kind.signals is not Policy.signals
    )


def _leap(engine: Engine, limit: int, until_ms: float) -> None:
    """Up to ``limit`` steps by one vector operation."""
    if limit < 1:
        return
    rows, driver = engine.batcher.rows, engine.driver
    riding = len(rows.running)
    durations = engine.timer.decode_steps_ms(riding, rows.context_tokens + riding, limit)
    start = max(engine.gpu_free_ms, engine.now_ms)
    done = np.cumsum(np.concatenate(([start], durations)))[1:]
    # A pass sees what arrived until it starts: at the completion of the step before the
    # one under way (overlap), or of the last one.
    before = engine.in_flight
    if before is None:
        begins = np.concatenate(([engine.now_ms], done[:-1]))
    else:
        begins = np.concatenate(([engine.now_ms, before.done_ms], done))[:limit]
    stop = until_ms
    if engine.inbox:
        stop = min(stop, engine.inbox[0].arrival_ms)
    count = int(np.searchsorted(begins, stop, side="left"))
    if count < 1:
        return
    times = done[:count]
    engine.decode_done_ms.frombytes(times.tobytes())
    rows.context_tokens += riding * count
    rows.launched += count
    rows.load_tokens -= rows.shrinking * count
    rows.settled += count
    engine.batcher.ratio.decayed_steps += count
    engine.pool.take(riding * count)
    engine.steps += count
    driver.pass_index += count
    last = float(times[-1])
    engine.gpu_free_ms = last
    if before is None:
        engine.now_ms = last
        driver.last_done_ms = last
    else:
        previous = float(times[-2]) if count > 1 else before.done_ms
        engine.now_ms = max(engine.now_ms, previous)
        driver.last_done_ms = previous
        engine.in_flight = Launched(
            driver.pass_index, "decode", True, last, riding, 0, engine.pool.held, (), None
        )


def _steps(engine: Engine, limit: int, until_ms: float, asks: bool) -> None:
    """Up to ``limit`` steps one by one, each shown to the policy."""
    batcher, driver, pool, timer = engine.batcher, engine.driver, engine.pool, engine.timer
    rows, ratio = batcher.rows, batcher.ratio
    policy = driver.policy
    riding = len(rows.running)
    shrinking = rows.shrinking
    paged = pool.page_size > 1
    capacity = pool.capacity_tokens
    free = free_at_start = pool.free_tokens
    needed = riding
    load, context = rows.load_tokens, rows.context_tokens
    now, gpu_free = engine.now_ms, engine.gpu_free_ms
    pass_index, last_done = driver.pass_index, driver.last_done_ms
    before = engine.in_flight
    overlap = before is not None
    # The step under way, in the order of a StepSample: number, counts, done, batch, KV held.
    under_way = (0, True, 0.0, 0, 0)
    if before is not None:
        under_way = (before.step, before.counts, before.done_ms, before.batch, before.kv_tokens)
    stop = until_ms
    if engine.inbox:
        stop = min(stop, engine.inbox[0].arrival_ms)
    driver.deliver()
    # The sample of the step before, on its way to the policy.
    fresh: StepSample | None = None
    append_done = engine.decode_done_ms.append
    step_ms = timer.step_ms
    observe = None if policy is None else policy.observe
    end_pass = None if policy is None else policy.end_pass
    taken = 0
    while taken < limit and now < stop:
        if fresh is not None:
            observe(fresh)  # type: ignore[misc]  # a sample is made only for an observer
            fresh = None
        if asks:
            assert policy is not None
            reader = rows_reader(batcher, taken) if driver.reads_rows else nobody
            view = _new(
                PassView, (pass_index + 1, load, riding, free, capacity, 0, now, reader, None)
            )
            if policy.decide(view).grants:
                break
        if paged:
            rows.launched += taken
            needed = rows.tokens_needed([])
            rows.launched -= taken
        if needed > free:
            break
        pass_index += 1
        free -= needed
        context += riding
        taken += 1
        if end_pass is not None:
            end_pass(free, capacity, _new(ActiveLoad, (load, riding)))
            if not pass_index & _WINDOW_MASK:
                driver.note_window()
        gpu_free = done = (gpu_free if gpu_free > now else now) + step_ms(riding, context, 0)
        append_done(done)
        finished = (pass_index, True, done, riding, capacity - free)
        if overlap:
            finished, under_way = under_way, finished
        step, counts, finished_ms, batch, kv_tokens = finished
        if finished_ms > now:
            now = finished_ms
        load -= shrinking
        if observe is not None:
            duration = finished_ms - last_done if counts and last_done is not None else None
            fresh = _new(StepSample, (step, "decode", duration, batch, 0, kv_tokens))
        last_done = finished_ms
    if fresh is not None:
        driver.outbox.append(fresh)
    if not taken:
        return
    rows.launched += taken
    rows.settled += taken
    rows.load_tokens = load
    rows.context_tokens = context
    ratio.decayed_steps += taken
    pool.take(free_at_start - free)
    engine.steps += taken
    engine.now_ms, engine.gpu_free_ms = now, gpu_free
    driver.pass_index, driver.last_done_ms = pass_index, last_done
    if overlap:
        step, counts, done, batch, kv_tokens = under_way
        engine.in_flight = Launched(step, "decode", counts, done, batch, 0, kv_tokens, (), None)
