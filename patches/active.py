"""The runtime of this process, for hooks that SGLang calls without a scheduler at hand."""

from __future__ import annotations

from patches.runtime import Runtime

_runtime: Runtime | None = None


def install(runtime: Runtime) -> None:
    """Make ``runtime`` the one that the hooks of this process call.

    Raises:
        RuntimeError: there is one already; a process holds one scheduler.
    """
    global _runtime
    if _runtime is not None:
        raise RuntimeError("TWP already steers a scheduler in this process")
    _runtime = runtime


def steering() -> Runtime | None:
    """The runtime, or None when TWP does not decide (yet, or any more)."""
    return _runtime if _runtime is not None and _runtime.deciding else None


def installed() -> Runtime | None:
    """The runtime, also after it fell back to stock scheduling."""
    return _runtime
