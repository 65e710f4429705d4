"""How long retracted requests stood still: from losing their memory to their next token.

Percentiles of all gaps hide these, for they are few; to the user who has one it is the whole
answer that stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RetractionGaps:
    """Follows retracted requests until they go on.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[int, tuple[Any, int, float]] = {}
        self.longest_ms = 0.0
        """Since the start; 0 while nobody was retracted."""

    def lost(self, req: Any) -> None:
        """``req`` was retracted; retracted again before its next token, the gap goes on."""
        self._open.setdefault(id(req), (req, len(req.output_ids), self._clock()))

    def gone(self, req: Any) -> None:
        """``req`` left the queue unserved."""
        self._open.pop(id(req), None)

    def completed(self, reqs: list[Any]) -> list[float]:
        """The gaps, in seconds, that ended with the step of ``reqs``."""
        if not self._open:
            return []
        ended = []
        for req in reqs:
            followed = self._open.get(id(req))
            if followed is not None and len(req.output_ids) > followed[1]:
                del self._open[id(req)]
                ended.append(self._clock() - followed[2])
        if ended:
            self.longest_ms = max(self.longest_ms, round(max(ended) * 1e3, 3))
        return ended
