"""The active requests of a simulated engine one by one, as a policy sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from twp_sglang.scheduling.active_rows import ActiveRows, RowsReader, Tokens

if TYPE_CHECKING:
    from twp_sglang.simulator.batching import Batcher


def rows_reader(batcher: Batcher, launches: int = 0) -> RowsReader:
    """Reader of the active requests as they are now, for the pass under way.

    Args:
        batcher: the engine's scheduling state.
        launches: results that have come of which ``batcher.rows`` do not know yet.
    """

    def read() -> ActiveRows:
        rows, chunked = batcher.rows, batcher.chunked
        requests = list(rows.running)
        produced = [rows.produced(request) + launches for request in requests]
        if chunked is not None:
            requests.append(chunked)
            produced.append(chunked.produced)
        return ActiveRows(
            [request.info for request in requests],
            _tokens(request.spec.input_tokens for request in requests),
            _tokens(request.max_new_tokens for request in requests),
            _tokens(produced),
            batcher.ratio.after(launches),
        )

    return read


def _tokens(values: Iterable[int]) -> Tokens:
    return np.fromiter(values, dtype=np.int64)
