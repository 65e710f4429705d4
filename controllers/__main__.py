"""``python -m controllers COMMAND``: dispatch to the modules of :mod:`controllers.cli`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, what shells report for a command that Ctrl-C ended."""

COMMANDS = {
    "equilibrium": "where the loop comes to rest",
    "margins": "stability, gain, phase and disk margin",
    "stability-map": "stability over window gain and filter weight",
    "step": "simulate a burst or a start from rest",
    "identify": "models from a step trace, with confidence intervals",
    "tune": "safe gains and clamps from a step trace",
    "report": "one page and pictures from a step trace or a model",
}


class OneLineParser(argparse.ArgumentParser):
    """Reports bad arguments in one line instead of usage and line."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` and exit with 2."""
        self.exit(EXIT_BAD_INPUT, f"error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 on bad input with one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = OneLineParser(
        prog="python -m controllers",
        description="The token window as a feedback loop: analysed, identified and tuned.",
    )
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    module = None
    for name, summary in COMMANDS.items():
        # Only the chosen command's module is imported: the others' dependencies are slow.
        if name == chosen:
            module = importlib.import_module(f"controllers.cli.{name.replace('-', '_')}")
            module.add_parser(sub)
        else:
            sub.add_parser(name, help=summary)
    args = parser.parse_args(arguments)
    assert module is not None, "argparse refuses what COMMANDS does not list"
    from controllers.cli.common import CommandError

    try:
        code: int = module.run(args)
        sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        # The reader (head, less) has gone; keep the interpreter's exit flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run_until_interrupted() -> int:
    """:func:`main` for a terminal: Ctrl-C, in slow imports too, is one line and exit 130."""
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(run_until_interrupted())
