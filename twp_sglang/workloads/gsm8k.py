"""GSM8K as a workload: lengths of its questions and answers, arrivals drawn.

The data set has text and no tokens or times. Tokens are estimated at 4 characters each,
the usual figure for English and a BPE vocabulary; arrivals are Poisson.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twp_sglang.workloads.fields import Place, WorkloadError, json_lines, opened
from twp_sglang.workloads.request import Request
from twp_sglang.workloads.workload import Workload, in_order

CHARACTERS_PER_TOKEN = 4


def read_gsm8k(
    path: Path, rate_rps: float | None, limit: int | None = None, seed: int = 0
) -> Workload:
    """Questions of GSM8K in the file's order, arriving at ``rate_rps``.

    Raises:
        WorkloadError: no rate, the file cannot be read, or a line holds no question and
            answer (with its number).
    """
    if rate_rps is None or not 0 < rate_rps < float("inf"):
        raise WorkloadError(
            f"{path}: GSM8K has no arrival times; give a rate above 0 with --rate (per second)"
        )
    place = Place(path)
    lengths: list[tuple[int, int]] = []
    with opened(path) as handle:
        for line in json_lines(handle, place):
            if limit is not None and len(lengths) >= limit:
                break
            question, answer = line.get("question"), line.get("answer")
            if not isinstance(question, str) or not isinstance(answer, str):
                raise place.error("no 'question' and 'answer' texts")
            lengths.append((_tokens(question), _tokens(answer)))
    gaps = np.random.default_rng(seed).exponential(1.0 / rate_rps, len(lengths))
    gaps[:1] = 0.0
    requests = [
        Request(float(arrival), given, made)
        for arrival, (given, made) in zip(np.cumsum(gaps), lengths, strict=True)
    ]
    return in_order(
        path.name,
        requests,
        [f"tokens estimated at {CHARACTERS_PER_TOKEN} characters, arrivals Poisson"],
    )


def _tokens(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))
