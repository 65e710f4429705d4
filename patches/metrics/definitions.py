"""Every metric that TWP exports, by name: one table for exporter, dashboard, alerts and docs.

Names follow the Prometheus conventions: base units (seconds, tokens, requests, ratios), and
``_total`` for what only rises. ``reading`` names the entry of the runtime's reading
(:meth:`patches.runtime.Runtime.reading`) that a metric is taken from; durations there are in
ms and are divided here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One exported metric.

    Attributes:
        name: as /metrics has it; a counter without its ``_total``.
        kind: of Prometheus.
        reading: key of the reading; a metric with a label takes a mapping there.
        text: what it means, for /metrics and the docs.
        label: name of its own label, beside those that every metric has.
        scale: factor from the reading to the exported unit.
    """

    name: str
    kind: Kind
    reading: str
    text: str
    label: str | None = None
    scale: float = 1.0

    @property
    def exported(self) -> str:
        """Name in queries (of a histogram: without ``_bucket``, ``_sum``, ``_count``)."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_MS = 1e-3

METRICS: tuple[Metric, ...] = (
    # Who decides.
    Metric(
        "twp_policy_info",
        "gauge",
        "policy_info",
        "1, with the policy in force as a label",
        label="policy",
    ),
    Metric(
        "twp_deciding",
        "gauge",
        "deciding",
        "1 while TWP decides admissions in this scheduler process, 0 once stock scheduling took "
        "over, and under policy observe",
    ),
    Metric(
        "twp_fallbacks",
        "counter",
        "fallbacks",
        "faults of TWP; from the first one on stock scheduling decides until a restart",
    ),
    # Objectives and the window.
    Metric(
        "twp_itl_objective_seconds",
        "gauge",
        "itl_slo_ms",
        "ITL objective of policy slo in force",
        scale=_MS,
    ),
    Metric(
        "twp_ttft_objective_seconds",
        "gauge",
        "ttft_slo_ms",
        "TTFT objective of policy slo in force",
        scale=_MS,
    ),
    Metric(
        "twp_itl_objective_reachable",
        "gauge",
        "itl_slo_reachable",
        "1 while a step of one request can keep the ITL objective by the step model, 0 where it "
        "cannot and longer steps are planned (policy slo)",
    ),
    Metric("twp_window_tokens", "gauge", "window_tokens", "token window H"),
    Metric(
        "twp_load_tokens",
        "gauge",
        "load_tokens",
        "K: expected remaining output tokens of active requests",
    ),
    Metric("twp_batch_requests", "gauge", "batch", "active requests B"),
    Metric("twp_slowdown_ratio", "gauge", "sigma", "sigma: filtered step time over l_min"),
    Metric(
        "twp_baseline_step_seconds",
        "gauge",
        "l_min_ms",
        "l_min: step time of an uncongested batch, measured or given",
        scale=_MS,
    ),
    Metric(
        "twp_kv_headroom_ratio",
        "gauge",
        "kv_threshold",
        "share of the KV cache that an admission must leave free",
    ),
    # The queue.
    Metric("twp_queue_requests", "gauge", "queue", "waiting requests"),
    Metric("twp_queue_prompt_tokens", "gauge", "queue_prompt_tokens", "their prompt tokens"),
    Metric(
        "twp_queue_cached_tokens",
        "gauge",
        "queue_cached_tokens",
        "those of them that the prefix cache holds, so that nobody waits for them",
    ),
    Metric(
        "twp_late_requests",
        "gauge",
        "late",
        "waiting requests that can no longer have their first token in time (policy slo)",
    ),
    Metric(
        "twp_admissions",
        "counter",
        "admissions",
        "admitted requests by reason; forced ones among them",
        label="reason",
    ),
    Metric(
        "twp_held_steps",
        "counter",
        "holds",
        "steps launched while somebody had to wait, by why the next one waited",
        label="reason",
    ),
    Metric(
        "twp_refusals",
        "counter",
        "refusals",
        "requests refused on arrival by reason",
        label="reason",
    ),
    # The step.
    Metric(
        "twp_step_seconds",
        "histogram",
        "steps",
        "step times as the scheduler measures them, by kind of step",
        label="kind",
    ),
    Metric(
        "twp_scheduler_itl_seconds",
        "histogram",
        "itl",
        "step times counted once per decoding row: the inter-token latency before tokenizer, "
        "network and client; beside sglang:inter_token_latency_seconds",
    ),
    Metric("twp_step_measured_seconds", "gauge", "step_ms", "the newest measured step", scale=_MS),
    Metric(
        "twp_step_predicted_seconds",
        "gauge",
        "step_predicted_ms",
        "what the step model predicts for that step (policy slo)",
        scale=_MS,
    ),
    Metric(
        "twp_step_residual_ratio",
        "gauge",
        "residual",
        "root mean square of the prediction's log error (policy slo)",
    ),
    Metric(
        "twp_step_margin_ratio",
        "gauge",
        "theta",
        "part of the ITL objective that is planned for; the rest is margin (policy slo)",
    ),
    Metric(
        "twp_model_gain_ratio",
        "gauge",
        "gains",
        "online correction of the step model (policy slo); 1 is none",
        label="part",
    ),
    Metric(
        "twp_chunk_tokens",
        "gauge",
        "chunk_tokens",
        "most prompt tokens in the newest step that had decoding rows",
    ),
    # Lengths.
    Metric("twp_answers", "counter", "answers", "answers that ended"),
    Metric("twp_answer_tokens", "counter", "answer_tokens", "their output tokens"),
    Metric(
        "twp_answer_expected_tokens",
        "counter",
        "expected_tokens",
        "output tokens that were expected of those answers on admission",
    ),
    Metric(
        "twp_length_error_tokens",
        "counter",
        "length_error_tokens",
        "sum over those answers of |expected - produced| tokens",
    ),
    # What users feel most and averages hide.
    Metric(
        "twp_retraction_gap_seconds",
        "histogram",
        "retraction_gaps",
        "from a request's retraction to its next token",
    ),
    Metric(
        "twp_retraction_gap_max_seconds",
        "gauge",
        "retraction_gap_max_ms",
        "longest of those since the start",
        scale=_MS,
    ),
    # The record.
    Metric("twp_trace_lines", "counter", "trace_written", "lines written to the step trace"),
    Metric(
        "twp_trace_lines_dropped",
        "counter",
        "trace_dropped",
        "lines of the step trace dropped because the disk did not keep up",
    ),
)

STEP_BOUNDS_S = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040),
    *(0.050, 0.060, 0.080, 0.100, 0.150, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 8.0),
)
"""Bucket bounds of step times and gaps: those of SGLang's inter-token latency, so that the two
can be laid side by side, with 1, 50 and 150 ms for objectives in between."""

GAP_BOUNDS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Retraction gaps: from one step to what a client's time limit cuts off."""

BOUNDS_S = {
    "twp_step_seconds": STEP_BOUNDS_S,
    "twp_scheduler_itl_seconds": STEP_BOUNDS_S,
    "twp_retraction_gap_seconds": GAP_BOUNDS_S,
}
