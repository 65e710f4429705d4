"""Links between documents lead somewhere; those to other places are not followed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import NAMES, exists, links, prose, read
from markdown.extensions.toc import slugify

from tools.structure import ROOT


def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+?)\s*$", prose(path.read_text(encoding="utf-8")), flags=re.M)


def of_the_site(heading: str) -> str:
    return slugify(re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading), "-")


def of_github(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)|\[", "", heading).lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = ROOT / name
    broken = []
    for link in links(read(name)):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not exists(file):
            broken.append(link)
        elif anchor:
            slugs = {
                way: {slug(text) for text in headings(file)}
                for way, slug in (("site", of_the_site), ("GitHub", of_github))
            }
            broken += [f"{link} ({way})" for way, found in slugs.items() if anchor not in found]
    assert broken == []


@pytest.mark.parametrize("name", NAMES)
def test_no_two_headings_share_an_anchor(name: str) -> None:
    slugs = [of_the_site(text) for text in headings(ROOT / name)]
    linked = {link.partition("#")[2] for other in NAMES for link in links(read(other))}
    assert [s for s in set(slugs) if slugs.count(s) > 1 and s in linked] == []
