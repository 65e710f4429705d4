"""Soak a server and judge its invariants: ``python -m twp_sglang.soak`` (docs/soak.md)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from twp_sglang.atomic_write import write_text
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port
from twp_sglang.soaking import report
from twp_sglang.soaking.arguments import SettingsError, parse
from twp_sglang.soaking.invariants import judge
from twp_sglang.soaking.run import Soak, SoakError
from twp_sglang.soaking.settings import SoakSettings

_START_S = 600.0
"""A large model loads for minutes."""

_GONE_WITHIN_S = 10.0
"""After the launcher's end, its children's."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see ``--help`` for the exit codes."""
    try:
        asked = parse(sys.argv[1:] if argv is None else argv)
    except SettingsError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    try:
        if asked.serve is None:
            return asyncio.run(_soak_running(asked.settings))
        return asyncio.run(_soak_started(asked.settings, asked.serve, asked.log))
    except (SoakError, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
    except ServerFailed as error:
        print(f"soak: {error}\n{error.tail}", file=sys.stderr)
    except KeyboardInterrupt:
        print("soak: interrupted before it was judged", file=sys.stderr)
        return 130
    return 2


async def _soak_running(settings: SoakSettings) -> int:
    soak = Soak(settings, _say)
    await soak.run()
    return _tell(soak)


async def _soak_started(settings: SoakSettings, flags: list[str], log: Path) -> int:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = await ServerProcess.start(
        [*flags, "--host", "127.0.0.1", "--port", str(port)], url, log
    )
    soak = Soak(settings.model_copy(update={"url": url}), _say)
    try:
        await server.ready(_START_S, lambda waited_s, line: None)
        await soak.run()
    finally:
        await server.ask_to_end()
        # Before stop(), which kills whatever is left.
        if soak.watch is not None:
            soak.record.left_over = soak.watch.left_over(_GONE_WITHIN_S)
            soak.record.exit_code = server.exit_code
        await server.stop()
    return _tell(soak)


def _tell(soak: Soak) -> int:
    findings = judge(soak.record, soak.settings)
    about = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(soak.seconds, 1),
        "rate_rps": round(soak.rate_rps, 3),
    }
    if soak.settings.json_path is not None:
        result = report.as_json(soak.record, soak.settings, findings, about)
        write_text(soak.settings.json_path, json.dumps(result, indent=2) + "\n")
    print(report.as_text(soak.record, soak.settings, findings, about), flush=True)
    return 1 if report.violated(findings) else 0


def _say(text: str) -> None:
    print(f"soak: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
