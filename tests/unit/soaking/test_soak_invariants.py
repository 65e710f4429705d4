"""Each invariant: held by a good record, violated by one that lacks what it asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twp_sglang.soaking.endings import Outcome
from twp_sglang.soaking.growth import Growth, growth
from twp_sglang.soaking.invariants import judge
from twp_sglang.soaking.record import Record
from twp_sglang.soaking.report import as_json, as_text, violated
from twp_sglang.soaking.server_view import Load, TwpState
from twp_sglang.soaking.settings import SoakSettings
from twp_sglang.soaking.traffic import Act

SETTINGS = SoakSettings(url="http://x", api_key="secret")
ABOUT = {"seconds": 60.0, "rate_rps": 8.0}


def ended(record: Record, kind: str, ending: str, reason: str = "") -> None:
    act = Act(record.submitted, 1.0, kind, "generate", False, 5, 5, 1, 0.0, 0.9)  # type: ignore[arg-type]
    record.submitted += 1
    record.ended(Outcome(act, ending, reason, 5), 0.5)  # type: ignore[arg-type]


def good() -> Record:
    record = Record(
        before=Load(0, 0, 0, 4096),
        after=Load(0, 0, 0, 4096),
        after_flush=Load(0, 0, 0, 4096),
        flushed=True,
        twp=TwpState(({"deciding": True, "fallbacks": 0},)),
        twp_expected=True,
        polls=10,
        watched=True,
        memory={"scheduler[1]": Growth(900, 901, 10, 5, 15, 1.0)},
        handles={"scheduler[1]": (80, 82)},
        left_over=[],
        exit_code=0,
        audits=["100 admissions in 900 steps, 0 violations"],
    )
    record.changes["taken"] = 3
    ended(record, "serve", "answered")
    ended(record, "leave_streaming", "left")
    return record


def test_a_good_record_holds_everything() -> None:
    findings = judge(good(), SETTINGS)
    assert {finding.verdict for finding in findings} == {"held"}
    assert not violated(findings)


def no_end(record: Record) -> None:
    record.submitted += 1


def ended_twice(record: Record) -> None:
    ended(record, "serve", "answered")
    record.submitted -= 1


def fell_back(record: Record) -> None:
    record.faults.append("3 s: deciding False, fallbacks 1")


def held_tokens(record: Record) -> None:
    record.after = Load(0, 0, 12, 4096)


def lost_tokens(record: Record) -> None:
    record.after_flush = Load(0, 0, 0, 4000)


def still_waiting(record: Record) -> None:
    record.after = Load(0, 1, 0, 4096)


def no_flush(record: Record) -> None:
    record.flushed = False


def memory(record: Record) -> None:
    record.memory["scheduler[1]"] = Growth(
        900, 1100, 900, 800, 1000, SETTINGS.memory_growth_mib + 1
    )


def handles(record: Record) -> None:
    record.handles["scheduler[1]"] = (80, 180)


def died(record: Record) -> None:
    record.ended_processes.append("sglang::scheduler (pid 1): ended at 4 s")


def silent(record: Record) -> None:
    record.silences.append("4 s: GET /server_info: no reply")


def mute(record: Record) -> None:
    record.answers_after.append("chat afterwards: wrong 500")


def audit(record: Record) -> None:
    record.audit_violations.append("step 4: window")


def change(record: Record) -> None:
    record.wrong_changes.append("{'gamma': 0.3}: 500")


def survivor(record: Record) -> None:
    record.left_over = ["sglang::detokenizer (pid 3)"]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (no_end, "every request ends exactly once"),
        (ended_twice, "every request ends exactly once"),
        (fell_back, "TWP never falls back"),
        (held_tokens, "KV pool whole"),
        (lost_tokens, "KV pool whole"),
        (still_waiting, "KV pool whole"),
        (no_flush, "KV pool whole"),
        (memory, "memory bounded"),
        (handles, "handles bounded"),
        (died, "processes live"),
        (silent, "server answers"),
        (mute, "server answers"),
        (audit, "audit of the trace"),
        (change, "configuration changes"),
        (survivor, "clean shutdown"),
    ],
)
def test_a_spoilt_record_violates_that_invariant_alone(
    spoil: Callable[[Record], None], name: str
) -> None:
    record = good()
    spoil(record)
    findings = judge(record, SETTINGS)
    assert [finding.name for finding in findings if finding.verdict == "violated"] == [name]
    assert violated(findings)
    assert "VIOLATED" in as_text(record, SETTINGS, findings, ABOUT)
    assert not as_json(record, SETTINGS, findings, ABOUT)["passed"]


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("serve", "lost"), ("serve", "aborted"), ("serve", "left"), ("malformed", "answered")],
)
def test_an_end_that_its_kind_may_not_have(kind: str, ending: str) -> None:
    record = good()
    ended(record, kind, ending)
    assert record.wrong_count == 1
    assert violated(judge(record, SETTINGS))


def test_what_nobody_could_see_is_not_judged_and_said_so() -> None:
    findings = judge(Record(), SETTINGS)
    assert not violated(findings)
    unjudged = {finding.name for finding in findings if finding.verdict == "not judged"}
    assert unjudged == {finding.name for finding in findings} - {"server answers"}


def test_no_secret_in_the_result() -> None:
    assert "secret" not in str(as_json(good(), SETTINGS, judge(good(), SETTINGS), ABOUT))


def test_growth_ignores_a_spike_and_sees_a_slope() -> None:
    times = [float(i) for i in range(100)]
    flat = [500.0 + (40.0 if i == 30 else 0.0) for i in range(100)]
    leaking = [500.0 + 0.5 * t for t in times]
    calm, steep = growth(times, flat), growth(times, leaking)
    assert calm is not None
    assert calm.total == 0.0
    assert steep is not None
    assert steep.per_hour == pytest.approx(1800.0)
    assert steep.total == pytest.approx(49.5)
    assert growth(times[:9], flat[:9]) is None
