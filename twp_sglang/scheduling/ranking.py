"""The order of admission (section IV-B3): starvation, token balance, fairness.

    score = w1 min(1, wait/T_max) + w2 exp(-|L - r|/(r + 1)) + w3 x/(1 + x)

with wait in scheduling passes, L the request's expected output, r the mean remaining
output of the active batch (the middle term is equation 5) and x the wait per token of job
size (prompt + expected output): a large job is not passed for ever by small ones, and a
long-waiting small one is not passed by large ones. The paper states the three aims; the
first and third term are the bounded forms chosen here.

Requests past T_max come first, oldest first; then higher priority, higher score, earlier
arrival. Waiting is counted in passes and ties end at the arrival number, so that equal
inputs give equal orders on every tensor-parallel rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.waiting import Columns, WaitingQueue

Rows = NDArray[np.intp]


class Ranking:
    """Picks the first k of a waiting queue."""

    def __init__(
        self, w_starvation: float, w_balance: float, w_fairness: float, t_max_steps: int
    ) -> None:
        self._w1 = w_starvation
        self._w2 = w_balance
        self._w3 = w_fairness
        self._t_max = t_max_steps

    def top(
        self, queue: WaitingQueue, pass_index: int, mean_remaining_tokens: float, k: int
    ) -> list[RequestInfo]:
        """The first ``k`` fresh requests of ``queue``, best first."""
        oldest = queue.oldest()
        if oldest is None or k <= 0:
            return []
        columns = queue.columns()
        wait = pass_index - columns.arrival
        rows = columns.alive
        chosen: list[Rows] = []
        if pass_index - oldest.arrival_pass >= self._t_max:
            starved = rows & (wait >= self._t_max)
            hungry = np.flatnonzero(starved)
            chosen.append(_first_by(hungry, columns.seq[hungry], k))
            k -= chosen[0].size
            rows = rows & ~starved
        if k > 0:
            score = self._score(columns, wait, mean_remaining_tokens)
            chosen.append(_best_by(rows, score, columns, queue.mixed_priorities, k))
        return [queue.at(int(row)) for part in chosen for row in part]

    def _score(
        self, columns: Columns, wait: NDArray[np.float64], mean_remaining: float
    ) -> NDArray[np.float64]:
        # In place: at 100,000 requests the temporaries cost more than the arithmetic.
        score = columns.expected - mean_remaining
        np.abs(score, out=score)
        score *= -1.0 / (mean_remaining + 1.0)
        np.exp(score, out=score)
        score *= self._w2
        per_token = wait / columns.size
        # w3 x/(1 + x) as w3 - w3/(1 + x): one pass less.
        per_token += 1.0
        np.divide(-self._w3, per_token, out=per_token)
        score += per_token
        wait *= 1.0 / self._t_max
        np.minimum(wait, 1.0, out=wait)
        wait *= self._w1
        score += wait
        return score


def first_come(queue: WaitingQueue, k: int) -> list[RequestInfo]:
    """The first ``k`` fresh requests by priority, then arrival."""
    columns = queue.columns()
    if queue.mixed_priorities:
        rows = _sorted(columns.alive, np.zeros(columns.seq.size), columns, k)
    else:
        live = np.flatnonzero(columns.alive)
        rows = _first_by(live, columns.seq[live], k)
    return [queue.at(int(row)) for row in rows]


def shortest_prompt_first(queue: WaitingQueue, k: int) -> list[RequestInfo]:
    """The first ``k`` fresh requests by priority, prompt length, then arrival."""
    columns = queue.columns()
    rows = _best_by(columns.alive, -columns.prompt, columns, queue.mixed_priorities, k)
    return [queue.at(int(row)) for row in rows]


def _first_by(rows: Rows, seq: NDArray[np.int64], k: int) -> Rows:
    """The k rows of smallest ``seq``, ascending, without sorting the rest."""
    if rows.size > k:
        keep = np.argpartition(seq, k - 1)[:k]
        rows, seq = rows[keep], seq[keep]
    ordered: Rows = rows[np.argsort(seq)]
    return ordered


def _best_by(
    eligible: NDArray[np.bool_],
    score: NDArray[np.float64],
    columns: Columns,
    mixed_priorities: bool,
    k: int,
) -> Rows:
    """The k eligible rows of largest ``score``, ties by smallest ``seq``."""
    if mixed_priorities:
        return _sorted(eligible, score, columns, k)
    score[~eligible] = -np.inf
    total = score.size
    if total > k:
        # No sort of the whole queue: find the k-th score, keep what is above it, and
        # among those level with it the earliest.
        edge = np.partition(score, total - k)[total - k]
        if edge > -np.inf:
            above = np.flatnonzero(score > edge)
            level = np.flatnonzero(score == edge)
            level = _first_by(level, columns.seq[level], k - above.size)
            rows = np.concatenate((above, level))
        else:
            rows = np.flatnonzero(eligible)
    else:
        rows = np.flatnonzero(eligible)
    best: Rows = rows[np.lexsort((columns.seq[rows], -score[rows]))]
    return best


def _sorted(
    eligible: NDArray[np.bool_], score: NDArray[np.float64], columns: Columns, k: int
) -> Rows:
    """The k eligible rows by priority, score, then ``seq``.

    Few servers use priorities, and then the queue is short: a full sort is the simple way.
    """
    rows = np.flatnonzero(eligible)
    order = np.lexsort((columns.seq[rows], -score[rows], -columns.priority[rows]))
    best: Rows = rows[order[:k]]
    return best
