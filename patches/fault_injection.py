"""Faults on demand, for the tests of what must survive them. Inert unless asked for.

``TWP_FAULT_INJECTION`` holds comma-separated entries:

    fail-at-pass=200      raise inside TWP in scheduling pass 200
    skew=1:0.02           the clock of tensor-parallel rank 1 runs 2 % fast
    missing-hook=TARGET   pretend that SGLang did not apply the hook on TARGET
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

VARIABLE = "TWP_FAULT_INJECTION"


class Faults(NamedTuple):
    """Faults asked for in this process."""

    fail_at_pass: int | None = None
    skew_rank: int | None = None
    skew: float = 0.0
    missing_hook: str | None = None

    def clock(self, clock: Callable[[], float], tp_rank: int) -> Callable[[], float]:
        """``clock``, skewed on the rank that was named."""
        if self.skew_rank != tp_rank:
            return clock
        factor = 1.0 + self.skew
        return lambda: clock() * factor


def requested() -> Faults:
    """Faults named by the environment.

    Raises:
        ValueError: an entry is not of the form above.
    """
    faults = Faults()
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        key, _, value = entry.partition("=")
        try:
            if key == "fail-at-pass":
                faults = faults._replace(fail_at_pass=int(value))
            elif key == "skew":
                rank, _, amount = value.partition(":")
                faults = faults._replace(skew_rank=int(rank), skew=float(amount))
            elif key == "missing-hook":
                faults = faults._replace(missing_hook=value)
            else:
                raise ValueError("unknown entry")
        except ValueError as error:
            raise ValueError(f"{VARIABLE}: {entry!r}: {error}") from None
    return faults
