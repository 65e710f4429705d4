"""Output lengths as they turn out: by client and prompt length, given what was produced.

Clients declare limits, not lengths. What ended teaches one survival curve per client and
class of prompt lengths, one per class over all clients, and one over all. A request is
predicted by the first of these that has seen enough answers; on top, the answers that reached
as far as it has weigh against the engine's own belief, that a new-token ratio of the
outstanding output will come:

    remaining = w (Q(produced) - produced) + (1 - w) ratio (limit - produced)

clipped to what the limit leaves; w = 1 - (8/(n + 8))^2, n the answers that reached that
length. Q is the quantile or the mean of the total length among answers longer than what was
produced.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np

from twp_sglang.scheduling.active_rows import Tokens
from twp_sglang.scheduling.length_bins import (
    PROMPT_CLASSES,
    bin_of,
    bins_after,
    prompt_class,
    prompt_classes,
)
from twp_sglang.scheduling.length_calibration import LengthCalibration
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.survival import SurvivalCurves

TRUSTED_AFTER = 64.0
"""Answers before which a curve is passed over for a more general one."""

MAX_CLIENTS = 64
"""Clients with curves of their own; the one whose last answer is oldest makes way. 0.5 MB."""

_ALL_CLIENTS = 0
_OF_ALL = PROMPT_CLASSES * (MAX_CLIENTS + 1)
"""Curve over all clients and prompts, behind those of the clients."""


class FinishedAnswer(NamedTuple):
    """A request that ended."""

    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int
    """Its own limit; an answer that reached it was cut."""
    client: str = ""
    request: RequestInfo | None = None
    """What was known of it in its last stay."""
    aborted: bool = False
    """Somebody else ended it: its length says how long it was at least."""


class OutputLengths:
    """See the module's text.

    Args:
        quantile: probability with which :meth:`likely_most` is not to be exceeded.
    """

    def __init__(self, quantile: float) -> None:
        self.finished = 0
        self.calibration = LengthCalibration(quantile)
        self._curves = SurvivalCurves(_OF_ALL + 1, quantile)
        # By age of the last answer, oldest first.
        self._clients: dict[str, int] = {}
        self._free = list(range(MAX_CLIENTS, 0, -1))
        self._used = np.full(_OF_ALL + 1, _OF_ALL, dtype=np.intp)
        """Curve that stands in for each one."""

    def ask_for(self, quantile: float) -> None:
        """Another quantile from now on; the answers stay, the calibration starts anew."""
        if quantile != self._curves.level:
            self._curves.ask_for(quantile)
            self.calibration = LengthCalibration(quantile)

    def class_of(self, prompt_tokens: int, client: str) -> int:
        """Number of the curve of a request; fixed for its life, so that rows can keep it."""
        slot = self._clients.get(client, _ALL_CLIENTS) if client else _ALL_CLIENTS
        return slot * PROMPT_CLASSES + prompt_class(prompt_tokens)

    def learn(self, answer: FinishedAnswer) -> None:
        """One answer ended: judge the prediction, then learn from it."""
        cut = answer.aborted or answer.output_tokens >= answer.max_new_tokens
        self.finished += 1
        if not cut:
            self._judge(answer)
        shape = prompt_class(answer.prompt_tokens)
        curves = [_OF_ALL, shape]
        if answer.client:
            curves.append(self._slot(answer.client) * PROMPT_CLASSES + shape)
        for curve in curves:
            self._curves.learn(curve, answer.output_tokens, cut=cut)
        self._stand_in(shape)

    def likely_most(
        self, classes: Tokens, limits: Tokens, produced: Tokens, new_token_ratio: float
    ) -> Tokens:
        """Output tokens still to come of each, at the fixed quantile.

        Args:
            classes: from :meth:`class_of`.
            limits: each request's own limit.
            produced: tokens produced so far.
            new_token_ratio: share of the outstanding output that the engine reserves.
        """
        tables = self._curves.draw()
        curves, bins = self._used[classes], bins_after(produced)
        total = tables.quantile[curves, bins]
        return _blend(total, tables.trust[curves, bins], limits, produced, new_token_ratio)

    def likely_most_of(
        self, length_class: int, limit: int, produced: int, new_token_ratio: float
    ) -> int:
        """:meth:`likely_most` of one request, by the same arithmetic."""
        left = max(limit - produced, 0)
        tables = self._curves.draw()
        place = self._used[length_class], bin_of(produced + 1)
        learned = min(float(tables.quantile[place]) - produced, float(left))
        prior = left * new_token_ratio
        remaining = prior + float(tables.trust[place]) * (learned - prior)
        return min(max(ceil(remaining), 1), left)

    def expected(
        self, prompt_tokens: Tokens, limits: Tokens, produced: Tokens, new_token_ratio: float
    ) -> Tokens:
        """Mean output tokens still to come of each, over all clients."""
        tables = self._curves.draw()
        curves, bins = self._used[prompt_classes(prompt_tokens)], bins_after(produced)
        total = tables.mean[curves, bins] + tables.tail[curves, bins] * limits
        return _blend(total, tables.trust[curves, bins], limits, produced, new_token_ratio)

    def snapshot(self) -> dict[str, Any]:
        """State for /server_info; JSON types only."""
        return {"clients": len(self._clients), **self.calibration.snapshot()}

    # ------------------------------------------------------------------- inner part

    def _judge(self, answer: FinishedAnswer) -> None:
        curve = int(self._used[self.class_of(answer.prompt_tokens, answer.client)])
        if self._curves.answers[curve] < TRUSTED_AFTER:
            return  # the prior still speaks; it is the engine's, not ours to judge
        tables = self._curves.draw()
        place = bin_of(answer.output_tokens)
        before = 1.0 if place == 0 else float(tables.survival[curve, place - 1])
        # In the middle of its bin, or every short answer would look early.
        probability = 1.0 - 0.5 * (before + float(tables.survival[curve, place]))
        limit = answer.max_new_tokens
        quantile = min(float(tables.quantile[curve, 0]), float(limit))
        mean = float(tables.mean[curve, 0]) + float(tables.tail[curve, 0]) * limit
        self.calibration.judge(probability, quantile, min(mean, limit), answer.output_tokens)

    def _slot(self, client: str) -> int:
        """The client's place, the oldest one's if all are taken; it is the newest then."""
        slot = self._clients.pop(client, None)
        if slot is None:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self._clients.pop(next(iter(self._clients)))
                for shape in range(PROMPT_CLASSES):
                    self._curves.forget(slot * PROMPT_CLASSES + shape)
                    self._used[slot * PROMPT_CLASSES + shape] = self._used[shape]
        self._clients[client] = slot
        return slot

    def _stand_in(self, shape: int) -> None:
        """Decide anew who stands in for the curves of one class of prompts."""
        answers = self._curves.answers
        general = shape if answers[shape] >= TRUSTED_AFTER else _OF_ALL
        for curve in range(shape, _OF_ALL, PROMPT_CLASSES):
            own = curve != shape and answers[curve] >= TRUSTED_AFTER
            self._used[curve] = curve if own else general


def _blend(
    total: np.ndarray[Any, np.dtype[np.float64]],
    trust: np.ndarray[Any, np.dtype[np.float64]],
    limits: Tokens,
    produced: Tokens,
    new_token_ratio: float,
) -> Tokens:
    left = np.maximum(limits - produced, 0)
    learned = np.minimum(total - produced, left)
    prior = left * new_token_ratio
    remaining = prior + trust * (learned - prior)
    # Whoever still runs makes at least one more token, where its limit allows.
    rounded = np.ceil(remaining).astype(np.int64)
    bounded: Tokens = np.minimum(np.maximum(rounded, 1), left)
    return bounded
