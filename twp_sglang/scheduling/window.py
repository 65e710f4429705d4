"""The token window H: a law of ``controllers`` fed with the monitor's samples."""

from __future__ import annotations

from typing import Any

from controllers.laws.base import Law, LawSample
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.laws import build_law, clamps_of

START_LENGTH_TOKENS = 50.0
"""Mean expected output length before the first request; times the paper's B0 = 8 this is
its H0 = 400."""

LENGTH_WEIGHT = 1.0 / 64.0
"""Weight of the newest request in the mean expected length: a memory of some 64 requests
follows a change of workload within seconds and ignores a single odd request."""

REBUILD_RATIO = 1.05
"""H0 follows the mean length in steps of 5 %: below that a new law object is not worth it."""


class Window:
    """H, its law and, where H0 is not given, H0 = B0 times the mean expected length."""

    def __init__(self, config: TwpConfig) -> None:
        self._config = config
        self._auto = config.h0_tokens is None
        self._mean_length = START_LENGTH_TOKENS
        self.h0_tokens = config.h0_tokens or config.b0 * self._mean_length
        self.law: Law = build_law(config, self.h0_tokens)
        self._state: Any = self.law.initial()
        self.tokens: float = self.law.window(self._state)

    def arrived(self, expected_tokens: int) -> None:
        """Account a request's expected output length; follows H0 where it is not given."""
        if not self._auto:
            return
        self._mean_length += LENGTH_WEIGHT * (expected_tokens - self._mean_length)
        wanted = self._config.b0 * max(1.0, self._mean_length)
        if not self.h0_tokens / REBUILD_RATIO <= wanted <= self.h0_tokens * REBUILD_RATIO:
            self.h0_tokens = wanted
            # The window itself is state: the law pulls it to its new place. The clamps
            # move at once, or a burst of short requests after long ones would find a
            # window that was meant for the long ones until the next step is measured.
            self.law = build_law(self._config, wanted)
            low, high = clamps_of(self.law)
            self.tokens = min(max(self.tokens, low), high)

    def reconfigure(self, config: TwpConfig) -> None:
        """Take another configuration; the window and what the law remembers stay.

        Raises:
            ValueError: the law refuses a parameter; nothing has changed.
        """
        auto = config.h0_tokens is None
        h0_tokens = config.h0_tokens or config.b0 * max(1.0, self._mean_length)
        law = build_law(config, h0_tokens)
        low, high = clamps_of(law)
        tokens = min(max(self.tokens, low), high)
        # Another law remembers other things, but every one of them the window.
        state = self._state if config.law == self._config.law else law.initial()
        self._config, self._auto, self.h0_tokens = config, auto, h0_tokens
        self.law, self.tokens, self._state = law, tokens, state._replace(window_tokens=tokens)

    def step(self, sample: LawSample) -> float:
        """Advance by one decode step; the window in tokens."""
        self.tokens, self._state = self.law.step(sample, self._state)
        return self.tokens
