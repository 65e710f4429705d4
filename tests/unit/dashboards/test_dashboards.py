"""Dashboard and alerts use metrics that exist, parse, fire when they should, and say what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from patches.metrics.definitions import METRICS
from tools import dashboard

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "dashboards" / "alerts.yml"
ALERT_TESTS = ROOT / "dashboards" / "alerts_test.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"

EXPORTED = {
    name
    for metric in METRICS
    for name in (
        [metric.exported + end for end in ("_bucket", "_sum", "_count")]
        if metric.kind == "histogram"
        else [metric.exported]
    )
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:twp_|sglang:)\w+", expression))


def queries() -> list[str]:
    return dashboard.expressions() + [rule["expr"] for rule in rules()]


def promtool() -> str:
    """The path of promtool, or a skip; on a Debian machine in CI its absence is a fault."""
    found = shutil.which("promtool") or shutil.which(str(ROOT / ".tools" / "promtool"))
    if found is None:
        if os.environ.get("CI") and shutil.which("apt-get"):
            pytest.fail("no promtool: make promtool")
        pytest.skip("no promtool here: make promtool, on Debian, or install Prometheus")
    return found


def run(*words: str) -> None:
    done = subprocess.run([promtool(), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_of_ours_that_is_asked_for_is_exported() -> None:
    asked = {name for query in queries() for name in names_in(query) if name.startswith("twp_")}
    assert asked <= EXPORTED, f"nobody exports {sorted(asked - EXPORTED)}"


def test_every_exported_metric_is_on_the_dashboard() -> None:
    shown = {name for query in dashboard.expressions() for name in names_in(query)}
    unseen = {
        metric.exported
        for metric in METRICS
        if not any(name.startswith(metric.exported) for name in shown)
    }
    assert not unseen


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs an engine extra")
def test_every_metric_of_sglang_that_is_asked_for_is_in_its_source() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations)))
    source = (folder / "srt" / "observability" / "metrics_collector.py").read_text()
    asked = {name for query in queries() for name in names_in(query) if name.startswith("sglang:")}
    assert asked
    for name in asked:
        assert f'"{name.removesuffix("_bucket")}"' in source, name


def test_the_dashboard_file_is_what_its_table_says() -> None:
    written = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
    assert written == dashboard.dashboard(), "python -m tools.dashboard"


def test_panels_have_texts_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    numbers = set()
    for panel in dashboard.dashboard()["panels"]:
        numbers.add(panel["id"])
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
    assert len(numbers) == len(dashboard.dashboard()["panels"])


def test_every_alert_says_what_it_is_and_where_to_read_on() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}
        assert "{{ $labels.instance }}" in notes["summary"], "which server is it?"
        assert notes["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_has_a_section_in_the_runbook() -> None:
    if not RUNBOOK.exists():
        pytest.skip("the runbook is not written yet")
    headings = re.findall(r"^#+ +(\w+)", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert {rule["alert"] for rule in rules()} <= set(headings)


def test_every_alert_is_tested_to_fire() -> None:
    tests = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_promtool_accepts_the_alerts() -> None:
    run("check", "rules", str(ALERTS))


def test_promtool_sees_the_alerts_fire_when_they_should() -> None:
    run("test", "rules", str(ALERT_TESTS))


def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    recorded = []
    for number, query in enumerate(dashboard.expressions()):
        plain = query.replace("$__rate_interval", "5m")
        for variable in ("$job", "$instance", "$model"):
            plain = plain.replace(variable, ".*")
        recorded.append({"record": f"twp:panel_{number}", "expr": plain})
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run("check", "rules", str(file))
