"""One server with a tokenizer for the files of this folder, the last of which ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_cpu.server import Server, serving, text_model
from tests.engine_cpu.text_server.one_server import (
    POOL_TOKENS,
    QUEUED,
    RUNNING,
    WIDE_TOKENS,
    TextServer,
)


@pytest.fixture(scope="package")
def text_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    folder = tmp_path_factory.mktemp("text")
    model = text_model(folder / "model")
    with serving(
        model,
        folder,
        *("--twp-policy", "twp", "--twp-queue-max-requests", str(QUEUED)),
        *("--twp-oversized", "refuse", "--twp-h0-tokens", str(WIDE_TOKENS)),
        *("--max-running-requests", str(RUNNING), "--max-total-tokens", str(POOL_TOKENS)),
        # Longer than the pool, so that the pool is what does not fit.
        *("--context-length", str(2 * POOL_TOKENS), "--enable-metrics", "--skip-server-warmup"),
        *("--grammar-backend", "xgrammar"),
        environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
        orderly=False,
    ) as running:
        yield TextServer(running, model)


@pytest.fixture
def server(text_server: TextServer) -> Server:
    return text_server.server
