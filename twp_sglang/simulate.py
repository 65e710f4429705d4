"""Simulator: ``python -m twp_sglang.simulate``."""

from __future__ import annotations

import sys

from twp_sglang.simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
