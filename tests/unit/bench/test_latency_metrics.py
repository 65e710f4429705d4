"""Metrics against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang import latency_metrics as m
from twp_sglang.latency_metrics import Slo, TokenTimes


def times(submitted: float, *tokens: float, completed: bool = True) -> TokenTimes:
    return TokenTimes(submitted, np.array(tokens, dtype=np.float64), completed)


ONE = times(100.0, 150.0, 160.0, 160.0, 190.0)  # TTFT 50, gaps 10 0 30, E2E 90
TWO = times(0.0, 20.0, 40.0)  # TTFT 20, gap 20, E2E 40
SINGLE = times(0.0, 70.0)
FAILED = times(0.0, 5.0, 1000.0, completed=False)


def test_of_one_request() -> None:
    assert m.ttft_ms(ONE) == 50.0
    assert m.e2e_ms(ONE) == 90.0
    assert m.itl_ms(ONE).tolist() == [10.0, 0.0, 30.0]
    assert m.tpot_ms(ONE) == pytest.approx(40.0 / 3)
    assert m.decode_gap_ms(ONE) == 30.0


def test_of_a_single_token_and_of_none() -> None:
    assert m.ttft_ms(SINGLE) == m.e2e_ms(SINGLE) == 70.0
    assert m.tpot_ms(SINGLE) is None
    assert m.decode_gap_ms(SINGLE) is None
    nothing = times(0.0)
    assert m.ttft_ms(nothing) is None
    assert m.e2e_ms(nothing) is None


def test_tpot_uses_the_total_where_only_that_is_known() -> None:
    coarse = TokenTimes(0.0, np.array([10.0, 70.0]), output_tokens=7)
    assert m.tpot_ms(coarse) == 10.0


def test_summary() -> None:
    summary = m.summarise([ONE, TWO, SINGLE, FAILED], 2.0, [Slo(metric="ttft", limit_ms=50.0)])
    assert (summary.requests, summary.completed, summary.output_tokens) == (4, 3, 7)
    assert summary.output_tokens_per_s == 3.5
    assert summary.requests_per_s == 1.5
    assert summary.ttft_ms.p50 == 50.0
    assert summary.ttft_ms.max == 70.0
    assert summary.ttft_ms.mean == pytest.approx(140.0 / 3)
    # Every gap counts once: 10, 0, 30, 20.
    assert summary.itl_ms.count == 4
    assert summary.itl_ms.p50 == 15.0
    assert summary.itl_ms.p99 == pytest.approx(20.0 + 0.97 * 10.0)
    assert summary.itl_cv == pytest.approx(np.sqrt(125.0) / 15.0)
    assert summary.decode_gap_ms.p50 == 25.0
    assert summary.tpot_ms.max == 20.0
    # ONE and TWO meet 50 ms; SINGLE has 70; the failed one misses whatever its TTFT.
    assert summary.goodput_rps == 1.0
    assert summary.goodput_fraction == 0.5


def test_summary_of_nothing() -> None:
    summary = m.summarise([], 0.0, [Slo(metric="ttft", limit_ms=1.0)])
    assert summary.ttft_ms.p50 is None
    assert summary.output_tokens_per_s is None
    assert summary.goodput_fraction is None
    assert summary.itl_cv is None


@pytest.mark.parametrize(
    ("metric", "limit", "met"),
    [
        ("itl_max", 30.0, True),
        ("itl_max", 29.9, False),
        ("itl_p50", 10.0, True),
        ("itl_p50", 9.9, False),
        ("itl_p99", 29.6, True),  # 10 + 0.98 * 20
        ("itl_p99", 29.5, False),
        ("tpot", 13.4, True),
        ("tpot", 13.3, False),
        ("e2e", 90.0, True),
        ("e2e", 89.0, False),
    ],
)
def test_slo(metric: m.SloMetric, limit: float, met: bool) -> None:
    assert m.meets(ONE, Slo(metric=metric, limit_ms=limit)) is met


def test_goodput_asks_for_every_slo() -> None:
    slos = [Slo(metric="ttft", limit_ms=60.0), Slo(metric="itl_max", limit_ms=25.0)]
    assert m.summarise([ONE, TWO], 1.0, slos).goodput_rps == 1.0  # ONE breaks the second


def test_a_single_token_cannot_miss_an_itl_slo() -> None:
    assert m.meets(SINGLE, Slo(metric="itl_p99", limit_ms=0.001))
    assert not m.meets(times(0.0), Slo(metric="itl_p99", limit_ms=1e9))


@given(
    st.lists(
        st.lists(st.floats(0.0, 1e5), min_size=1, max_size=20).map(sorted), min_size=1, max_size=10
    )
)
def test_statistics_are_ordered_and_consistent(tokens: list[list[float]]) -> None:
    requests = [times(0.0, *row) for row in tokens]
    summary = m.summarise(requests, 1.0)
    assert summary.itl_ms.count == sum(len(row) - 1 for row in tokens)
    for group in (summary.ttft_ms, summary.itl_ms, summary.e2e_ms):
        if group.count:
            assert group.p50 <= group.p95 <= group.p99 <= group.max  # type: ignore[operator]
    assert summary.itl_ms.max == summary.decode_gap_ms.max


def test_bootstrap_interval_covers_a_known_ratio_and_repeats() -> None:
    rng = np.random.default_rng(1)
    base = [rng.normal(100.0, 5.0, size=50) for _ in range(60)]
    ours = [2.0 * rng.normal(100.0, 5.0, size=50) for _ in range(60)]
    (interval,) = m.bootstrap_ratios(ours, base, [50.0])
    assert interval is not None
    low, high = interval
    assert 1.95 < low < 2.0 < high < 2.05
    assert m.bootstrap_ratios(ours, base, [50.0]) == [interval]


def test_bootstrap_resamples_requests_not_gaps() -> None:
    # Gaps agree within a request and differ between them: 400 gaps hold only 8 facts.
    rng = np.random.default_rng(2)
    levels = rng.uniform(50.0, 150.0, size=8)
    clustered = [np.full(50, level) for level in levels]
    single = [np.array([value]) for value in np.repeat(levels, 50)]
    base = [np.array([100.0])] * 8
    (wide,), (narrow,) = (m.bootstrap_ratios(x, base, [50.0]) for x in (clustered, single))
    assert wide is not None
    assert narrow is not None
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_bootstrap_refuses_what_it_cannot_judge() -> None:
    one = [np.array([1.0])]
    assert m.bootstrap_ratios(one, one * 5, [50.0, 99.0]) == [None, None]
    assert m.bootstrap_ratios(one * 5, [np.array([0.0])] * 5, [50.0]) == [None]
