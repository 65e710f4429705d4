"""The step trace of a simulated engine, in the schema that the server writes.

Unlike the server's writer this one drops nothing and puts no date into the header: equal
runs write equal bytes.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from controllers.step_trace import Header
from twp_sglang.config import TwpConfig
from twp_sglang.line_file import LineFile
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.trace import StepRecord

ENGINE_NAME = "twp-simulator"


class StepFile(LineFile):
    """Writes one engine's records; a context manager and a
    :class:`~twp_sglang.simulator.policy_driver.StepSink`."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open ``path``.

        Raises:
            OSError: it cannot be created.
        """
        super().__init__(path, "w")
        self.written = 0
        self._write(header.model_dump_json(by_alias=True))

    def put(self, record: StepRecord) -> None:
        """Write one record."""
        self._write(record.line())
        self.written += 1


def header_for(settings: EngineSettings, config: TwpConfig, step_model: str) -> Header:
    """First line of a trace: what was simulated. The times come from a model, so the
    header says emulated."""
    return Header(
        engine=ENGINE_NAME,
        engine_version=metadata.version("twp-sglang"),
        model=step_model,
        emulated=True,
        kv_capacity_tokens=settings.kv_tokens // settings.page_size * settings.page_size,
        page_size=settings.page_size,
        overlap=settings.overlap,
        config=config.model_dump(mode="json"),
    )


def replica_path(path: Path, replica: int, replicas: int) -> Path:
    """``path`` for a single engine; ``name-3.jsonl`` for the fourth of several."""
    if replicas == 1:
        return path
    return path.with_name(f"{path.stem}-{replica}{path.suffix}")
