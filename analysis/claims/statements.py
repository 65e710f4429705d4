"""What the paper says in words, each as a measurement and a rule.

A statement is judged in the set-up ``paper``; the other set-ups tell whether the verdict
hangs on what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from analysis.claims.contradictions import contradictions
from analysis.claims.experiment import SETUPS, SetupName, WorkloadName, plant, token_bound_per_s
from analysis.claims.published import LOADS, SCHEDULERS, Load, Published, Scheduler, TableRow
from analysis.claims.runs import Results
from analysis.claims.verdict import (
    Estimate,
    Row,
    Verdict,
    difference,
    estimate,
    judge_above,
    judge_below,
    judge_gain,
    judge_level,
    ratio,
    with_contradictions,
)

OTHERS: tuple[Scheduler, ...] = tuple(name for name in SCHEDULERS if name != "TWP")
CONVENTIONAL: tuple[Scheduler, ...] = ("FCFS", "RoundRobin", "Priority", "DynBatch")
ONE_GPU: tuple[SetupName, ...] = ("paper", "steep", "prompts", "window only")
ALL: tuple[SetupName, ...] = tuple(SETUPS)

RISES = (
    "where tokens per second rise with B (equation (2) with alpha B0 < l_min) a tighter window "
    "cannot raise them; where they fall, see steep"
)
ARRIVAL_BOUND = (
    "below capacity throughput is the arrival rate whoever schedules; waiting at the gate only "
    "makes the run longer"
)
WAITS = "what the window keeps out waits at the gate, and that wait is part of TTFT"
FULL = (
    "H0 = 400 tokens hold two requests of 200 output tokens, so requests wait at the gate even at "
    "half load"
)
BOUNDS = "the window bounds the batch"
SAME = "in one warm container RoundRobin and ServerlessLLM are FCFS"


class Statement(NamedTuple):
    """One claim in words."""

    place: str
    claim: str
    paper: str
    unit: str
    measure: Callable[[Results, SetupName], Estimate]
    judge: Callable[[Estimate], Verdict]
    if_not: str = ""
    """Cause, where the claim fails."""
    if_so: str = ""
    """Cause, where it holds."""
    setups: tuple[SetupName, ...] = ALL


class Judged(NamedTuple):
    """A row, its verdict by our numbers alone, and what the other set-ups gave."""

    row: Row
    alone: Verdict
    elsewhere: dict[SetupName, tuple[Estimate, Verdict]]


def judged(results: Results, paper: Published) -> list[Judged]:
    """All statements, measured and judged."""
    found = contradictions(paper)
    rows = []
    for s in statements(paper):
        own = s.setups[0]
        ours = s.measure(results, own)
        verdict = s.judge(ours)
        why = s.if_so if verdict == "reproduced" else s.if_not
        row = Row(s.place, s.claim, s.paper, ours, s.unit, verdict, why)
        others = {
            setup: (value, s.judge(value))
            for setup in s.setups
            if setup != own
            for value in [s.measure(results, setup)]
        }
        rows.append(Judged(with_contradictions(row, found), verdict, others))
    return rows


def statements(paper: Published) -> list[Statement]:
    """The claims, in the order of the paper."""
    return [*_general(paper), *_poisson(paper), *_workloads(paper)]


def _against(
    workload: WorkloadName, metric: str, others: tuple[Scheduler, ...], *, best: str
) -> Callable[[Results, SetupName], Estimate]:
    """TWP over the best of ``others`` in each run; ``best`` is "least" or "most"."""
    pick = min if best == "least" else max

    # A CV may be 0, and then has no ratio.
    compare = difference if metric == "itl_cv" else ratio

    def measure(results: Results, setup: SetupName) -> Estimate:
        columns = [results.values(setup, workload, name, metric) for name in others]
        rivals = [pick(run) for run in zip(*columns, strict=True)]
        return compare(results.values(setup, workload, "TWP", metric), rivals)

    return measure


def _lower_cv(ours: Estimate) -> Verdict:
    return judge_below(ours, 0.0)


def _general(paper: Published) -> list[Statement]:
    bound, l_min = token_bound_per_s(), plant("paper").l_min_ms

    def of(
        workload: WorkloadName, scheduler: Scheduler, metric: str, unit: float = 1.0
    ) -> Callable[[Results, SetupName], Estimate]:
        return lambda results, setup: estimate(
            [v / unit for v in results.values(setup, workload, scheduler, metric)]
        )

    return [
        Statement(
            "Abstract stable TTFT",
            "TWP delivers stable TTFT: P99/P50 less than that of FCFS (Poisson, 18 req/s)",
            f"{_tail(paper, 'TWP') / _tail(paper, 'FCFS'):.2f}",
            "ratio",
            lambda results, setup: ratio(
                *(
                    [
                        high / middle
                        for high, middle in zip(
                            results.values(setup, "poisson", name, "ttft_ms_p99"),
                            results.values(setup, "poisson", name, "ttft_ms_p50"),
                            strict=True,
                        )
                    ]
                    for name in ("TWP", "FCFS")
                )
            ),
            judge_below,
            WAITS,
            "stable is not low: compare the medians of Fig. 5",
        ),
        Statement(
            "II-A minimising ITL reduces TTFT",
            "lower ITL means lower TTFT: mean TTFT of TWP over FCFS, high load",
            "below 1",
            "ratio",
            _against("high", "ttft_ms_mean", ("FCFS",), best="least"),
            judge_below,
            "equation (1) counts from admission; " + WAITS,
        ),
        Statement(
            "II-A noisy neighbour",
            "chunks bound the penalty of a long prompt: longest gap of TWP over FCFS, low load",
            "below 1",
            "ratio",
            _against("low", "gap_ms_max", ("FCFS",), best="least"),
            judge_below,
            setups=("prompts",),
        ),
        Statement(
            "III-C token bound",
            "no scheduler serves more than 1/alpha tokens per second (FCFS, Poisson)",
            "at most 1",
            "of 1/alpha",
            of("poisson", "FCFS", "tokens_per_s", bound),
            judge_below,
            if_so="a property of equation (2)",
            # Where tokens per second fall with B, 1/alpha is their infimum beyond B0.
            setups=("paper", "prompts", "window only"),
        ),
        Statement(
            "III-C instability",
            "above 1/alpha the batch grows: ITL of the last fifth over the first (FCFS, high load)",
            "above 1",
            "ratio",
            of("high", "FCFS", "itl_late_over_early"),
            judge_above,
            if_so="the backlog decodes all at once: without a bound nothing else holds it",
            setups=ONE_GPU,
        ),
        Statement(
            "IV-A ITL near its floor",
            "the window keeps ITL close to l_min: mean ITL of TWP over l_min, high load",
            "1",
            "of l_min",
            of("high", "TWP", "itl_ms_mean", l_min),
            lambda ours: judge_level(ours, 1.0),
            "with a full queue equation (3) allows up to 2 H0, and forced admissions pass the gate",
        ),
    ]


def _tail(paper: Published, name: Scheduler) -> float:
    shown = paper.fig5_ttft_ms[name]
    return shown.p99 / shown.p50


def _cv_lead(by_scheduler: dict[Scheduler, float]) -> float:
    return by_scheduler["TWP"] - min(v for name, v in by_scheduler.items() if name != "TWP")


def _poisson(paper: Published) -> list[Statement]:
    one = paper.fig6_throughput_rps
    against_sllm, against_fcfs = one["TWP"] / one["ServerlessLLM"], one["TWP"] / one["FCFS"]
    return [
        Statement(
            "Abstract throughput ServerlessLLM",
            "throughput up to 45 % above ServerlessLLM (Poisson, 18 req/s)",
            f"{against_sllm:.2f}",
            "ratio",
            _against("poisson", "throughput_rps", ("ServerlessLLM",), best="most"),
            lambda ours: judge_gain(ours, 1 + paper.gain_over_serverlessllm),
            RISES,
        ),
        Statement(
            "Abstract throughput conventional",
            "throughput 58 % above conventional schedulers (Poisson, 18 req/s)",
            f"{against_fcfs:.2f}",
            "ratio",
            _against("poisson", "throughput_rps", CONVENTIONAL, best="most"),
            lambda ours: judge_gain(ours, 1 + paper.gain_over_conventional),
            RISES,
        ),
        Statement(
            "VI-B3 ServerlessLLM above FCFS",
            "ServerlessLLM serves more than FCFS (Poisson, 18 req/s)",
            f"{one['ServerlessLLM'] / one['FCFS']:.2f}",
            "ratio",
            lambda results, setup: ratio(
                results.values(setup, "poisson", "ServerlessLLM", "throughput_rps"),
                results.values(setup, "poisson", "FCFS", "throughput_rps"),
            ),
            judge_above,
            SAME + "; its gain is in cold starts (set-up cold pool)",
        ),
        Statement(
            "Abstract ITL spikes",
            "fewer latency spikes: P99 ITL of TWP over the best other (Poisson, 18 req/s)",
            "below 1",
            "ratio",
            _against("poisson", "itl_ms_p99", OTHERS, best="least"),
            judge_below,
            if_so=BOUNDS,
        ),
        Statement(
            "VI-B5 lowest CV",
            "lowest ITL variability: CV of TWP less the best other's (Poisson, 18 req/s)",
            f"{_cv_lead(paper.text_itl_cv):+.4f} in the text, "
            f"{_cv_lead(paper.fig8_itl_cv):+.4f} in Fig. 8",
            "CV",
            _against("poisson", "itl_cv", OTHERS, best="least"),
            _lower_cv,
            if_so=BOUNDS,
        ),
        Statement(
            "VII tail TTFT",
            "tail TTFT 15 to 20 % lower: P99 TTFT of TWP over ServerlessLLM (Poisson, 18 req/s)",
            f"{paper.fig5_ttft_ms['TWP'].p99 / paper.fig5_ttft_ms['ServerlessLLM'].p99:.2f}",
            "ratio",
            _against("poisson", "ttft_ms_p99", ("ServerlessLLM",), best="least"),
            lambda ours: judge_gain(ours, 1 - paper.tail_ttft_reduction[0]),
            WAITS,
        ),
    ]


def _workloads(paper: Published) -> list[Statement]:
    rows: list[Statement] = []
    for load in LOADS:

        def printed(
            field: Callable[[TableRow], float], best: Callable[[list[float]], float], at: Load
        ) -> str:
            table = paper.table[at]
            return f"{field(table['TWP']) / best([field(table[name]) for name in OTHERS]):.2f}"

        more = ARRIVAL_BOUND if load in ("low", "medium") else RISES
        rows += [
            Statement(
                f"VI-B6 throughput {load}",
                f"higher throughput than every other, {load} load",
                printed(lambda row: row.throughput_rps, max, load),
                "ratio",
                _against(load, "throughput_rps", OTHERS, best="most"),
                judge_above,
                more,
            ),
            Statement(
                f"VI-B6 P99 latency {load}",
                f"lower P99 latency than every other, {load} load",
                printed(lambda row: row.p99_latency_ms, min, load),
                "ratio",
                _against(load, "e2e_ms_p99", OTHERS, best="least"),
                judge_below,
                FULL if load in ("low", "medium") else WAITS,
            ),
            Statement(
                f"VI-B6 consistently lower TTFT {load}",
                f"lower TTFT than every other, {load} load",
                printed(lambda row: row.ttft_ms, min, load),
                "ratio",
                _against(load, "ttft_ms_mean", OTHERS, best="least"),
                judge_below,
                FULL if load in ("low", "medium") else WAITS,
            ),
            Statement(
                f"VI-B6 consistently lower ITL {load}",
                f"lower mean ITL than every other, {load} load",
                printed(lambda row: row.itl_ms, min, load),
                "ratio",
                _against(load, "itl_ms_mean", OTHERS, best="least"),
                judge_below,
                if_so=BOUNDS,
            ),
            Statement(
                f"VII lowest CV {load}",
                f"lower ITL CV than every other, {load} load (difference)",
                f"{_cv_lead({name: row.itl_cv for name, row in paper.table[load].items()}):+.4f}",
                "CV",
                _against(load, "itl_cv", OTHERS, best="least"),
                _lower_cv,
                if_so=BOUNDS,
            ),
        ]
    return rows
