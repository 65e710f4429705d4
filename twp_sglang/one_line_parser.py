"""An argument parser that says what is wrong in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from twp_sglang.one_line import one_line

EXIT_BAD_ARGUMENTS = 2
_MESSAGE_CHARACTERS = 1000
"""Above the longest list of choices that a command has; what was given may be of any length."""


class OneLineParser(argparse.ArgumentParser):
    """Exits 2 with one line on bad arguments, without the usage that would bury it."""

    @property
    def short_name(self) -> str:
        """What the command's messages begin with: ``bench run`` of ``python -m twp_sglang.bench
        run``."""
        return self.prog.rpartition(".")[2]

    def error(self, message: str) -> NoReturn:
        """Print ``message`` and exit."""
        told = one_line(message, _MESSAGE_CHARACTERS)
        self.exit(
            EXIT_BAD_ARGUMENTS, f"{self.short_name}: error: {told} (see {self.prog} --help)\n"
        )
