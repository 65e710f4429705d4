"""Why a calibration ended without the result that was asked for."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class CalibrationError(Exception):
    """The message is for the person who started it; ``status`` is the exit status.

    2 for what the person has to change (arguments, server), 1 for what went wrong while
    measuring.
    """

    def __init__(self, message: str, status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.status = status


def usage(message: str) -> CalibrationError:
    """An error of what was asked."""
    return CalibrationError(message, EXIT_USAGE)
