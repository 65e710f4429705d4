"""The KV-cache threshold delta_kv: tightens while memory depletes, relaxes when stable.

The paper asks for that and gives no law. This one reserves what the next N steps would
take at the present rate:

    rho     <- rho + RATE_WEIGHT (d - rho),     d: share of the pool taken since last step
    delta*  =  clamp(delta_min + N max(0, rho), delta_min, delta_max)
    delta   <- delta*                            where delta* > delta   (tighten at once)
    delta   <- delta + relax (delta* - delta)    otherwise              (relax slowly)

N steps of depletion is the unit that matters: a request let in now holds its prompt for
all of them, and the engine retracts when the pages run out.
"""

from __future__ import annotations

RATE_WEIGHT = 0.125
"""Memory of about 8 steps: one prompt's pages are no trend, a burst's are."""


class KvHeadroom:
    """delta_kv as a share of the pool."""

    def __init__(self, low: float, high: float, horizon_steps: int, relax: float) -> None:
        self._low = low
        self._high = high
        self._horizon = horizon_steps
        self._relax = relax
        self._rate = 0.0
        self._used: float | None = None
        self.threshold = low

    def reconfigure(self, low: float, high: float, horizon_steps: int, relax: float) -> None:
        """Take other settings; the rate of depletion stays, the threshold moves into its new
        bounds at once."""
        self._low, self._high = low, high
        self._horizon, self._relax = horizon_steps, relax
        self.threshold = min(max(self.threshold, low), high)

    def observe(self, kv_free_tokens: int, kv_capacity_tokens: int) -> float:
        """Take the pool's state at one scheduling pass; the threshold in force."""
        if kv_capacity_tokens <= 0:
            return self.threshold
        used = 1.0 - kv_free_tokens / kv_capacity_tokens
        if self._used is not None:
            self._rate += RATE_WEIGHT * (used - self._used - self._rate)
        self._used = used
        wanted = min(self._high, self._low + self._horizon * max(0.0, self._rate))
        if wanted > self.threshold:
            self.threshold = wanted
        else:
            self.threshold += self._relax * (wanted - self.threshold)
        return self.threshold
