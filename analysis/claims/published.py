"""The numbers of arXiv 2610.17689, as printed, with the place of each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controllers.laws.base import FrozenModel

Scheduler = Literal["FCFS", "RoundRobin", "Priority", "DynBatch", "ServerlessLLM", "TWP"]
SCHEDULERS: tuple[Scheduler, ...] = (
    "FCFS",
    "RoundRobin",
    "Priority",
    "DynBatch",
    "ServerlessLLM",
    "TWP",
)

Load = Literal["low", "medium", "high", "burst"]
LOADS: tuple[Load, ...] = ("low", "medium", "high", "burst")


class TableRow(FrozenModel):
    """One row of the table of section VI-B6."""

    throughput_rps: float
    p99_latency_ms: float
    ttft_ms: float
    itl_ms: float
    itl_cv: float


class Percentiles(FrozenModel):
    """TTFT of one scheduler in Fig. 5."""

    p50: float
    p95: float
    p99: float


class PromptRange(FrozenModel):
    """Prompts of ``low``..``high`` tokens with ``probability``."""

    probability: float
    low: int
    high: int


def _row(*values: float) -> TableRow:
    return TableRow(**dict(zip(TableRow.model_fields, values, strict=True)))


def _tail(*values: float) -> Percentiles:
    return Percentiles(**dict(zip(Percentiles.model_fields, values, strict=True)))


def _by_scheduler(*values: float) -> dict[Scheduler, float]:
    return dict(zip(SCHEDULERS, values, strict=True))


class Published(FrozenModel):
    """What the paper prints. Times in ms, rates per second, lengths in tokens."""

    # Sections V and VI-A.
    h0_tokens: float = 400.0
    gamma: float = 0.15
    chunk_tokens: int = 64
    b0: int = 8
    arrival_rps: float = 18.0
    arrival_span_s: float = 60.0
    requests: int = 250
    prompts: tuple[PromptRange, ...] = (
        PromptRange(probability=0.6, low=30, high=80),
        PromptRange(probability=0.3, low=120, high=250),
        PromptRange(probability=0.1, low=350, high=512),
    )
    gpu_memory_gb: float = 32.0

    # Section VI-B6: the four workloads.
    table_prompts: tuple[int, ...] = (50, 200, 800)
    table_outputs: tuple[int, ...] = (20, 50, 200)
    table_probabilities: tuple[float, ...] = (0.5, 0.3, 0.2)
    runs: int = 10

    # Fig. 2: the axes.
    fig2_axis_ms: tuple[float, float] = (4.0, 12.0)
    fig2_batch: float = 24.0
    # Fig. 4 and its text: "near 50 ms throughout", spikes "of up to".
    fig4_twp_ms: float = 50.0
    fig4_spike_ms: dict[Scheduler, float] = Field(
        default={"RoundRobin": 85.0, "ServerlessLLM": 77.0}
    )
    fig5_ttft_ms: dict[Scheduler, Percentiles] = Field(
        default=dict(
            zip(
                SCHEDULERS,
                (
                    _tail(49, 53, 64),
                    _tail(50, 52, 67),
                    _tail(51, 54, 59),
                    _tail(52, 53, 68),
                    _tail(52, 54, 78),
                    _tail(50, 51, 66),
                ),
                strict=True,
            )
        )
    )
    fig6_throughput_rps: dict[Scheduler, float] = _by_scheduler(
        0.124, 0.121, 0.123, 0.124, 0.136, 0.197
    )
    # Text of Fig. 7: "centered around 43.5-43.8 ms", baselines' "tail values reaching 61-62 ms".
    fig7_twp_ms: tuple[float, float] = (43.5, 43.8)
    fig7_tail_ms: tuple[float, float] = (61.0, 62.0)
    fig8_itl_cv: dict[Scheduler, float] = _by_scheduler(
        0.0171, 0.0193, 0.0187, 0.0193, 0.0158, 0.0165
    )
    # Text of Fig. 8.
    text_itl_cv: dict[Scheduler, float] = Field(
        default={"TWP": 0.0144, "RoundRobin": 0.0203, "FCFS": 0.0159}
    )

    # Abstract and section VII.
    gain_over_serverlessllm: float = 0.45
    gain_over_conventional: float = 0.58
    tail_ttft_reduction: tuple[float, float] = (0.15, 0.20)

    table: dict[Load, dict[Scheduler, TableRow]] = Field(
        default={
            "low": {
                "FCFS": _row(363.09, 2130.93, 52.99, 44.29, 0.0141),
                "DynBatch": _row(363.09, 2130.93, 52.17, 43.26, 0.0145),
                "Priority": _row(433.87, 2134.36, 52.20, 43.47, 0.0142),
                "RoundRobin": _row(334.48, 2147.98, 52.17, 43.30, 0.0147),
                "ServerlessLLM": _row(451.32, 2014.46, 51.99, 43.19, 0.0142),
                "TWP": _row(2568.31, 1152.40, 52.02, 43.11, 0.0141),
            },
            "medium": {
                "FCFS": _row(267.13, 4571.94, 52.47, 44.05, 0.0140),
                "DynBatch": _row(267.13, 4269.44, 51.47, 43.02, 0.0129),
                "Priority": _row(467.47, 4527.29, 52.35, 44.01, 0.0144),
                "RoundRobin": _row(254.80, 4618.15, 52.28, 43.85, 0.0138),
                "ServerlessLLM": _row(313.88, 4263.09, 52.16, 43.69, 0.0137),
                "TWP": _row(2674.39, 2594.39, 52.09, 43.09, 0.0136),
            },
            "high": {
                "FCFS": _row(254.62, 8915.61, 51.94, 43.48, 0.0141),
                "DynBatch": _row(254.62, 8493.63, 51.89, 43.41, 0.0131),
                "Priority": _row(448.65, 8833.61, 53.37, 45.09, 0.0200),
                "RoundRobin": _row(242.44, 8571.43, 52.08, 43.56, 0.0136),
                "ServerlessLLM": _row(299.29, 8005.79, 53.42, 45.14, 0.0173),
                "TWP": _row(2709.57, 5103.69, 52.86, 44.10, 0.0146),
            },
            "burst": {
                "FCFS": _row(226.30, 17869.95, 53.25, 44.95, 0.0169),
                "DynBatch": _row(226.30, 16894.07, 53.13, 44.83, 0.0172),
                "Priority": _row(452.60, 17488.25, 53.34, 45.22, 0.0177),
                "RoundRobin": _row(219.97, 18052.02, 53.38, 45.03, 0.0172),
                "ServerlessLLM": _row(258.57, 16915.02, 53.35, 45.04, 0.0179),
                "TWP": _row(2532.53, 10272.56, 52.49, 44.68, 0.0169),
            },
        }
    )

    @property
    def fig2_slope(self) -> float:
        """alpha B0 / l_min if the curve of Fig. 2 fills its axes; above 1 tokens per second
        fall with the batch beyond B0."""
        rise = self.fig2_axis_ms[1] / self.fig2_axis_ms[0] - 1.0
        return rise * self.b0 / (self.fig2_batch - self.b0)

    @property
    def mean_output_tokens(self) -> float:
        """Mean output length of the four workloads."""
        return sum(p * n for p, n in zip(self.table_probabilities, self.table_outputs, strict=True))

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean prompt length of the four workloads."""
        return sum(p * n for p, n in zip(self.table_probabilities, self.table_prompts, strict=True))

    @property
    def mean_output_by_h0_tokens(self) -> float:
        """Mean output length that H0 = B0 Lbar (section V) implies."""
        return self.h0_tokens / self.b0
