"""SIGTERM while the server starts.

SGLang sets its own handler once it serves. Before that a SIGTERM would end the launcher on
the spot, and a child that is still importing has not asked yet to die with its parent: it
would stay behind for good.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn


def leave_on_sigterm() -> None:
    """From here on SIGTERM raises ``SystemExit`` in the main thread, so that whoever started
    children ends them on the way out; until somebody sets another handler. Elsewhere than in
    the main thread nothing happens: only there can handlers be set."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
