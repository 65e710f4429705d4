"""The rules of the verdicts and the arithmetic of the contradictions, on numbers made up here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.claims import figure_contradictions as figures
from analysis.claims import table_contradictions as table
from analysis.claims.contradiction import Contradiction
from analysis.claims.contradictions import CHECKS, contradictions
from analysis.claims.published import LOADS, SCHEDULERS, Percentiles, Published, TableRow
from analysis.claims.verdict import (
    Estimate,
    Row,
    difference,
    estimate,
    judge_above,
    judge_below,
    judge_gain,
    judge_level,
    ratio,
    touches,
    with_contradictions,
)

PAPER = Published()


def consistent() -> Published:
    """Numbers of a paper that one machine could have shown."""
    row = TableRow(
        throughput_rps=2.0, p99_latency_ms=9000.0, ttft_ms=250.0, itl_ms=43.5, itl_cv=0.02
    )
    worse = row.model_copy(update={"ttft_ms": 260.0, "itl_ms": 44.0, "itl_cv": 0.03})
    tail = Percentiles(p50=500.0, p95=600.0, p99=700.0)
    return PAPER.model_copy(
        update={
            "arrival_rps": 4.0,
            "b0": 16,
            "h0_tokens": 800.0,
            "fig2_axis_ms": (40.0, 80.0),
            "fig4_spike_ms": {"RoundRobin": 800.0, "ServerlessLLM": 750.0},
            "fig5_ttft_ms": {
                **dict.fromkeys(SCHEDULERS, tail),
                "TWP": Percentiles(p50=480.0, p95=590.0, p99=690.0),
            },
            "fig6_throughput_rps": dict.fromkeys(SCHEDULERS, 2.0),
            "text_itl_cv": {"TWP": PAPER.fig8_itl_cv["TWP"]},
            "table": {
                load: {
                    name: row
                    if name == "TWP"
                    else worse.model_copy(update={"throughput_rps": 1.9 + 0.01 * index})
                    for index, name in enumerate(SCHEDULERS)
                }
                for load in LOADS
            },
        }
    )


def test_every_check_finds_something_in_the_paper_and_nothing_in_a_consistent_one() -> None:
    assert len(contradictions(PAPER)) == len(CHECKS)
    assert contradictions(consistent()) == []


def test_the_arithmetic_that_can_be_done_by_hand() -> None:
    # 18 * 60.
    assert "1,080 requests" in _text(figures.arrivals(PAPER))
    # 6.4 GB / 15.75 GB/s = 406 ms.
    assert "406 ms" in _text(figures.cold_starts(PAPER))
    # Half of the prompts are above 64 tokens: two steps of 43.5 ms; a tenth needs 6 to 8.
    text = _text(figures.chunked_prefill(PAPER))
    assert "P50 at least 87 ms" in text
    assert "P99 at least 348 ms" in text
    # .5 * 1 + .3 * 4 + .2 * 13 = 4.3 steps of 43.09 ms and more.
    assert "185 ms on average" in text
    # 1000 / (50 * 43.8), and 250 / 0.197 s.
    text = _text(figures.serial_service(PAPER))
    assert "0.46 req/s" in text
    assert "21 minutes" in text
    # 18 * 50 * 0.0438 = 39.4.
    assert "39 requests decode at once" in _text(figures.flat_itl(PAPER))
    # 2709.57 * 310 * 6.4e9; 2709.57 * 65 * 0.0441.
    text = _text(table.impossible_throughput(PAPER))
    assert "5,376 TFLOP/s" in text
    assert "7,767 requests" in text
    # 199 * 43.11.
    assert "8,579 ms" in _text(table.end_to_end(PAPER))
    assert "TWP 0.197 in Fig. 6, 2,568" in _text(table.throughput_figures(PAPER))


def _text(found: Contradiction | None) -> str:
    assert found is not None
    return found.text


def test_estimates_are_means_with_an_interval_over_runs() -> None:
    assert estimate([2.0]) == Estimate(2.0, 2.0, 2.0)
    assert estimate([2.0, 2.0, 2.0]) == Estimate(2.0, 2.0, 2.0)
    one = estimate([1.0, 2.0, 3.0, 4.0])
    assert one.mean == 2.5
    assert 1.0 <= one.low < 2.5 < one.high <= 4.0
    for bad in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="nothing to estimate"):
            estimate(bad)


def test_ratios_and_differences_pair_the_runs() -> None:
    # Runs differ tenfold, the ratio never: its interval has no width.
    assert ratio([2.0, 20.0], [1.0, 10.0]) == pytest.approx((2.0, 2.0, 2.0))
    assert difference([3.0, 30.0], [1.0, 28.0]) == Estimate(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="do not pair"):
        ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="above 0"):
        ratio([0.0], [1.0])


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        (Estimate(100.0, 90.0, 130.0), 130.0, "reproduced"),  # in the interval
        (Estimate(100.0, 99.0, 101.0), 109.0, "reproduced"),  # within 10 %
        (Estimate(100.0, 99.0, 101.0), 111.0, "not reproduced"),
        (Estimate(100.0, 99.0, 101.0), 89.0, "not reproduced"),
        (Estimate(0.0, 0.0, 0.0), 0.01, "not reproduced"),
    ],
)
def test_levels(ours: Estimate, paper: float, verdict: str) -> None:
    assert judge_level(ours, paper) == verdict


@pytest.mark.parametrize(
    ("ours", "below", "above"),
    [
        (Estimate(0.8, 0.7, 0.9), "reproduced", "not reproduced"),
        (Estimate(0.95, 0.8, 1.1), "not reproduced", "not reproduced"),  # not for sure
        (Estimate(1.0, 1.0, 1.0), "not reproduced", "not reproduced"),
        (Estimate(1.2, 1.1, 1.3), "not reproduced", "reproduced"),
    ],
)
def test_directions_need_the_whole_interval(ours: Estimate, below: str, above: str) -> None:
    assert judge_below(ours) == below
    assert judge_above(ours) == above


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        (Estimate(1.4, 1.3, 1.5), 1.45, "reproduced"),
        (Estimate(2.0, 1.9, 2.1), 1.45, "reproduced"),  # more than claimed
        (Estimate(1.2, 1.1, 1.3), 1.45, "not reproduced"),  # right direction, too little
        (Estimate(1.2, 0.9, 1.6), 1.45, "not reproduced"),  # direction not for sure
        (Estimate(0.9, 0.8, 0.95), 0.85, "reproduced"),
        (Estimate(0.5, 0.4, 0.6), 0.85, "reproduced"),
        (Estimate(0.95, 0.9, 0.99), 0.85, "not reproduced"),
    ],
)
def test_gains_need_direction_and_size(ours: Estimate, paper: float, verdict: str) -> None:
    assert judge_gain(ours, paper) == verdict


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0, 1), st.floats(0.2, 5))
def test_what_reaches_a_gain_holds_its_direction(
    mean: float, down: float, up: float, paper: float
) -> None:
    ours = Estimate(mean, mean * (1 - down), mean * (1 + up))
    if paper != 1.0 and judge_gain(ours, paper) == "reproduced":
        direction = judge_above if paper > 1 else judge_below
        assert direction(ours) == "reproduced"


def test_a_contradiction_overrules_where_it_touches_and_nowhere_else() -> None:
    found = [Contradiction("odd", "text", ("Fig. 5 TWP",))]
    row = Row("Fig. 5 TWP", "TTFT", "50", Estimate(50, 50, 50), "ms", "reproduced", "")
    overruled = with_contradictions(row, found)
    assert overruled.verdict == "contradicts itself"
    assert overruled.why == "odd; by ours alone reproduced"
    other = row._replace(place="Fig. 5 FCFS")
    assert with_contradictions(other, found) == other
    assert touches("Fig. 6", "Fig. 6 TWP")
    assert not touches("Fig. 6", "Fig. 66 TWP")
    assert not touches("Fig. 6 TWP", "Fig. 6")


def test_every_touched_place_is_one_that_is_judged() -> None:
    """A contradiction whose place is misspelt would overrule nothing and nobody would see."""
    from analysis.claims.printed import TABLE_COLUMNS
    from analysis.claims.statements import statements

    places = {s.place for s in statements(PAPER)} | {"Fig. 2"}
    places |= {f"Fig. {n} {name}" for n in range(4, 9) for name in SCHEDULERS}
    places |= {
        f"Table {column} {load} {name}"
        for column in TABLE_COLUMNS
        for load in LOADS
        for name in SCHEDULERS
    }
    for found in contradictions(PAPER):
        for touched in found.touches:
            assert any(touches(touched, place) for place in places), (found.name, touched)


def test_published_gains_are_those_of_the_paper_itself() -> None:
    one = PAPER.fig6_throughput_rps
    assert one["TWP"] / one["ServerlessLLM"] - 1 == pytest.approx(0.45, abs=0.01)
    assert one["TWP"] / one["FCFS"] - 1 == pytest.approx(0.58, abs=0.01)
    assert PAPER.mean_output_tokens == pytest.approx(65.0)
    assert PAPER.mean_output_by_h0_tokens == 50.0
