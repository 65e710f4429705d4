"""Every alert has an entry in the runbook and every entry an alert."""

from __future__ import annotations

import re

import pytest

from tools.structure import ROOT

yaml = pytest.importorskip("yaml")

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
ALERTS_PART = RUNBOOK.partition("\n## Alerts\n")[2].partition("\n## ")[0]
PARTS = ("**Means.**", "**Look.**", "**Do.**")


def alerts() -> dict[str, str]:
    """The link into the runbook by alert."""
    text = (ROOT / "dashboards" / "alerts.yml").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return {r["alert"]: r["annotations"]["runbook_url"] for r in rules if "alert" in r}


def entries() -> dict[str, str]:
    """Text by heading."""
    parts = re.split(r"^### (.+)$", ALERTS_PART, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_alerts_and_entries_are_the_same() -> None:
    assert set(entries()) == set(alerts())


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_an_entry_says_what_it_means_where_to_look_and_what_to_do(alert: str) -> None:
    text = entries()[alert]
    places = [text.find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(("alert", "link"), sorted(alerts().items()))
def test_an_alert_links_to_its_entry(alert: str, link: str) -> None:
    page, _, anchor = link.partition("#")
    assert (ROOT / page).exists()
    assert anchor == alert.lower()


def test_metrics_that_the_runbook_names_exist() -> None:
    from patches.metrics.definitions import METRICS

    known = {metric.exported for metric in METRICS}
    known |= {name + end for name in known for end in ("_total", "_bucket", "_count")}
    named = set(re.findall(r"\btwp_[a-z_]+", RUNBOOK)) - {"twp_sglang"}
    assert named - known == set()
