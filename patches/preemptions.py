"""Running requests that made way for a higher priority, and those that may not have to."""

from __future__ import annotations

from typing import Any

from patches.arrivals import info_of
from twp_sglang.scheduling.preemption import protected


class Preemptions:
    """Of one scheduler process; the rule is the core's."""

    def __init__(self) -> None:
        self.count = 0
        self._out: list[Any] = []

    def protected(self, reqs: list[Any]) -> list[Any]:
        """Those of the running ``reqs`` that keep their place whoever comes."""
        return [
            req
            for req in reqs
            if (info := info_of(req)) is not None and protected(info, len(req.output_ids))
        ]

    def made_way(self, req: Any) -> None:
        """SGLang took the memory of ``req`` and will queue it again."""
        self.count += 1
        self._out.append(req)
        info = info_of(req)
        if info is not None:
            info.preemptions += 1

    def queued(self, req: Any) -> None:
        """SGLang puts ``req`` into its queue."""
        if self._out:
            self._out = [one for one in self._out if one is not req]

    def pass_ended(self, scheduler: Any) -> None:
        """Queue those again whom SGLang forgot: 0.5.20 and 0.5.21 lose them where the request
        that they made way for is not taken after all."""
        out, self._out = self._out, []
        for req in out:
            scheduler._add_request_to_queue(req)
