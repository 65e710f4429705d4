"""The part of a document between two markers, written by a tool."""

from __future__ import annotations

from pathlib import Path


def renewed(document: str, name: Path, begin: str, end: str, section: str) -> str:
    """``document`` with ``section`` between its markers.

    Args:
        document: the text.
        name: file that it came from, for the error.
        begin: first marker.
        end: last marker.
        section: what goes between, line breaks beside the markers included.

    Raises:
        ValueError: the markers are missing.
    """
    head, found_begin, rest = document.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{name}: the markers {begin} and {end} are missing")
    return f"{head}{begin}{section}{end}{tail}"
