"""Runs a command of this package as a child that does not outlive us."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from twp_sglang.serving.child import die_with_parent

_TAIL_CHARACTERS = 2000


class Ended(NamedTuple):
    """How a command ended: its exit status and the last of what it wrote."""

    status: int
    tail: str

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it wrote nothing"


async def run_module(module: str, words: Sequence[str], log: Path, limit_s: float) -> Ended:
    """Run ``python -m module words`` with its output in ``log``.

    Raises:
        TimeoutError: it took longer than ``limit_s``, and was ended.
        OSError: the log cannot be written.
    """
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        try:
            async with asyncio.timeout(limit_s):
                status = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    return Ended(status, log.read_text("utf-8", errors="replace")[-_TAIL_CHARACTERS:])
