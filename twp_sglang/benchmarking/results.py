"""The JSON file of one run: its schema, writer and reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from controllers.laws.base import FrozenModel
from twp_sglang.atomic_write import write_text
from twp_sglang.benchmarking.workload import WorkloadRecord
from twp_sglang.latency_metrics import Distribution, LatencySummary, Slo, TokenTimes

SCHEMA = "twp-bench/1"


class Failure(FrozenModel):
    """Why a request failed.

    ``kind`` is one of ``http_<status>`` (answered with that status), ``connect``,
    ``disconnect`` (connection lost in mid-stream), ``truncated`` (stream ended in order
    but without an end of the answer), ``timeout``, ``abort_<status>`` (ended by the
    server), ``stream_<status>`` (answered 200, then sent an error event),
    ``abort_error`` and ``stream_error`` (the same without a status), ``bad_stream`` (not in
    the format asked for), ``empty`` (ended well without a token), ``interrupted``
    (Ctrl-C), ``client`` (a fault of this client).
    """

    kind: str
    message: str
    status: int | None = None


class RequestRecord(FrozenModel):
    """One request as the client saw it.

    Attributes:
        index: place in the plan.
        arrival_s: planned submission, seconds from the start of the run.
        lateness_ms: actual submission after the planned one. Latencies count from the
            actual submission.
        ttft_ms, e2e_ms: None without a token.
        itl_ms: every gap between successive output tokens. Tokens of one chunk came
            together: their gaps are 0.
        chunk_tokens: tokens that each event with new tokens carried.
        planned_input_tokens: None where the prompt is a question.
        planned_output_tokens: tokens asked for.
        prompt_tokens, cached_tokens: as counted by the server; None where it does not say.
        output_tokens: tokens received.
        count_source: ``server`` (cumulative counts in the stream), or ``chunks`` (one
            token a chunk, because the server does not count; token times are then those
            of chunks).
        finish_reason: as sent by the server.
        error: None for a completed request.
        ended_s: when the request was over, seconds from the start of the run.
    """

    index: int
    arrival_s: float
    lateness_ms: float
    ttft_ms: float | None
    itl_ms: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    e2e_ms: float | None
    planned_input_tokens: int | None
    planned_output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    count_source: Literal["server", "chunks"] | None
    finish_reason: str | None
    error: Failure | None
    ended_s: float

    @property
    def submitted_ms(self) -> float:
        """Actual submission, milliseconds from the start of the run."""
        return self.arrival_s * 1000.0 + self.lateness_ms

    def token_times(self) -> TokenTimes:
        """Times of the tokens, milliseconds from the start of the run."""
        times = np.empty(0)
        if self.ttft_ms is not None:
            first = self.submitted_ms + self.ttft_ms
            times = first + np.concatenate([[0.0], np.cumsum(self.itl_ms)])
        return TokenTimes(
            submitted_ms=self.submitted_ms,
            token_ms=times,
            completed=self.error is None,
            output_tokens=self.output_tokens,
        )


class ServerRecord(FrozenModel):
    """What the server said of itself before the run.

    ``emulated`` is the server's own word on whether step times come from a model and not
    from the hardware; None where it does not say. ``settings`` holds those entries of
    /server_info that bear on latency. ``twp_before`` and ``twp_after`` are the ``twp``
    entries of its schedulers' internal states, one per scheduler.
    """

    kind: Literal["sglang", "other"]
    model: str | None = None
    version: str | None = None
    emulated: bool | None = None
    takes_token_ids_only: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    twp_before: tuple[dict[str, Any], ...] = ()
    twp_after: tuple[dict[str, Any], ...] = ()


class Header(FrozenModel):
    """How the run was made."""

    label: str
    date: str
    command: str
    url: str
    api: str
    client: str
    seed: int
    salt: str
    slos: tuple[Slo, ...]
    warmup: int
    timeout_s: float
    concurrency_cap: int | None
    flush: str
    interrupted: bool
    workload: WorkloadRecord
    server: ServerRecord


class Summary(FrozenModel):
    """What came out.

    Attributes:
        planned, sent, completed: requests; ``planned - sent`` were never sent.
        failed: count by kind of failure.
        latency: the metrics of :mod:`twp_sglang.latency_metrics`.
        lateness_ms: of all requests sent.
        client_lag_ms: how late the client's own event loop woke, sampled through the run;
            token times are no finer than this.
        tokens_per_chunk: over the chunks of completed requests.
        chunk_gap_ms: gaps between successive chunks with tokens, completed requests.
        prompt_tokens, cached_tokens: totals, as counted by the server.
        cautions: what a reader must know before using the numbers.
    """

    planned: int
    sent: int
    completed: int
    failed: dict[str, int]
    latency: LatencySummary
    lateness_ms: Distribution
    client_lag_ms: Distribution
    tokens_per_chunk: Distribution
    chunk_gap_ms: Distribution
    prompt_tokens: int | None
    cached_tokens: int | None
    cautions: tuple[str, ...] = ()


class RunReport(FrozenModel):
    """The whole file."""

    schema_version: Literal["twp-bench/1"] = "twp-bench/1"
    header: Header
    summary: Summary
    requests: tuple[RequestRecord, ...]


def write_report(report: RunReport, path: Path) -> None:
    """Write ``report`` as JSON, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    write_text(path, report.model_dump_json() + "\n")


def read_report(path: Path) -> RunReport:
    """Read a file written by ``bench run``.

    Raises:
        ValueError: the file is missing, or is not such a file; the message says why.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise ValueError(
            f"{path}: not a result of `bench run` ({SCHEMA}): {place}: {first['msg']}"
        ) from None
