"""A short queue is ranked by plain arithmetic, in the order of the vector operations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.scheduling import ranking as module
from twp_sglang.scheduling.ranking import Ranking
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.waiting import WaitingQueue

requests = st.lists(
    st.tuples(
        st.integers(0, 400), st.integers(1, 5000), st.integers(0, 4096), st.sampled_from([0, 0, 5])
    ),
    min_size=1,
    max_size=12,
)


@given(requests, st.floats(0, 3000), st.integers(1, 12), st.data())
def test_short_and_long_queues_are_ranked_alike(
    rows: list[tuple[int, int, int, int]], mean: float, k: int, data: st.DataObject
) -> None:
    queue = WaitingQueue()
    infos = [
        RequestInfo(str(i), i, arrival, prompt, expected, priority=priority)
        for i, (arrival, prompt, expected, priority) in enumerate(rows)
    ]
    for info in infos:
        queue.add(info)
    for gone in data.draw(st.sets(st.sampled_from(infos), max_size=len(infos) - 1)):
        queue.discard(gone)
    ranking = Ranking(0.6, 0.3, 0.1, 200)
    short = ranking.top(queue, 450, mean, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 0)
        long = ranking.top(queue, 450, mean, k)
    assert [info.seq for info in short] == [info.seq for info in long]
