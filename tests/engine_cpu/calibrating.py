"""Short calibrations of a real engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twp_sglang.calibration.profile import Profile, read_profile

SHORT = (
    "--batches", "1,2,4,8", "--steps", "60", "--rounds", "3", "--contexts", "32",
    "--budget-s", "60",
)  # fmt: skip


def calibrate(out: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], Profile]:
    """Run the command line; 1 is no failure here: a busy machine may hide the knee."""
    done = subprocess.run(
        [sys.executable, "-m", "twp_sglang.calibrate", "--out", str(out), *flags],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done, read_profile(out)


def medians(profile: Profile) -> dict[int, float]:
    """Fastest visit of each batch size: the one that neighbours disturbed least."""
    sizes = {point.batch for point in profile.decode_points}
    return {
        b: min(p.median_ms for p in profile.decode_points if p.batch == b) for b in sorted(sizes)
    }
