"""Calibration: ``python -m twp_sglang.calibrate``, the profile for ``--twp-profile``."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from twp_sglang.calibration.arguments import PROG, settings_from
from twp_sglang.calibration.errors import EXIT_FAILED, CalibrationError
from twp_sglang.calibration.run import calibrate

_SECRETS = ("--api-key", "--admin-api-key")


def _shown(words: Sequence[str]) -> str:
    """The command line for the profile, without the keys of a launched server."""
    shown, hide = [], False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = flag in _SECRETS
        shown.append("..." if hide else f"{flag}=..." if secret and equals else word)
        hide = secret and not equals
    return f"{PROG} {shlex.join(shown)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0 measured, 1 in part or not, 2 bad input."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        settings = settings_from(given)
        return asyncio.run(calibrate(settings, Console(), _shown(given)))
    except CalibrationError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:  # before the run handles it itself
        print("calibrate: interrupted before anything was measured", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
