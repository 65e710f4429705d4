"""Workloads by format name."""

from __future__ import annotations

from pathlib import Path

from twp_sglang.workloads.bench_results import read_bench_result
from twp_sglang.workloads.csv_traces import CSV_FORMATS, read_csv_trace
from twp_sglang.workloads.generate import generate, read_spec
from twp_sglang.workloads.gsm8k import read_gsm8k
from twp_sglang.workloads.mooncake import read_mooncake
from twp_sglang.workloads.workload import Workload, stretched

FORMATS = ("azure", "mooncake", "burstgpt", "servegen", "csv", "gsm8k", "bench", "spec")
"""``bench`` is a result file of SGLang, vLLM or this package, ``spec`` a file of
:mod:`~twp_sglang.workloads.generate`."""


def read_workload(
    path: Path,
    form: str,
    *,
    limit: int | None = None,
    time_stretch: float = 1.0,
    rate_rps: float | None = None,
    seed: int = 0,
) -> Workload:
    """Read or generate a workload.

    Args:
        path: the file.
        form: one of :data:`FORMATS`.
        limit: at most so many requests.
        time_stretch: factor on all times; 2 halves the rate.
        rate_rps: arrival rate where the format has no times (``gsm8k``).
        seed: of what is drawn.

    Raises:
        WorkloadError: the file cannot be used; the message names line, field and mend.
    """
    if form in CSV_FORMATS:
        workload = read_csv_trace(path, form, limit)
    elif form == "mooncake":
        workload = read_mooncake(path, limit)
    elif form == "bench":
        workload = read_bench_result(path, limit, seed)
    elif form == "gsm8k":
        workload = read_gsm8k(path, rate_rps, limit, seed)
    else:
        workload = generate(read_spec(path), seed, limit)
    return stretched(workload, time_stretch)
