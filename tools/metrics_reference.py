"""Writes docs/metrics.md from the table of exported metrics.

``python -m tools.metrics_reference`` rewrites the file, ``--check`` exits 1 where it is out of
date. Nothing in that file is written by hand.
"""

from __future__ import annotations

import argparse
import sys

from patches.metrics.definitions import METRICS
from tools.flags_reference import cell
from tools.structure import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"

_HEAD = """\
# Metrics

Generated from the code by `python -m tools.metrics_reference`: do not edit.

With `--enable-metrics`, in SGLang's `/metrics` beside its `sglang:` metrics and with its labels.
Times are seconds. `dashboards/twp.json` is a Grafana dashboard of all of them,
`dashboards/alerts.yml` the alerts of the [runbook](runbook.md).

Rank 0 of each data-parallel replica exports, at most four times a second: 0.3 ms each on one busy
core, and one to two microseconds in every step (`benchmarks.decision_cost --metrics`).

Inter-token latency is there twice, every gap counted once. `twp_scheduler_itl_seconds` is from the
scheduler's own steps; `sglang:inter_token_latency_seconds` is measured where SGLang's HTTP process
hands tokens to clients (answers that are not streamed reach it in portions, over which gaps are
averaged). The policy can hold the first; what the second has more is made by detokenizer and HTTP
process.

`twp_refusals_total` counts what the scheduler refused; 400 and 503 of the HTTP process itself are
in `sglang:http_responses_total`.

| name | kind | label | meaning |
|---|---|---|---|
"""


def document() -> str:
    """The whole file."""
    rows = [
        f"| `{metric.exported}` | {metric.kind} | {f'`{metric.label}`' if metric.label else ''} "
        f"| {cell(metric.text)} |"
        for metric in METRICS
    ]
    return _HEAD + "\n".join(rows) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tools.metrics_reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    asked = parser.parse_args(argv)
    if asked.check:
        if not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != document():
            print(
                "docs/metrics.md is out of date: python -m tools.metrics_reference", file=sys.stderr
            )
            return 1
        return 0
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
