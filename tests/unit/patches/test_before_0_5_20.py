"""SGLang 0.5.17: the samples ride on what the reading rank has read."""

from __future__ import annotations

from typing import Any

import pytest

from patches import active
from patches.sample_relay import SampleRelay
from patches.sglang_0_5.before_0_5_20 import pull_raw_reqs
from patches.sglang_0_5.versions import TABLES
from twp_sglang.scheduling.sample import StepSample


class _Runtime:
    """As much of a runtime as the hook calls."""

    def __init__(self, *, faulty: bool = False) -> None:
        self.deciding = True
        self.faults: list[str] = []
        self.relay = SampleRelay(False)
        self._faulty = faulty

    def outgoing(self) -> Any:
        if self._faulty:
            raise RuntimeError("on purpose")
        return self.relay.pack(0.0)

    def fault(self, where: str) -> None:
        self.faults.append(where)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> _Runtime:
    made = _Runtime()
    monkeypatch.setattr(active, "_runtime", made)
    return made


def test_without_twp_nothing_changes() -> None:
    assert active.installed() is None
    assert pull_raw_reqs(["request"], None) is None


def test_a_sample_goes_with_the_requests_and_only_from_the_rank_that_reads(
    runtime: _Runtime,
) -> None:
    assert pull_raw_reqs(["request"], None) is None  # nothing measured yet
    runtime.relay.made(StepSample(1, "decode", 20.0, 4, 0, 100), leads=True)
    assert pull_raw_reqs(None, None) is None  # another rank: the broadcast brings it
    sent = pull_raw_reqs(["request"], None)
    assert sent is not None
    assert sent[0] == "request"
    assert [sample.step for sample in sent[1].samples] == [1]


def test_a_fault_leaves_the_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _Runtime(faulty=True)
    monkeypatch.setattr(active, "_runtime", broken)
    assert pull_raw_reqs(["request"], None) is None
    assert broken.faults == ["outgoing"]


def test_both_tables_hook_the_same_places_but_for_the_relay() -> None:
    older, newer = ({hook.target for hook in table.hooks} for table in TABLES)
    assert {target.rsplit(".", 1)[1] for target in older - newer} == {"_pull_raw_reqs"}
    assert {target.rsplit(".", 1)[1] for target in newer - older} == {"_poll_timeout_aborts"}
