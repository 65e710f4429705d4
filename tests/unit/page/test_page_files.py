"""The page's files: all there, small, and with a word for everything that can happen."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from twp_sglang import page
from twp_sglang.scheduling.decision import ClosedReason, GrantReason
from twp_sglang.scheduling.explanation import Facts, hold
from twp_sglang.scheduling.overload import RefusalReason


def text(name: str) -> str:
    return page.files()[name].content.decode()


def test_what_the_page_refers_to_is_there_and_nothing_is_fetched_from_elsewhere() -> None:
    named = set(re.findall(r'"twp/static/([^"]+)"', text("index.html")))
    imported = {
        name
        for file in page.files()
        if file.endswith(".js")
        for name in re.findall(r'from "\./([^"]+)"', text(file))
    }
    assert {"page.js", "page.css", "uplot.js"} <= named
    assert named | imported <= set(page.files())
    for file in ("index.html", "page.css", "page.js", "charts.js", "stream.js", "words.js"):
        assert not re.search(r"(?:https?:)?//[a-z]", re.sub(r"// .*", "", text(file))), file
    assert sum(len(file.content) for file in page.files().values()) < 120_000


def test_the_vendored_library_has_its_licence_and_version() -> None:
    licence = text("uplot-license.txt")
    assert "MIT License" in licence
    version = re.match(r"uPlot (\d+\.\d+\.\d+) ", licence)
    assert version is not None
    assert f"v{version[1]}" in text("uplot.js")[:200]


@pytest.mark.parametrize("name", [*get_args(GrantReason), *get_args(RefusalReason), "engine"])
def test_every_reason_that_is_counted_has_words_on_the_page(name: str) -> None:
    assert re.search(rf'^  "?{name}"?: ', text("words.js"), flags=re.M)


@pytest.mark.parametrize("closed", [*get_args(ClosedReason), "engine"])
def test_every_hold_has_words(closed: str) -> None:
    said = hold(Facts("twp", True, 1, 1, closed))
    assert "the gate is shut (" not in said
    if closed:
        assert re.search(rf'^  "?{closed}"?: ', text("words.js"), flags=re.M)
