"""One running server per module, on the tiny random model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.engine_cpu.server import tiny_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts an engine."""
    missing = importlib.util.find_spec("sglang") is None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            if missing:
                item.add_marker(pytest.mark.skip(reason="needs the engine-cpu extra"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random model."""
    return tiny_model(tmp_path_factory.mktemp("model"))
