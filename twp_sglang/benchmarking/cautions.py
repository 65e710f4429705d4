"""What a reader must know before using the numbers of a run."""

from __future__ import annotations

from collections.abc import Sequence

from twp_sglang.benchmarking.results import RequestRecord
from twp_sglang.latency_metrics import Distribution

SMALL_N = 100
"""Below this many requests, a P99 over requests is the largest value or nearly so."""

LATE_MS = 50.0
"""Lateness that a reader of TTFT would care about; a scheduling hiccup stays below."""

LAG_MS = 10.0
"""Event-loop lag that is no longer small against a GPU's inter-token latency."""

CACHED_SHARE = 0.05
"""Above the few tokens that every prompt shares (start token, chat template)."""

LENGTH_SHARE = 0.10
"""Departure of mean lengths from the plan that makes runs hard to compare."""


def cautions(
    records: Sequence[RequestRecord],
    *,
    planned: int,
    lateness_ms: Distribution,
    client_lag_ms: Distribution,
    concurrency_cap: int | None,
    flush: str,
    ignore_eos: bool,
    interrupted: bool,
) -> list[str]:
    """One sentence for each thing that limits what the run can say."""
    found: list[str] = []
    completed = [record for record in records if record.error is None]
    if interrupted:
        found.append(f"Interrupted: {len(records)} of {planned} planned requests were sent.")
    if len(completed) < len(records):
        found.append(
            f"{len(records) - len(completed)} of {len(records)} requests failed; latencies cover "
            "the completed ones only, goodput counts a failure as a miss."
        )
    if 0 < len(completed) < SMALL_N:
        chance = "P95 and P99 are" if len(completed) < SMALL_N / 5 else "P99 is"
        found.append(
            f"Small n: {len(completed)} completed requests; over requests, {chance} little more "
            "than the largest value."
        )
    if (lateness_ms.p99 or 0.0) > LATE_MS:
        if concurrency_cap:
            found.append(
                f"The concurrency cap of {concurrency_cap} held requests back in the client (P99 "
                f"{lateness_ms.p99:.0f} ms): not open loop, and that wait is not in TTFT."
            )
        else:
            found.append(
                f"The client fell behind: P99 lateness {lateness_ms.p99:.0f} ms. The load was "
                "lighter than planned, and the delay is not in TTFT."
            )
    if (client_lag_ms.p99 or 0.0) > LAG_MS:
        found.append(
            f"The client was slow to read: its event loop woke {client_lag_ms.p99:.0f} ms late at "
            "P99, which is in every time above. Run it on a less busy machine."
        )
    found += _about_counts(completed)
    found += _about_lengths(completed, ignore_eos)
    found += _about_cache(completed, flush)
    return found


def _about_counts(completed: Sequence[RequestRecord]) -> list[str]:
    found = []
    inexact = sum(record.count_source == "chunks" for record in completed)
    if inexact:
        found.append(
            f"The server sent no running token count for {inexact} requests: one token is counted "
            "per chunk, so ITLs are chunk gaps."
        )
    chunks = sum(len(record.chunk_tokens) for record in completed)
    tokens = sum(sum(record.chunk_tokens) for record in completed)
    if chunks and tokens / chunks > 1.05:
        found.append(
            f"Chunks carried {tokens / chunks:.2f} tokens on average; tokens that came together "
            "have ITLs of 0, which lowers ITL percentiles: read the decode gap and chunk_gap_ms."
        )
    return found


def _about_lengths(completed: Sequence[RequestRecord], ignore_eos: bool) -> list[str]:
    found = []
    counted = [
        (record.prompt_tokens, record.planned_input_tokens)
        for record in completed
        if record.prompt_tokens is not None and record.planned_input_tokens is not None
    ]
    actual, wanted = sum(a for a, _ in counted), sum(w for _, w in counted)
    if wanted and abs(actual / wanted - 1.0) > LENGTH_SHARE:
        found.append(
            f"Prompts were {actual / wanted:.2f} times as long as planned, by the server's count; "
            "--prompts ids or --tokenizer makes them exact."
        )
    if ignore_eos:
        got = sum(record.output_tokens for record in completed)
        asked = sum(record.planned_output_tokens for record in completed)
        if asked and abs(got / asked - 1.0) > 0.001:
            found.append(
                f"Outputs were {got / asked:.2f} times as long as asked for; the server may not "
                "honour ignore_eos, or cuts at its context length."
            )
    return found


def _about_cache(completed: Sequence[RequestRecord], flush: str) -> list[str]:
    found = []
    if flush.startswith("refused"):
        found.append(f"The prefix cache was not flushed ({flush}); is the server in use?")
    prompt = sum(record.prompt_tokens or 0 for record in completed)
    cached = sum(record.cached_tokens or 0 for record in completed)
    if prompt and cached / prompt > CACHED_SHARE:
        found.append(
            f"{100 * cached / prompt:.0f} % of prompt tokens came from the server's prefix cache: "
            "TTFT is too good."
        )
    return found
