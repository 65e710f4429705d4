"""Utilisation: the engine time that requests need, as a fraction of the time they span.

    U = N min_{1 <= B <= Bmax} l(B, B k, P/N) / span,     N = D / B

D are the decode tokens of the requests (each output token but the first, which comes with the
prompt), P their prompt tokens, k the KV tokens that a running request holds, averaged over
its decode steps, and Bmax the rows that the KV pool (or the row limit) holds. So N steps of B
rows each carry their share of the prompts, at the batch for which that takes least time.

It is the least time in which an engine could do the work if it were always fed with exactly
that batch: no scheduler carries U > 1 for long, whatever its order, and one that needs smaller
batches to keep its ITL carries less. What a prompt's own chunks read of its KV is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from twp_sglang.simulator.step_models import StepModel
from twp_sglang.workloads.request import Request

_BATCHES = 96
"""Batches tried: neighbours differ by a few per cent, and the minimum is flat."""

_PREFILL_STEP_TOKENS = 8192
"""Prompt tokens per step where nothing decodes: SGLang's chunk on an 80 GB GPU."""


class EngineTime(NamedTuple):
    """Least engine time and the batch that attains it."""

    needed_s: float
    batch: int
    kv_per_row_tokens: float


def engine_time(
    requests: Sequence[Request], model: StepModel, kv_tokens: int, max_rows: int = 2048
) -> EngineTime:
    """Engine time that ``requests`` need, see the module's text.

    Args:
        requests: at least one.
        model: step times.
        kv_tokens: size of the KV pool.
        max_rows: most rows of a batch.
    """
    prompts = np.array([r.input_tokens for r in requests], dtype=np.float64)
    decodes = np.array([r.output_tokens for r in requests], dtype=np.float64) - 1.0
    prompt_tokens, decode_tokens = float(prompts.sum()), float(decodes.sum())
    if decode_tokens == 0.0:
        steps = prompt_tokens / _PREFILL_STEP_TOKENS
        step = model.step_ms(0, _PREFILL_STEP_TOKENS, _PREFILL_STEP_TOKENS)
        return EngineTime(steps * step / 1e3, 0, 0.0)
    # Decode step j of a request reads its prompt and j tokens.
    held = float((decodes * prompts + decodes * (decodes + 1.0) / 2.0).sum()) / decode_tokens
    most = max(1, min(max_rows, int(kv_tokens / held)))
    best = None
    for batch in np.unique(np.geomspace(1, most, _BATCHES).round().astype(int)).tolist():
        steps = decode_tokens / batch
        step = model.step_ms(batch, round(batch * held), round(prompt_tokens / steps))
        if best is None or steps * step < best[0]:
            best = (steps * step, batch)
    assert best is not None
    return EngineTime(best[0] / 1e3, best[1], held)


def span_s(requests: Sequence[Request]) -> float:
    """Seconds from the first to the last arrival and one mean gap more: n gaps for n
    requests, so that the rate is n/span."""
    count = len(requests)
    if count < 2:
        return 0.0
    return (requests[-1].arrival_s - requests[0].arrival_s) * count / (count - 1)
