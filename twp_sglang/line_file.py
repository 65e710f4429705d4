"""A text file that is written line by line and closed at the end of its ``with`` block."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self


class LineFile:
    """Base of the files that a run appends to as it goes."""

    def __init__(self, path: Path, mode: Literal["w", "a"]) -> None:
        """Begin ``path`` anew (``w``) or go on at its end (``a``).

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self._file = path.open(mode, encoding="utf-8")

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
