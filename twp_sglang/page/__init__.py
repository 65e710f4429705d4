"""The live page: static files without a build step, served by the server at /twp.

uPlot is vendored (static/uplot.*; licence and version beside it).
"""

from __future__ import annotations

import functools
from importlib.resources import files as resources
from typing import NamedTuple

HEADERS = {
    "Cache-Control": "no-cache",
    # Nothing from elsewhere, nothing inline, and nobody may frame the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Sent with every file."""

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


class File(NamedTuple):
    """One file of the page."""

    content: bytes
    media_type: str


@functools.cache
def files() -> dict[str, File]:
    """All files by name, read once."""
    found = {}
    for entry in resources(__package__).joinpath("static").iterdir():
        kind = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            found[entry.name] = File(entry.read_bytes(), kind)
    return found
