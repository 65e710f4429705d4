"""Who stands in only one of the two queues."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine_stand_ins import Batch, Req, Scheduler
from controllers.step_trace import Header
from patches.arrivals import info_of
from patches.membership import _by_sets, compared
from patches.runtime import Ranks, Runtime
from twp_sglang.config import TwpConfig

WHAT = ("new", "retracted", "abort", "admit", "unseen", "front")


def runtime_of(scheduler: Any) -> Runtime:
    config = TwpConfig(policy="slo", queue_max_requests=None)
    header = Header(config=config.model_dump(mode="json"))
    return Runtime(config, scheduler, Ranks(0, None), None, header)


@given(
    st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 10**6)), max_size=80),
    st.booleans(),
)
def test_it_finds_what_sets_of_both_queues_find(
    events: list[tuple[str, int]], crowded: bool
) -> None:
    scheduler: Any = Scheduler(Batch([]), 10_000, 9_000)
    runtime = runtime_of(scheduler)
    queue, line = runtime.policy.queue, scheduler.waiting_queue
    # Beyond the first rows, so that rows are packed anew.
    for number in range(300 * crowded):
        line.append(Req(f"c{number}", 5, 5))
        runtime.enqueued(line[-1], False)
    for number, (what, draw) in enumerate(events):
        if what in ("new", "retracted", "unseen"):
            line.append(Req(f"r{number}", 1 + draw % 50, 5))
            if what != "unseen":
                runtime.enqueued(line[-1], what == "retracted")
        elif line:
            req = line[draw % len(line)]
            if what == "front":
                line.remove(req)
                line.insert(0, req)
                continue
            line.remove(req)
            if what == "admit" and info_of(req) is not None:
                runtime.admitted(req)
    assert compared(line, queue) == _by_sets(line, queue)
    runtime.resync(line)
    assert {id(info.handle) for info in queue} == {id(req) for req in line}
    assert compared(line, queue) == ([], [])


def test_a_request_of_which_only_the_policy_forgot_is_told_anew() -> None:
    scheduler: Any = Scheduler(Batch([]), 10_000, 9_000)
    runtime = runtime_of(scheduler)
    line = scheduler.waiting_queue
    for name in "abc":
        line.append(Req(name, 5, 5))
        runtime.enqueued(line[-1], False)
    forgotten = info_of(line[1])
    assert forgotten is not None
    runtime.policy.withdraw(forgotten)
    assert compared(line, runtime.policy.queue) == ([], [line[1]])
    runtime.resync(line)
    assert len(runtime.policy.queue) == 3
