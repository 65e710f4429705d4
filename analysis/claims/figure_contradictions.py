"""Contradictions of the figures, their text and the parameters of sections V and VI-A."""

from __future__ import annotations

import math

import numpy as np

from analysis.claims.contradiction import Contradiction
from analysis.claims.published import LOADS, Load, Published

PCIE3_GB_PER_S = 15.75
"""PCIe 3.0 x16, the V100's bus: no checkpoint reaches the GPU faster."""

WEIGHTS_GB = 6.4
"""Llama-3.2-3B: 3.2 billion weights of two bytes."""

_ROUNDING_MS = 0.5
"""Fig. 5 prints whole milliseconds."""


def arrivals(paper: Published) -> Contradiction | None:
    """Rate times time against the number of requests."""
    expected = paper.arrival_rps * paper.arrival_span_s
    if expected <= 1.2 * paper.requests:
        return None
    return Contradiction(
        "arrivals",
        f"Poisson arrivals at {paper.arrival_rps:g} req/s over {paper.arrival_span_s:g} s are "
        f"{expected:,.0f} requests, not up to {paper.requests}.",
        (),
    )


def fig2_axis(paper: Published) -> Contradiction | None:
    """Fig. 2's ITL against every other ITL."""
    lowest = min(row.itl_ms for rows in paper.table.values() for row in rows.values())
    top = paper.fig2_axis_ms[1]
    if lowest <= top:
        return None
    return Contradiction(
        "Fig. 2 axis",
        f"Fig. 2 measures ITL on the platform at up to {top:g} ms, at three times B0; every other "
        f"ITL of the paper is {lowest:.4g} ms or more. (Its caption is that of Fig. 4.)",
        ("Fig. 2",),
    )


def spikes(paper: Published) -> Contradiction | None:
    """A P99 above the maximum."""
    found = [
        (name, paper.fig5_ttft_ms[name].p99, spike)
        for name, spike in paper.fig4_spike_ms.items()
        if paper.fig5_ttft_ms[name].p99 - _ROUNDING_MS > spike
    ]
    if not found:
        return None
    told = "; ".join(f"{name}: P99 {p99:g} ms, spikes up to {top:g} ms" for name, p99, top in found)
    return Contradiction(
        "P99 above the maximum",
        f"The P99 TTFT of Fig. 5 exceeds the largest TTFT of Fig. 4: {told}.",
        tuple(f"Fig. 4 {name}" for name, _, _ in found),
    )


def chunked_prefill(paper: Published) -> Contradiction | None:
    """TTFT of equation (1) with chunks of C against the TTFT shown for TWP."""
    itl = paper.fig7_twp_ms[0]
    lengths = np.concatenate([np.arange(p.low, p.high + 1) for p in paper.prompts])
    weights = np.concatenate(
        [np.full(p.high - p.low + 1, p.probability / (p.high - p.low + 1)) for p in paper.prompts]
    )
    least = np.ceil(lengths / paper.chunk_tokens) * itl
    order = np.argsort(least)
    upto = np.cumsum(weights[order])
    shown = paper.fig5_ttft_ms["TWP"]
    parts = []
    for name, share, value in (
        ("P50", 0.50, shown.p50),
        ("P95", 0.95, shown.p95),
        ("P99", 0.99, shown.p99),
    ):
        bound = float(least[order][np.searchsorted(upto, share)])
        if value + _ROUNDING_MS < bound:
            parts.append(f"{name} at least {bound:.0f} ms (Fig. 5: {value:g})")
    table = [
        paper.table[load]["TWP"].ttft_ms
        for load in LOADS
        if paper.table[load]["TWP"].ttft_ms < _least_table_ttft_ms(paper, load)
    ]
    if not parts and not table:
        return None
    bound = min(_least_table_ttft_ms(paper, load) for load in LOADS)
    also = (
        f" The four workloads' prompts need {bound:.0f} ms on average; the table shows "
        f"{min(table):.4g} to {max(table):.4g} ms."
        if table
        else ""
    )
    return Contradiction(
        "TTFT below its own equation",
        f"By equation (1) a prompt of p tokens takes ceil(p/{paper.chunk_tokens}) steps of ITL. "
        "With "
        f"the prompts of VI-A and an ITL of {itl:g} ms TTFT is {', '.join(parts)} for TWP even "
        f"without any waiting.{also}",
        ("Fig. 4 TWP", "Fig. 5 TWP", *(f"Table TTFT {load} TWP" for load in LOADS)),
    )


def _least_table_ttft_ms(paper: Published, load: Load) -> float:
    steps = sum(
        p * math.ceil(n / paper.chunk_tokens)
        for p, n in zip(paper.table_probabilities, paper.table_prompts, strict=True)
    )
    return steps * paper.table[load]["TWP"].itl_ms


def cold_starts(paper: Published) -> Contradiction | None:
    """Start-up of containers against the largest TTFT shown."""
    largest = max(
        *paper.fig4_spike_ms.values(), *(tail.p99 for tail in paper.fig5_ttft_ms.values())
    )
    load_ms = WEIGHTS_GB / PCIE3_GB_PER_S * 1e3
    if largest >= load_ms:
        return None
    return Contradiction(
        "no cold start in any figure",
        f"A cold container loads {WEIGHTS_GB:.1f} GB of weights: {load_ms:.0f} ms over the "
        "V100's bus "
        f"from memory at best. The largest TTFT shown is {largest:g} ms, so no cold start is in "
        "any "
        "figure, although equation (1) charges it and the pool is what all schedulers share.",
        (),
    )


def tail_ttft(paper: Published) -> Contradiction | None:
    """The tail TTFT that TWP is said to reduce."""
    own = paper.fig5_ttft_ms["TWP"].p99
    better = [
        f"{name} {tail.p99:g}"
        for name, tail in paper.fig5_ttft_ms.items()
        if name != "TWP" and tail.p99 < own
    ]
    if not better:
        return None
    low, high = paper.tail_ttft_reduction
    return Contradiction(
        "tail TTFT",
        f"Section VII claims a tail TTFT {low:.0%} to {high:.0%} lower; in Fig. 5 TWP's P99 is "
        f"{own:g} "
        f"ms and that of {', '.join(better)} ms is lower.",
        ("VII tail TTFT",),
    )


def serial_service(paper: Published) -> Contradiction | None:
    """Fig. 6 against serving one request at a time, and against the arrivals."""
    serial = 1e3 / (paper.mean_output_by_h0_tokens * paper.fig7_twp_ms[1])
    most = max(paper.fig6_throughput_rps.values())
    if most >= serial:
        return None
    return Contradiction(
        "slower than one at a time",
        f"One request after the other, {paper.mean_output_by_h0_tokens:g} tokens each at "
        f"{paper.fig7_twp_ms[1]:g} ms, gives {serial:.2f} req/s; Fig. 6 shows {most:g} at most, "
        "while "
        f"{paper.arrival_rps:g} arrive per second. The {paper.requests} requests would take "
        f"{paper.requests / most / 60:.0f} minutes, and a TTFT near 50 ms could be had by the "
        "first "
        "few only.",
        ("Fig. 6",),
    )


def flat_itl(paper: Published) -> Contradiction | None:
    """Little's law at the arrival rate against an ITL at its floor."""
    itl_s = paper.fig7_twp_ms[1] / 1e3
    batch = paper.arrival_rps * paper.mean_output_by_h0_tokens * itl_s
    if batch <= paper.b0:
        return None
    return Contradiction(
        "ITL at its floor far above B0",
        f"At {paper.arrival_rps:g} req/s of {paper.mean_output_by_h0_tokens:g} tokens (H0/B0) and "
        f"{paper.fig7_twp_ms[1]:g} ms per token {batch:.0f} requests decode at once (Little's "
        "law), "
        f"{batch / paper.b0:.1f} times B0, where equation (2) has ITL rise; Fig. 7 shows it "
        "within 2 % "
        "of its least value. Either they were not served at that rate, or B0 is not 8.",
        ("Fig. 7", "Fig. 8"),
    )


def cv_figures(paper: Published) -> Contradiction | None:
    """Text of Fig. 8 against the figure."""
    differ = [
        f"{name} {told:g} in the text, {paper.fig8_itl_cv[name]:g} in the figure"
        for name, told in paper.text_itl_cv.items()
        if not math.isclose(told, paper.fig8_itl_cv[name], abs_tol=5e-5)
    ]
    if not differ:
        return None
    lower = [
        f"{name} ({value:g})"
        for name, value in paper.fig8_itl_cv.items()
        if name != "TWP" and value < paper.fig8_itl_cv["TWP"]
    ]
    also = f" In the figure {', '.join(lower)} is lower than TWP." if lower else ""
    return Contradiction(
        "ITL CV in text and figure",
        f"{'; '.join(differ)}.{also}",
        ("Fig. 8", "VI-B5 lowest CV"),
    )
