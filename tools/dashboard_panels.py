"""The panels of the Grafana dashboard, row by row: title, unit, queries, and what they say.

Variables of the dashboard stand as ``$job``, ``$instance`` and ``$model`` in the queries.
"""

from __future__ import annotations

from typing import NamedTuple

_OWN = '{job=~"$job", instance=~"$instance", model_name=~"$model"}'
_RATE = "[$__rate_interval]"


class Line(NamedTuple):
    """One query and its legend."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One panel of a row."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    text: str
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


def _gauge(name: str, legend: str) -> Line:
    return Line(f"{name}{_OWN}", f"{legend} {{{{instance}}}} {{{{dp_rank}}}}")


def _quantile(q: float, histogram: str, by: str, legend: str) -> Line:
    labels = f"{by}, le" if by else "le"
    return Line(
        f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{_OWN}{_RATE})))",
        legend,
    )


def _by_label(counter: str, label: str) -> Line:
    return Line(f"sum by ({label}) (rate({counter}{_OWN}{_RATE}))", f"{{{{{label}}}}}")


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it working?",
        (
            Panel(
                "Deciding",
                "bool_yes_no",
                (_gauge("twp_deciding", ""),),
                "No after a fault (until a restart), and always under policy observe.",
                kind="stat",
            ),
            Panel(
                "Faults",
                "none",
                (_gauge("twp_fallbacks_total", ""),),
                "Stock scheduling decides from the first one on.",
                kind="stat",
            ),
            Panel(
                "Policy",
                "none",
                (Line(f"twp_policy_info{_OWN}", "{{policy}} {{instance}} {{dp_rank}}"),),
                "Who decides admissions.",
                kind="stat",
            ),
        ),
    ),
    (
        "What users feel",
        (
            Panel(
                "Inter-token latency",
                "s",
                (
                    _quantile(0.5, "twp_scheduler_itl_seconds", "", "scheduler P50"),
                    _quantile(0.99, "twp_scheduler_itl_seconds", "", "scheduler P99"),
                    _quantile(0.5, "sglang:inter_token_latency_seconds", "", "HTTP process P50"),
                    _quantile(0.99, "sglang:inter_token_latency_seconds", "", "HTTP process P99"),
                    Line(f"min(twp_itl_objective_seconds{_OWN})", "objective"),
                ),
                "Every gap counts once. The scheduler measures its steps, SGLang's HTTP process "
                "what it hands out; the difference is made between the two.",
            ),
            Panel(
                "Time to first token",
                "s",
                (
                    _quantile(0.5, "sglang:time_to_first_token_seconds", "", "P50"),
                    _quantile(0.95, "sglang:time_to_first_token_seconds", "", "P95"),
                    Line(f"min(twp_ttft_objective_seconds{_OWN})", "objective"),
                ),
                "As SGLang's HTTP process measures it.",
            ),
            Panel(
                "Retraction gaps",
                "s",
                (
                    _quantile(0.99, "twp_retraction_gap_seconds", "", "P99"),
                    _gauge("twp_retraction_gap_max_seconds", "longest since start"),
                ),
                "From losing its KV memory to the next token; rare, and the worst a stream meets.",
            ),
        ),
    ),
    (
        "The window and the queue",
        (
            Panel(
                "Window and load",
                "short",
                (_gauge("twp_window_tokens", "window H"), _gauge("twp_load_tokens", "load K")),
                "Admission stops while the load fills the window.",
            ),
            Panel(
                "Active and waiting",
                "short",
                (
                    _gauge("twp_batch_requests", "active"),
                    _gauge("twp_queue_requests", "waiting"),
                    _gauge("twp_late_requests", "late"),
                ),
                "Late: can no longer have their first token in time (policy slo).",
            ),
            Panel(
                "Waiting prompt tokens",
                "short",
                (
                    _gauge("twp_queue_prompt_tokens", "all"),
                    _gauge("twp_queue_cached_tokens", "in the prefix cache"),
                ),
                "What is not in the prefix cache, divided by the prompt rate, is how long the "
                "queue is in time.",
            ),
            Panel(
                "Admissions",
                "reqps",
                (_by_label("twp_admissions_total", "reason"),),
                "forced: past the window because of waiting time.",
                stacked=True,
            ),
            Panel(
                "Why somebody waits",
                "ops",
                (_by_label("twp_held_steps_total", "reason"),),
                "Steps per second that left somebody waiting, by what held the next one.",
                stacked=True,
            ),
            Panel(
                "Refusals",
                "reqps",
                (_by_label("twp_refusals_total", "reason"),),
                "Answered with 429 and a Retry-After.",
                stacked=True,
            ),
        ),
    ),
    (
        "The step and its model",
        (
            Panel(
                "Step time",
                "s",
                (
                    _quantile(0.5, "twp_step_seconds", "kind", "P50 {{kind}}"),
                    _quantile(0.99, "twp_step_seconds", "kind", "P99 {{kind}}"),
                ),
                "By what the step did.",
            ),
            Panel(
                "Measured and predicted",
                "s",
                (
                    _gauge("twp_step_measured_seconds", "measured"),
                    _gauge("twp_step_predicted_seconds", "predicted"),
                    _gauge("twp_baseline_step_seconds", "l_min"),
                ),
                "The newest step at each scrape. twp has no prediction, only slo has.",
            ),
            Panel(
                "Prediction error and margin",
                "percentunit",
                (
                    _gauge("twp_step_residual_ratio", "residual"),
                    _gauge("twp_step_margin_ratio", "planned part of the objective"),
                    _gauge("twp_itl_objective_reachable", "objective in reach"),
                ),
                "The larger the residual, the less of the objective is planned for. In reach is "
                "0 % where even a step of one request is longer than the objective.",
            ),
            Panel(
                "Model gains",
                "none",
                (
                    Line(
                        f"twp_model_gain_ratio{_OWN}",
                        "{{part}} {{instance}} {{dp_rank}}",
                    ),
                ),
                "Online correction; 1 is a model that needs none.",
            ),
            Panel(
                "Chunk",
                "short",
                (_gauge("twp_chunk_tokens", "prompt tokens"),),
                "Most prompt tokens that may ride in a step beside decoding rows.",
            ),
            Panel(
                "Slowdown and KV headroom",
                "none",
                (
                    _gauge("twp_slowdown_ratio", "sigma"),
                    _gauge("twp_kv_headroom_ratio", "KV headroom"),
                ),
                "sigma is what the paper's law steers by.",
            ),
        ),
    ),
    (
        "Lengths and the record",
        (
            Panel(
                "Answer length",
                "short",
                (
                    Line(
                        f"sum(rate(twp_answer_expected_tokens_total{_OWN}{_RATE}))"
                        f" / sum(rate(twp_answers_total{_OWN}{_RATE}))",
                        "expected",
                    ),
                    Line(
                        f"sum(rate(twp_answer_tokens_total{_OWN}{_RATE}))"
                        f" / sum(rate(twp_answers_total{_OWN}{_RATE}))",
                        "produced",
                    ),
                ),
                "Mean tokens of the answers that ended.",
            ),
            Panel(
                "Error of the expected length",
                "short",
                (
                    Line(
                        f"sum(rate(twp_length_error_tokens_total{_OWN}{_RATE}))"
                        f" / sum(rate(twp_answers_total{_OWN}{_RATE}))",
                        "tokens per answer",
                    ),
                ),
                "Mean of |expected - produced|: how much of the load K is not there.",
            ),
            Panel(
                "Step trace",
                "ops",
                (
                    Line(f"sum(rate(twp_trace_lines_total{_OWN}{_RATE}))", "written"),
                    Line(f"sum(rate(twp_trace_lines_dropped_total{_OWN}{_RATE}))", "dropped"),
                ),
                "Lines per second.",
            ),
        ),
    ),
)
