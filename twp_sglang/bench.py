"""Load generator: ``python -m twp_sglang.bench run`` and ``... compare``."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from twp_sglang.benchmarking.arguments import build_parser, settings_from
from twp_sglang.benchmarking.compare_command import compare
from twp_sglang.benchmarking.run_command import RunError, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status (2 for bad input)."""
    arguments_given = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    arguments = parser.parse_args(arguments_given)
    console = Console()
    try:
        if arguments.command == "compare":
            png = None if arguments.no_png else arguments.png
            return compare(arguments.files, png, console, arguments.slo)
        command = shlex.join(["python", "-m", "twp_sglang.bench", *arguments_given])
        return asyncio.run(run(settings_from(arguments), console, command))
    except (RunError, ValueError, OSError) as error:
        print(f"{parser.short_name} {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before anything was measured", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
