"""docs/flags.md and docs/metrics.md are what the code says."""

from __future__ import annotations

import re

from documents import NAMES, read

from patches.sglang_0_5.versions import TABLES
from tools import flags_reference, metrics_reference
from tools.command_lines import COMMANDS, parser_of
from twp_sglang.config import TwpConfig
from twp_sglang.serving.options import flag_of


def test_the_reference_is_up_to_date() -> None:
    text = flags_reference.DOCUMENT.read_text(encoding="utf-8")
    assert text == flags_reference.document(), "run python -m tools.flags_reference"


def test_the_list_of_metrics_is_up_to_date() -> None:
    text = metrics_reference.DOCUMENT.read_text(encoding="utf-8")
    assert text == metrics_reference.document(), "run python -m tools.metrics_reference"


def test_documents_that_show_the_log_show_as_many_hooks_as_there_are() -> None:
    count = len(TABLES[-1].hooks)
    shown = {n for name in NAMES for n in re.findall(r"(\d+ of \d+) hooks proved", read(name))}
    assert shown == {f"{count} of {count}"}


def test_every_field_stands_in_one_section() -> None:
    sections = flags_reference._sections()
    listed = [name for names in sections.values() for name in names]
    assert sorted(listed) == sorted(name for name in TwpConfig.model_fields if name != "evidence")


def test_flags_default_and_bounds_are_shown() -> None:
    rows = flags_reference.document().splitlines()
    gamma = next(row for row in rows if row.startswith(f"| `{flag_of('gamma')}`"))
    assert "`0.15`" in gamma
    assert "> 0, &lt;= 1" in gamma
    itl = next(row for row in rows if "`itl_slo_ms`" in row)
    assert "`--twp-itl-slo-ms` `--twp-itl-slo`" in itl


def test_every_command_has_a_parser_of_its_own() -> None:
    for command, subs in COMMANDS.items():
        for sub in subs or (None,):
            words = parser_of(command, sub).prog.split()
            assert command in (words[2] if len(words) > 2 else command), words
