"""``python -m twp_sglang.profile_step``: how long a step takes here, with nothing but torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from twp_sglang.profiling.arguments import PROG, settings_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is told in ``--help``."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        settings = settings_from(words)
    except ValueError as error:
        return _refuse(str(error))
    if settings.backend == "flashinfer":
        # Before torch is imported: graphs of many shapes fragment a fixed-size arena.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    try:
        from twp_sglang.profiling.run import profile
        from twp_sglang.profiling.screen import show
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _refuse("torch is not installed: pip install torch")
    from rich.console import Console

    def say(line: str) -> None:
        print(f"profile_step: {line}", file=sys.stderr, flush=True)

    try:
        status, found = profile(settings, shlex.join([*PROG.split(), *words]), say)
    except OSError as error:
        return _refuse(f"--out {settings.out}: {error}")
    if found is not None and found.measured:
        show(Console(), found)
        if found.fit is not None:
            print(f"step model  {settings.out}")
        print(f"step trace  {settings.trace}")
    return status


def _refuse(message: str) -> int:
    print(f"profile_step: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
