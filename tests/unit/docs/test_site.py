"""The documentation site builds in strict mode; its numbers are still those of the simulator."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import pictures
from tools.structure import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runbook.html").stat().st_size > 10_000
    fetched = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(?:https?:)?//", re.I)
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), f"{page.name} fetches"


def test_the_burst_in_the_documents_is_still_what_the_simulator_says(tmp_path: Path) -> None:
    text = pictures.DOCUMENT.read_text(encoding="utf-8")
    shown = text.partition(pictures.BEGIN)[2].partition(pictures.END)[0]
    found = pictures.runs()
    for old, new in zip(rows(shown), rows(pictures.table(found)), strict=True):
        assert old[0] == new[0]
        # Room for changes of a policy that readers would not notice.
        assert old[1] == pytest.approx(new[1], rel=0.15), "run python -m tools.pictures"
    pictures.draw_burst(found, tmp_path / "burst.png")
    pictures.draw_window(found["twp"], tmp_path / "window.png")
    for name in ("burst.png", "window.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (pictures.IMAGES / name).stat().st_size < 200_000


def rows(table: str) -> list[tuple[str, list[float]]]:
    """Name and numbers of each row below the head."""
    lines = [line for line in table.strip().splitlines() if line.startswith("|")][2:]
    assert len(lines) == 3
    return [
        (
            line.split("|")[1].strip(),
            [float(re.sub(r"[^\d.]", "", cell)) for cell in line.split("|")[2:-1]],
        )
        for line in lines
    ]
