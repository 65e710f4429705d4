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

import math

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.waiting import Columns, WaitingQueue

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]

_FEW = 12
"""Up to so many requests plain arithmetic is faster than vector operations."""

_BLOCKS = 1024
"""Blocks whose maxima bound the k-th best from below; well above any k that is asked for."""


class Ranking:
    """Picks the first k of a waiting queue."""

    def __init__(
        self, w_starvation: float, w_balance: float, w_fairness: float, t_max_steps: int
    ) -> None:
        self._w1 = w_starvation
        self._w2 = w_balance
        self._w3 = w_fairness
        self._t_max = t_max_steps
        # Kept from pass to pass: at 100,000 requests a fresh array costs more in page
        # faults than the arithmetic on it.
        self._scratch = np.empty((3, 0))

    def top(
        self, queue: WaitingQueue, pass_index: int, mean_remaining_tokens: float, k: int
    ) -> list[RequestInfo]:
        """The first ``k`` fresh requests of ``queue``, best first."""
        oldest = queue.oldest()
        if oldest is None or k <= 0:
            return []
        if queue.fresh <= _FEW:
            return self._top_of_few(queue, pass_index, mean_remaining_tokens)[:k]
        columns = queue.columns()
        if self._scratch.shape[1] < columns.seq.size:
            self._scratch = np.empty((3, 2 * columns.seq.size))
        wait, score, work = self._scratch[:, : columns.seq.size]
        np.subtract(pass_index, columns.arrival, out=wait)
        eligible = columns.alive
        starving = pass_index - oldest.arrival_pass >= self._t_max
        chosen: list[RequestInfo] = []
        if starving:
            starved = eligible & (wait >= self._t_max)
            rows = np.flatnonzero(starved)
            rows = rows[_leaders(-columns.seq[rows].astype(np.float64), columns.seq[rows], k)]
            rows = rows[np.argsort(columns.seq[rows])]
            chosen = queue.pick(rows)
            eligible = eligible & ~starved
        if len(chosen) < k:
            self._score(columns, wait, mean_remaining_tokens, score, work)
            # The queue knows how many rows are dead without looking at them.
            whole = not starving and queue.fresh == columns.seq.size
            rows = _best(eligible, whole, score, columns, queue.mixed_priorities, k - len(chosen))
            chosen += queue.pick(rows)
        return chosen

    def _top_of_few(
        self, queue: WaitingQueue, pass_index: int, mean_remaining: float
    ) -> list[RequestInfo]:
        """All fresh requests, best first, by plain arithmetic: the same terms as
        :meth:`_score`, at a fifth of what the vector operations cost for a handful."""
        t_max = self._t_max
        ranked = []
        for request in queue.fresh_requests():
            wait = pass_index - request.arrival_pass
            if wait >= t_max:
                ranked.append((False, 0, 0.0, request.seq, request))
                continue
            expected = request.expected_tokens
            x = wait / max(1, request.prompt_tokens + expected)
            score = (
                self._w1 * min(1.0, wait / t_max)
                + self._w2 * math.exp(-abs(expected - mean_remaining) / (mean_remaining + 1.0))
                + self._w3 * x / (1.0 + x)
            )
            ranked.append((True, -request.priority, -score, request.seq, request))
        # Arrival numbers are unique: the requests themselves are never compared.
        ranked.sort()
        return [entry[4] for entry in ranked]

    def _score(
        self, columns: Columns, wait: Floats, mean_remaining: float, score: Floats, work: Floats
    ) -> None:
        """Fill ``score``; ``wait`` and ``work`` are used up."""
        np.subtract(columns.expected, mean_remaining, out=score)
        np.abs(score, out=score)
        score *= -1.0 / (mean_remaining + 1.0)
        np.exp(score, out=score)
        score *= self._w2
        # w3 x/(1 + x) as w3 - w3/(1 + x), of which the constant does not order.
        np.multiply(wait, columns.inverse_size, out=work)
        work += 1.0
        np.divide(-self._w3, work, out=work)
        score += work
        wait *= 1.0 / self._t_max
        np.minimum(wait, 1.0, out=wait)
        wait *= self._w1
        score += wait


def first_come(queue: WaitingQueue, k: int) -> list[RequestInfo]:
    """The first ``k`` fresh requests by priority, then arrival."""
    columns = queue.columns()
    return _first(queue, columns, -columns.seq.astype(np.float64), k)


def shortest_prompt_first(queue: WaitingQueue, k: int) -> list[RequestInfo]:
    """The first ``k`` fresh requests by priority, prompt length, then arrival."""
    columns = queue.columns()
    return _first(queue, columns, -columns.prompt, k)


def _first(queue: WaitingQueue, columns: Columns, score: Floats, k: int) -> list[RequestInfo]:
    rows = _best(
        columns.alive,
        queue.fresh == columns.seq.size,
        score,
        columns,
        queue.mixed_priorities,
        k,
    )
    return queue.pick(rows)


def _best(
    eligible: NDArray[np.bool_],
    whole: bool,
    score: Floats,
    columns: Columns,
    mixed_priorities: bool,
    k: int,
) -> Rows:
    """The k best eligible rows, best first: by priority, ``score``, earliest ``seq``.

    ``whole`` says that all rows are eligible. Uses up ``score`` of rows that are not.
    """
    seq = columns.seq
    if mixed_priorities:
        rows = np.flatnonzero(eligible)
        if rows.size > k:
            priority = columns.priority[rows]
            edge = np.partition(priority, rows.size - k)[rows.size - k]
            above = rows[priority > edge]
            level = rows[priority == edge]
            level = level[_leaders(score[level], seq[level], k - above.size)]
            rows = np.concatenate((above, level))
    else:
        if not whole:
            np.copyto(score, -np.inf, where=~eligible)
        rows = _leaders(score, seq, k)
        rows = rows[eligible[rows]]
    best: Rows = rows[np.lexsort((seq[rows], -score[rows], -columns.priority[rows]))]
    return best


def _leaders(score: Floats, seq: NDArray[np.int64], k: int) -> Rows:
    """Rows of the k largest scores, ties to the smallest ``seq``; in no particular order.

    Nothing is sorted. The k largest of the blocks' maxima are k scores, so the k-th best
    of all is at least the smallest of those; few rows reach it, and only they are looked
    at closely.
    """
    if score.size <= k:
        return np.arange(score.size)
    width = score.size // _BLOCKS
    if width >= 2 and k <= _BLOCKS:
        maxima = score[: width * _BLOCKS].reshape(width, _BLOCKS).max(axis=0)
        bound = np.partition(maxima, _BLOCKS - k)[_BLOCKS - k]
        rows = np.flatnonzero(score >= bound)
    else:
        rows = np.arange(score.size)
    if rows.size == k:
        return rows
    near = score[rows]
    edge = np.partition(near, rows.size - k)[rows.size - k]
    above = rows[near > edge]
    level = rows[near == edge]
    needed = k - above.size
    if level.size > needed:
        level = level[np.argpartition(seq[level], needed - 1)[:needed]]
    return np.concatenate((above, level))
