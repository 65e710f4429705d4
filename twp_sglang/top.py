"""``python -m twp_sglang.top [URL]``: a running server in the terminal, and why requests wait."""

from __future__ import annotations

import sys

from twp_sglang.terminal.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
