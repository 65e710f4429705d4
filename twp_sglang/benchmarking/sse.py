"""Server-sent events, the part of the WHATWG format that token streams use."""

from __future__ import annotations


class SseDecoder:
    """Turns network reads, cut anywhere, into the data of whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take one network read; return the data of every event it completed.

        Comments, event names and ids are skipped; several ``data:`` lines of one event
        are joined with a newline.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events
