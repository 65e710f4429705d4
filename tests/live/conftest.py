"""What needs a browser, and the routes that need SGLang's web framework."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from chromium import browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason where the machine lacks what the test needs."""
    no_engine = importlib.util.find_spec("sglang") is None
    no_browser = browser() is None
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if no_engine:
            item.add_marker(pytest.mark.skip(reason="needs the engine-cpu extra"))
        elif no_browser and item.path.name == "test_live_page.py":
            item.add_marker(
                pytest.mark.skip(reason="needs a Chromium (Debian: apt-get install chromium)")
            )


if importlib.util.find_spec("sglang") is None:
    # They import the routes, which import SGLang's web framework.
    collect_ignore = ["small_server.py", "test_live_page.py", "test_routes.py", "test_top.py"]
