"""From the records of a run to its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from twp_sglang.benchmarking.cautions import cautions
from twp_sglang.benchmarking.results import Header, RequestRecord, Summary
from twp_sglang.latency_metrics import distribution, summarise


def summarise_run(
    records: Sequence[RequestRecord], header: Header, lags_ms: Sequence[float]
) -> Summary:
    """The summary of the requests that were sent.

    Args:
        records: one per request sent.
        header: of the same run.
        lags_ms: samples of the client's event-loop lag.
    """
    times = [record.token_times() for record in records]
    begun_s = min((record.submitted_ms / 1000.0 for record in records), default=0.0)
    ended_s = max((record.ended_s for record in records), default=0.0)
    completed = [record for record in records if record.error is None]
    failed = Counter(record.error.kind for record in records if record.error is not None)
    chunk_gaps: list[float] = []
    for record in completed:
        place = 0
        for carried in record.chunk_tokens[:-1]:
            place += carried
            chunk_gaps.append(record.itl_ms[place - 1])
    prompt = [r.prompt_tokens for r in completed if r.prompt_tokens is not None]
    cached = [r.cached_tokens for r in completed if r.cached_tokens is not None]
    lateness = distribution([record.lateness_ms for record in records])
    lag = distribution(lags_ms)
    return Summary(
        planned=header.workload.requests,
        sent=len(records),
        completed=len(completed),
        failed=dict(failed.most_common()),
        latency=summarise(times, max(ended_s - begun_s, 0.0), header.slos),
        lateness_ms=lateness,
        client_lag_ms=lag,
        tokens_per_chunk=distribution([n for r in completed for n in r.chunk_tokens]),
        chunk_gap_ms=distribution(chunk_gaps),
        prompt_tokens=sum(prompt) if prompt else None,
        cached_tokens=sum(cached) if cached else None,
        cautions=tuple(
            cautions(
                records,
                planned=header.workload.requests,
                lateness_ms=lateness,
                client_lag_ms=lag,
                concurrency_cap=header.concurrency_cap,
                flush=header.flush,
                ignore_eos=header.workload.ignore_eos,
                interrupted=header.interrupted,
            )
        ),
    )
