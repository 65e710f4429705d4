"""Contradictions of the table of section VI-B6."""

from __future__ import annotations

from analysis.claims.contradiction import Contradiction
from analysis.claims.published import LOADS, Published

PARAMETERS = 3.2e9
"""Weights of Llama-3.2-3B."""

KV_BYTES_PER_TOKEN = 28 * 8 * 128 * 2 * 2
"""Its layers, KV heads, head size, K and V, two bytes each."""

V100_FLOPS = 125e12
"""Peak of the tensor cores in FP16 (data sheet)."""


def throughput_figures(paper: Published) -> Contradiction | None:
    """Fig. 6 against the table."""
    ratios = [
        rows[name].throughput_rps / paper.fig6_throughput_rps[name]
        for rows in paper.table.values()
        for name in rows
    ]
    if max(ratios) < 10:
        return None
    shown, most = paper.fig6_throughput_rps["TWP"], paper.table["low"]["TWP"].throughput_rps
    return Contradiction(
        "throughput of Fig. 6 and of the table",
        f"Both in requests per second and of the same schedulers: TWP {shown:g} in Fig. 6, "
        f"{most:,.0f} in the table; over all rows a factor of {min(ratios):,.0f} to "
        f"{max(ratios):,.0f}.",
        ("Fig. 6", "Table throughput"),
    )


def impossible_throughput(paper: Published) -> Contradiction | None:
    """The table's throughput against one V100."""
    best = max((rows["TWP"] for rows in paper.table.values()), key=lambda row: row.throughput_rps)
    worst = min(
        (row for rows in paper.table.values() for row in rows.values()),
        key=lambda row: row.throughput_rps,
    )
    tokens = paper.mean_output_tokens + paper.mean_prompt_tokens
    flops = best.throughput_rps * tokens * 2 * PARAMETERS
    if flops <= V100_FLOPS:
        return None
    running = best.throughput_rps * paper.mean_output_tokens * best.itl_ms / 1e3
    context = paper.mean_prompt_tokens + paper.mean_output_tokens / 2
    kv_gb = running * context * KV_BYTES_PER_TOKEN / 1e9
    least = worst.throughput_rps * tokens * 2 * PARAMETERS / V100_FLOPS
    return Contradiction(
        "throughput beyond the GPU",
        f"{best.throughput_rps:,.0f} req/s of {tokens:.0f} tokens each are {flops / 1e12:,.0f} "
        "TFLOP/s, "
        f"{flops / V100_FLOPS:.0f} times the peak of a V100 (the slowest row: {least:.1f} "
        "times). At "
        f"{best.itl_ms:.4g} ms per token {running:,.0f} requests decode at once, with "
        f"{kv_gb:,.0f} GB of "
        f"KV on a GPU of {paper.gpu_memory_gb:g} GB, under a window that starts at "
        f"{paper.h0_tokens:g} tokens. Read as tokens per second it would still need "
        f"{best.throughput_rps * best.itl_ms / 1e3:.0f} rows, "
        f"{best.throughput_rps * best.itl_ms / 1e3 / paper.b0:.0f} times B0, "
        "at an ITL at its floor.",
        ("Table throughput",),
    )


def gains(paper: Published) -> Contradiction | None:
    """ "Up to" gains against the table."""
    most = max(
        rows["TWP"].throughput_rps / rows["ServerlessLLM"].throughput_rps - 1
        for rows in paper.table.values()
    )
    if most <= 1.05 * paper.gain_over_serverlessllm:
        return None
    return Contradiction(
        "up to 45 %",
        f"The abstract claims throughput up to {paper.gain_over_serverlessllm:.0%} above "
        "ServerlessLLM; "
        f"the table shows up to {most:.0%}.",
        ("Abstract throughput",),
    )


def end_to_end(paper: Published) -> Contradiction | None:
    """P99 latency of the table against output length times ITL."""
    longest = max(paper.table_outputs)
    share = dict(zip(paper.table_outputs, paper.table_probabilities, strict=True))[longest]
    below, above = [], []
    for load in LOADS:
        for name, row in paper.table[load].items():
            decode_ms = (longest - 1) * row.itl_ms
            if share > 0.01 and row.p99_latency_ms < 0.95 * decode_ms:
                below.append((load, name, row.p99_latency_ms, decode_ms))
            elif 0.01 * (row.p99_latency_ms - decode_ms) > row.ttft_ms:
                above.append((load, name, row.p99_latency_ms, decode_ms))
    if not below and not above:
        return None
    parts = []
    if below:
        load, name, value, decode_ms = min(below, key=lambda found: found[2] / found[3])
        parts.append(
            f"{share:.0%} of the requests have {longest} output tokens and take {decode_ms:,.0f} "
            "ms to "
            f"decode at the ITL shown, so P99 is at least that; {len(below)} of 24 rows are below, "
            f"{name} under {load} load at {value:,.0f} ms"
        )
    if above:
        load, name, value, decode_ms = max(above, key=lambda found: found[2])
        parts.append(
            f"{len(above)} rows are so far above it that a hundredth of the requests alone would "
            "lift "
            f"the mean TTFT over the one shown ({name} under {load} load: {value:,.0f} ms)"
        )
    return Contradiction(
        "P99 latency",
        "; ".join(parts) + ".",
        tuple(f"Table P99 {load} {name}" for load, name, _, _ in below + above),
    )


def consistently_best(paper: Published) -> Contradiction | None:
    """ "Consistently lower", "lowest variability" against the table."""
    losses, places = [], []
    for load in LOADS:
        rows = paper.table[load]
        for field, told, place in (
            ("ttft_ms", "TTFT", "VI-B6 consistently lower TTFT"),
            ("itl_ms", "ITL", "VI-B6 consistently lower ITL"),
            ("itl_cv", "ITL CV", "VII lowest CV"),
        ):
            own = getattr(rows["TWP"], field)
            better = [n for n in rows if n != "TWP" and getattr(rows[n], field) < own]
            if better:
                losses.append(f"{told} {load}: {', '.join(better)}")
                places.append(f"{place} {load}")
    if not losses:
        return None
    itls = [row.itl_ms for rows in paper.table.values() for row in rows.values()]
    return Contradiction(
        "consistently best",
        "TWP is said to have consistently lower latency and the lowest ITL variability; in the "
        "table "
        f"others are lower ({'; '.join(losses)}). All ITLs of the table lie within "
        f"{max(itls) / min(itls) - 1:.1%} of each other.",
        tuple(places),
    )


def identical_rows(paper: Published) -> Contradiction | None:
    """Two schedulers with one throughput to the last digit, in all workloads."""
    if any(
        paper.table[load]["FCFS"].throughput_rps != paper.table[load]["DynBatch"].throughput_rps
        for load in LOADS
    ):
        return None
    return Contradiction(
        "one throughput for two schedulers",
        "FCFS and DynamicBatch have the same throughput to the second decimal in all four "
        "workloads "
        "and different P99 latencies in three: over ten runs of random traffic that is no "
        "measurement of two schedulers.",
        tuple(f"Table throughput {load} {name}" for load in LOADS for name in ("FCFS", "DynBatch")),
    )
