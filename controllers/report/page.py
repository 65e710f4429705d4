"""One self-contained HTML page: verdict, tables, pictures; no script, nothing to fetch."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Final

from controllers.report.verdict import Finding

_MARKS: Final = {"good": "OK", "warn": "Mind", "bad": "Stop", "note": "Note"}

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.6rem; margin: .5rem 0 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; border-bottom: 1px solid #ccc; }
.source { color: #555; margin: .2rem 0 1rem; }
.verdict { list-style: none; padding: 0; }
.verdict li { margin: .4rem 0; padding: .45rem .7rem; border-left: .35rem solid;
              background: #f6f6f6; }
.verdict b { display: inline-block; min-width: 3.2rem; }
.good { border-color: #009E73; } .warn { border-color: #E69F00; }
.bad { border-color: #D55E00; } .note { border-color: #999; }
figure { margin: .5rem 0 0; break-inside: avoid; }
img { width: 100%; height: auto; }
figcaption { color: #333; max-width: 46rem; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .95rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  .verdict li { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  h2 { break-after: avoid; }
}
</style>
</head>
<body>
<h1>$title</h1>
<p class="source">$source</p>
<ul class="verdict">
$verdict
</ul>
$tables
$sections
</body>
</html>
""")


@dataclass(frozen=True)
class Table:
    """A table with a heading, column names and rows of text."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A heading, what the picture shows in words, and the picture as PNG."""

    name: str
    heading: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Report:
    """Everything on the page."""

    title: str
    source: str
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    sections: tuple[Section, ...]


def render(report: Report) -> str:
    """The page as HTML text with the pictures inside."""
    return _PAGE.substitute(
        title=html.escape(report.title),
        source=html.escape(report.source),
        verdict="\n".join(
            f'<li class="{f.level}"><b>{_MARKS[f.level]}</b> {html.escape(f.text)}</li>'
            for f in report.findings
        ),
        tables="\n".join(_table(table) for table in report.tables),
        sections="\n".join(_section(section) for section in report.sections),
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "\n".join(f"<tr>{_cells(row)}</tr>" for row in table.rows)
    return (
        f"<h2>{html.escape(table.heading)}</h2>\n"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    def cell(text: str) -> str:
        numeric = text[:1].isdigit() or text[:1] == "-"
        return f"<td{' class=n' if numeric else ''}>{html.escape(text)}</td>"

    return "".join(cell(text) for text in row)


def _section(section: Section) -> str:
    data = base64.b64encode(section.png).decode("ascii")
    return (
        f'<h2 id="{section.name}">{html.escape(section.heading)}</h2>\n<figure>\n'
        f'<img alt="{html.escape(section.heading)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{html.escape(section.caption)}</figcaption>\n</figure>"
    )
