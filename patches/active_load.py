"""SGLang's active requests, one by one and summed up, read once or twice per pass.

What a request declared does not change while it runs, and most passes find the same
requests as the one before; so only what each has produced is read anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from patches.arrivals import info_of
from patches.sglang_0_5 import engine_view
from twp_sglang.scheduling.active_rows import ActiveRows, RowsReader
from twp_sglang.scheduling.lengths import Counts, LengthSource
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.request import RequestInfo

_output_ids = attrgetter("output_ids")


class ActiveLoadReader:
    """Reads a list of SGLang requests."""

    def __init__(self, lengths: LengthSource) -> None:
        self._lengths = lengths
        self._reqs: list[Any] = []
        self._prompts = _counts(0, ())
        self._limits = _counts(0, ())
        self._produced = _counts(0, ())
        self._infos: list[RequestInfo | None] | None = []

    def read(self, reqs: list[Any]) -> ActiveLoad:
        """K in tokens and B of ``reqs``."""
        # Compares identities at the speed of C; the copy keeps the members alive, so that
        # an identity cannot be that of another request.
        if reqs != self._reqs:
            self._reqs = reqs.copy()
            self._prompts = _counts(len(reqs), (len(req.origin_input_ids) for req in reqs))
            self._limits = _counts(len(reqs), (req.sampling_params.max_new_tokens for req in reqs))
            self._infos = None
        self._produced = _counts(len(reqs), map(len, map(_output_ids, reqs)))
        total = self._lengths.total(self._prompts, self._limits, self._produced)
        return ActiveLoad(total, len(reqs))

    def rows(self, scheduler: Any) -> RowsReader:
        """Reader of the rows that were read last, for the pass under way."""
        ratio = engine_view.new_token_ratio(scheduler)
        reqs, prompts, limits, produced = self._reqs, self._prompts, self._limits, self._produced

        def read() -> ActiveRows:
            if self._infos is None or reqs is not self._reqs:
                self._infos = [info_of(req) for req in reqs]
            return ActiveRows(self._infos, prompts, limits, produced, ratio)

        return read


def _counts(size: int, values: Iterable[int]) -> Counts:
    return np.fromiter(values, dtype=np.int64, count=size)
