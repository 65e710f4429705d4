"""What the tests of this folder know of their common server."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.engine_cpu.server import Server

RUNNING = 128
QUEUED = 96
POOL_TOKENS = 16_384
WIDE_TOKENS = 100_000


class TextServer(NamedTuple):
    """The server and the folder of its model."""

    server: Server
    model: Path
