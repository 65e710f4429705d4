"""The server's processes as the operating system sees them: memory, handles, life."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

_LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
MIB = 2**20


class Reading(NamedTuple):
    """One process at one moment."""

    at_s: float
    rss_mib: float
    handles: int
    threads: int


def launcher_at(url: str) -> int | None:
    """Process id of whoever listens at ``url`` on this machine; None where nobody can be seen."""
    parts = urlsplit(url)
    if parts.hostname not in _LOCAL:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.suppress(psutil.AccessDenied, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return int(connection.pid)
    return None


class ProcessWatch:
    """Readings of one launcher and everything it started.

    Raises:
        psutil.NoSuchProcess: from the constructor, where there is no such launcher.
    """

    def __init__(self, launcher_pid: int) -> None:
        self._launcher = psutil.Process(launcher_pid)
        self._known: dict[int, psutil.Process] = {}
        self._noted: set[int] = set()
        self.names: dict[int, str] = {}
        self.readings: dict[int, list[Reading]] = {}
        self.ended: list[str] = []
        """Processes that ended or became zombies while they were watched."""

    def read(self, at_s: float) -> None:
        """Take one reading of every process; those that are gone are noted."""
        present = [self._launcher]
        with contextlib.suppress(psutil.Error):
            present += self._launcher.children(recursive=True)
        for process in present:
            if process.pid not in self._noted:
                self._known.setdefault(process.pid, process)
        for pid, process in list(self._known.items()):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    raise psutil.ZombieProcess(pid)
                with process.oneshot():
                    reading = Reading(
                        at_s,
                        process.memory_info().rss / MIB,
                        process.num_fds(),
                        process.num_threads(),
                    )
                    self.names.setdefault(pid, _name_of(process))
            except (psutil.ZombieProcess, psutil.NoSuchProcess) as error:
                what = "zombie" if isinstance(error, psutil.ZombieProcess) else "ended"
                if self.names.get(pid):
                    self.ended.append(f"{self.names[pid]} (pid {pid}): {what} at {at_s:.0f} s")
                self._noted.add(pid)
                del self._known[pid]
                continue
            except psutil.AccessDenied:
                self._noted.add(pid)
                del self._known[pid]
                continue
            self.readings.setdefault(pid, []).append(reading)

    def left_over(self, wait_s: float) -> list[str]:
        """Processes still there ``wait_s`` after the server was told to end."""
        end = time.monotonic() + wait_s
        while True:
            alive = [process for process in self._known.values() if process.is_running()]
            if not alive or time.monotonic() > end:
                return [f"{self.names.get(p.pid, '?')} (pid {p.pid})" for p in alive]
            time.sleep(0.1)


def _name_of(process: psutil.Process) -> str:
    """What a person calls it: SGLang names its own; the launcher by its module."""
    words = process.cmdline()
    if words and words[0].startswith("sglang::"):
        return str(words[0])
    if "-m" in words[:-1]:
        return str(words[words.index("-m") + 1])
    return f"{process.name()} (helper)"
