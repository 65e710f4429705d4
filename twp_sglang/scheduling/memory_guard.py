"""The memory side of admission: learned lengths, the forecast peak, retracted requests.

A request that lost its memory once goes back in without being asked, or a streaming user
would stall. One that lost it twice is counted with the whole output that it may still
produce, not with the likely one: it comes back when nothing that it does can fill the pool
over the others' forecast, so a request cannot go round in a loop of retractions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.kv_forecast import KvForecast
from twp_sglang.scheduling.lengths_online import FinishedAnswer, OutputLengths
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.retraction_gaps import RetractionGaps
from twp_sglang.scheduling.sample import PassView

CAUTIOUS_FROM = 2
"""Retractions from which a request is counted with its whole limit."""


class MemoryGuard:
    """Knows how long answers become and says who fits."""

    def __init__(self, config: TwpConfig) -> None:
        self.margin = config.kv_margin
        self.lengths = OutputLengths(config.kv_quantile)
        self.gaps = RetractionGaps()

    def reconfigure(self, config: TwpConfig) -> None:
        """Another margin or quantile; what was learned stays."""
        self.margin = config.kv_margin
        self.lengths.ask_for(config.kv_quantile)

    def enqueued(self, request: RequestInfo) -> None:
        """A request joined the queue."""
        prompt = request.prompt_tokens - request.produced_tokens
        request.length_class = self.lengths.class_of(prompt, request.client)
        if request.retracted:
            self.gaps.lost(request)

    def finished(self, answer: FinishedAnswer) -> None:
        """Teaches the output lengths."""
        self.lengths.learn(answer)

    def begin(self, view: PassView) -> MemoryPass:
        """For one decision."""
        return MemoryPass(self, view)

    def snapshot(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "answers_seen": self.lengths.finished,
            "lengths": self.lengths.snapshot(),
            **self.gaps.snapshot(),
        }


class MemoryPass:
    """One decision: who has been granted so far, and whether one more fits. The rows are
    read when the first one is asked for."""

    def __init__(self, guard: MemoryGuard, view: PassView) -> None:
        self._guard = guard
        self._view = view
        self._forecast: KvForecast | None = None
        self._granted: list[RequestInfo] = []
        self._ratio = 1.0
        # Of the request that was asked about last: who fits is mostly joined next.
        self._asked: tuple[RequestInfo | None, int] = (None, 0)

    def fits(self, request: RequestInfo) -> bool:
        """Whether the predicted peak leaves the margin with ``request`` in."""
        forecast = self._ready()
        remaining = self._remaining(request)
        self._asked = (request, remaining)
        return forecast.fits(request.prompt_tokens, remaining)

    def join(self, request: RequestInfo) -> None:
        """``request`` was granted."""
        if self._forecast is None:
            self._granted.append(request)
        else:
            asked, remaining = self._asked
            if asked is not request:
                remaining = self._remaining(request)
            self._forecast.join(request.prompt_tokens, remaining)

    def _ready(self) -> KvForecast:
        forecast = self._forecast
        if forecast is None:
            view = self._view
            rows = view.rows()
            self._ratio = rows.new_token_ratio
            classes = np.fromiter(
                (0 if info is None else info.length_class for info in rows.requests),
                dtype=np.int64,
                count=len(rows.requests),
            )
            forecast = self._forecast = KvForecast(
                rows.held_tokens,
                self._guard.lengths.likely_most(
                    classes, rows.max_new_tokens, rows.produced_tokens, self._ratio
                ),
                view.kv_capacity_tokens - view.kv_free_tokens,
                view.kv_capacity_tokens,
                self._guard.margin,
            )
            for request in self._granted:
                forecast.join(request.prompt_tokens, self._remaining(request))
        return forecast

    def _remaining(self, request: RequestInfo) -> int:
        limit, produced = request.max_new_tokens, request.produced_tokens
        if request.retractions >= CAUTIOUS_FROM:
            return max(0, limit - produced)
        return self._guard.lengths.likely_most_of(
            request.length_class, limit, produced, self._ratio
        )
