"""``python -m patches check [--wheel FILE] [--emulation]``: does TWP fit this SGLang?

Reads source text only: neither SGLang nor torch is imported. Exit code 0 if every hook
fits, 1 if one does not, 2 if there is nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from patches.sglang_0_5.versions import EMULATION_TABLES, HTTP_TABLES, TABLES, Verdict, judge
from patches.sources import InstalledSource, Source, SourceError, WheelSource


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m patches", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="judge SGLang's hooks without importing it")
    check.add_argument("--wheel", type=Path, metavar="FILE", help="judge this wheel instead")
    check.add_argument(
        "--emulation",
        action="store_true",
        help="judge the hooks of the emulated engine (--twp-emulate) instead",
    )
    check.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args(argv)
    try:
        source: Source = (
            WheelSource(arguments.wheel) if arguments.wheel is not None else InstalledSource()
        )
        asked = (EMULATION_TABLES,) if arguments.emulation else (TABLES, HTTP_TABLES)
        verdicts = [judge(source, tables) for tables in asked]
    except SourceError as error:
        print(f"patches: {error}", file=sys.stderr)
        return 2
    print(_as_json(verdicts) if arguments.json else _as_text(verdicts))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _as_text(verdicts: list[Verdict]) -> str:
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    lines = [
        f"{'ok  ' if finding.ok else 'FAIL'}  {finding.target}: {finding.detail}"
        for finding in findings
    ]
    verdict = verdicts[0]
    table = verdict.table
    lines.append(
        f"sglang {verdict.version}: {sum(f.ok for f in findings)} of {len(findings)} hooks fit"
    )
    if not verdict.tried:
        lines.append(
            f"note: tried on {table.first} to {table.last}; signatures decide, the number does not"
        )
    return "\n".join(lines)


def _as_json(verdicts: list[Verdict]) -> str:
    hooks = {hook.target: hook for verdict in verdicts for hook in verdict.table.hooks}
    return json.dumps(
        {
            "sglang": verdicts[0].version,
            "ok": all(verdict.ok for verdict in verdicts),
            "tried": all(verdict.tried for verdict in verdicts),
            "hooks": [
                {
                    **finding._asdict(),
                    "kind": hooks[finding.target].kind,
                    "replaces": hooks[finding.target].replaces,
                    "why": hooks[finding.target].why,
                    "until": hooks[finding.target].until,
                }
                for verdict in verdicts
                for finding in verdict.findings
            ],
        },
        indent=2,
    )


if __name__ == "__main__":
    sys.exit(main())
