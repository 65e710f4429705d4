"""Writes dashboards/twp.json, the Grafana dashboard, from the table of its panels.

    python -m tools.dashboard

The table is what a person edits; Grafana's JSON says every panel in sixty lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.dashboard_panels import ROWS, Panel

FILE = Path(__file__).resolve().parent.parent / "dashboards" / "twp.json"


def expressions() -> list[str]:
    """Every query of the dashboard."""
    return [line.expression for _, panels in ROWS for panel in panels for line in panel.lines]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > 24:
                left, top = 0, top + _height(panel)
            panels.append(_panel(len(panels) + 1, panel, left, top))
            left += panel.width
        top += _height(row[-1])
    return {
        "uid": "token-window-pacing",
        "title": "Token Window Pacing",
        "tags": ["sglang", "twp"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _height(panel: Panel) -> int:
    return 4 if panel.kind == "stat" else 8


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
        "panels": [],
    }


def _panel(number: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "showPoints": "never"}
        if panel.stacked:
            custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": _height(panel), "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": line.expression,
                "legendFormat": line.legend.strip(),
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
            }
            for place, line in enumerate(panel.lines)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    asked = ""
    for name, label in (("job", "job"), ("instance", "instance"), ("model", "model_name")):
        variables.append(
            {
                "name": name,
                "type": "query",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "query": f"label_values(twp_deciding{asked}, {label})",
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
                "refresh": 2,
            }
        )
        asked = '{job=~"$job"}'
    return variables


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
