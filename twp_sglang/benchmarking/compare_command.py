"""``bench compare``: several runs beside the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from twp_sglang.benchmarking.cautions import SMALL_N
from twp_sglang.benchmarking.results import RunReport, read_report
from twp_sglang.benchmarking.tables import comparison_table
from twp_sglang.latency_metrics import Slo, summarise

_ABOUT_RATIOS = (
    "Ratios are to the first run. The interval is a 95 % bootstrap over requests: it covers which "
    "requests were drawn, not how a run differs from its repetition. Green and red mark intervals "
    "that exclude 1."
)


def compare(
    paths: Sequence[Path], png: Path | None, console: Console, slos: tuple[Slo, ...] = ()
) -> int:
    """Print the comparison of the runs in ``paths`` and draw it.

    Args:
        paths: result files, the base first.
        png: where to draw; None draws nothing.
        console: where the user looks.
        slos: judge every run by these instead of its own.

    Returns:
        0; unlike workloads are warned of, not refused.

    Raises:
        ValueError: a file is no result of ``bench run``.
        OSError: the PNG cannot be written.
    """
    reports = [_judged(read_report(path), slos) for path in paths]
    names = run_names(reports, paths)
    console.print(comparison_table(reports, names))
    if len(reports) > 1:
        console.print(_ABOUT_RATIOS, style="dim", highlight=False)
    for warning in warnings(reports, names):
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False)
    for report, name in zip(reports, names, strict=True):
        for caution in report.summary.cautions:
            console.print(
                f"[yellow]note:[/yellow] {escape(name)}: {escape(caution)}", highlight=False
            )
    if png is not None:
        from twp_sglang.benchmarking.figures import draw  # matplotlib takes a second to load

        draw(reports, names, png)
        console.print(f"figure: {escape(str(png))}", highlight=False, soft_wrap=True)
    return 0


def _judged(report: RunReport, slos: tuple[Slo, ...]) -> RunReport:
    if not slos:
        return report
    times = [record.token_times() for record in report.requests]
    latency = summarise(times, report.summary.latency.duration_s, slos)
    return report.model_copy(
        update={
            "header": report.header.model_copy(update={"slos": slos}),
            "summary": report.summary.model_copy(update={"latency": latency}),
        }
    )


def run_names(reports: Sequence[RunReport], paths: Sequence[Path]) -> list[str]:
    """A name for each run: its label, and the file where labels coincide."""
    labels = Counter(report.header.label for report in reports)
    names = [
        report.header.label if labels[report.header.label] == 1 else path.stem
        for report, path in zip(reports, paths, strict=True)
    ]
    repeated = Counter(names)
    return [
        name if repeated[name] == 1 else f"{name} #{place}"
        for place, name in enumerate(names, start=1)
    ]


def warnings(reports: Sequence[RunReport], names: Sequence[str]) -> list[str]:
    """Why the runs may not be compared, or not far."""
    base, found = reports[0], []
    for report, name in zip(reports[1:], names[1:], strict=True):
        unlike = _differences(base, report)
        if unlike:
            found.append(f"{name} is not comparable with {names[0]}: {'; '.join(unlike)}.")
    small = [
        f"{name} ({report.summary.completed})"
        for report, name in zip(reports, names, strict=True)
        if report.summary.completed < SMALL_N
    ]
    if small:
        found.append(
            f"few completed requests in {', '.join(small)}: below {SMALL_N}, differences in P99 "
            "are mostly chance. Repeat with more requests and several seeds."
        )
    if any(report.header.server.emulated for report in reports):
        found.append("a server emulated its step times: these are not timings of hardware.")
    return found


def _differences(base: RunReport, other: RunReport) -> list[str]:
    ours, theirs = base.header, other.header
    found = []
    work, work_there = ours.workload, theirs.workload
    if work.fingerprint != work_there.fingerprint:
        fields = ("name", "source", "requests", "rate_rps", "bursts", "input_tokens",
                  "output_tokens", "arrivals")  # fmt: skip
        changed = [
            f"{field} {getattr(work, field)} against {getattr(work_there, field)}"
            for field in fields
            if getattr(work, field) != getattr(work_there, field)
        ]
        if ours.seed != theirs.seed:
            changed.append(f"seed {ours.seed} against {theirs.seed}")
        found.append(f"different workloads ({', '.join(changed) or 'other arrivals or lengths'})")
    for label, one, two in (
        ("model", ours.server.model, theirs.server.model),
        ("API", ours.api, theirs.api),
        ("prompts", work.prompts, work_there.prompts),
        ("ignore_eos", work.ignore_eos, work_there.ignore_eos),
        ("SLOs", _slos(base), _slos(other)),
        ("emulated", ours.server.emulated, theirs.server.emulated),
        ("concurrency cap", ours.concurrency_cap, theirs.concurrency_cap),
    ):
        if one != two:
            found.append(f"{label} {one} against {two}")
    return found


def _slos(report: RunReport) -> str:
    return ", ".join(f"{slo.metric}={slo.limit_ms:g}ms" for slo in report.header.slos) or "none"
