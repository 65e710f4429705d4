"""A machine that becomes another one while it serves, and pauses that only look like that."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from scheduling_builders import config, sample

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.machine_change import CHANGED_BY, CHANGED_STEPS, MachineChange
from twp_sglang.scheduling.step_model import OnlineStepModel

MACHINE = LatencyModel(
    l_min_ms=6.2, b0=0.0, alpha_ms=0.0, a_ms=0.05, kappa_ms_per_token=2e-5,
    prefill_ms_per_token=0.02,
)  # fmt: skip
FLAT = MACHINE.model_copy(update={"l_min_ms": 20.0, "prefill_ms_per_token": 0.001})
"""Its steps hardly depend on prompts."""

ITL_SLO_MS = 40.0
CHANGE_AT = 700
LAST = 200
"""Steps at the end that are looked at."""


class Served(NamedTuple):
    """Steps of a run."""

    step_ms: list[float]
    rows: list[int]
    chunks: list[int]

    def last(self, what: str) -> float:
        """Mean over the last steps."""
        values = getattr(self, what)[-LAST:]
        return float(sum(values)) / len(values)


def serve(
    factor: Callable[[int], float],
    steps: int,
    *,
    given: bool = False,
    machine: LatencyModel = MACHINE,
    slo_ms: float = ITL_SLO_MS,
    lost_tokens: int = 0,
    seed: int = 1,
) -> Served:
    """A queue that never empties, on a machine whose step ``n`` takes ``factor(n)`` times as long;
    up to ``lost_tokens`` of each chunk are not used, as with pages and short prompts."""
    told = machine.model_dump(exclude={"b0"}) if given else {}
    online = OnlineStepModel(config(itl_slo_ms=slo_ms, **told))
    rng, now_ms, rows = random.Random(seed), 0.0, [500]
    served = Served([], [], [])
    for step in range(steps):
        before = len(rows)
        while len(rows) < before + 4 and online.admits(
            len(rows), sum(rows), 1000, longest=partial(max, rows)
        ):
            rows.append(rng.randint(300, 900))
        if len(rows) == before:
            online.pacing.crowded(now_ms)
        batch, kv = len(rows), sum(rows)
        chunk = online.chunk_tokens(batch, kv, 100_000, now_ms)
        chunk -= rng.randint(0, lost_tokens) if chunk > 2 * lost_tokens else 0
        ms = machine.step_ms(batch, kv, chunk) * factor(step)
        ms *= math.exp(0.03 * rng.gauss(0.0, 1.0))
        now_ms += ms
        for values, value in zip(served, (ms, batch, chunk), strict=True):
            values.append(value)
        online.observe(
            sample(ms, step=step, batch=batch, kv_tokens=kv, prefill_tokens=chunk), 0, 1000
        )
        rows = [kv + 1 for kv in rows if rng.random() > 0.02] or [500]
    return served


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("factor", [1 / 3, 1 / 2, 2.0, 3.0])
def test_another_machine_is_followed(factor: float, given: bool) -> None:
    """Slower ones were followed, up to three times; of a faster one a third was lost, and four
    times slower looked like a pause in every step."""
    served = serve(lambda step: factor if step >= CHANGE_AT else 1.0, CHANGE_AT + 800, given=given)
    assert 0.8 * ITL_SLO_MS < served.last("step_ms") < ITL_SLO_MS
    late = sum(ms > 1.05 * ITL_SLO_MS for ms in served.step_ms)
    assert late <= CHANGED_STEPS + 16


@pytest.mark.parametrize("given", [True, False])
def test_a_machine_too_slow_for_the_objective_is_still_followed(given: bool) -> None:
    """A row takes 30 ms of 40, so steps of one and a half times that are allowed."""
    served = serve(lambda step: 4.5 if step >= CHANGE_AT else 1.0, CHANGE_AT + 800, given=given)
    assert served.last("step_ms") < 1.15 * ITL_SLO_MS
    assert served.last("rows") > 10


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("factor", [3.0, 5.0, 10.0])
def test_a_slow_spell_leaves_nothing_behind(factor: float, given: bool) -> None:
    """After ten seconds of a busy neighbour rows stayed a tenth of what they were."""
    served = serve(
        lambda step: factor if CHANGE_AT <= step < CHANGE_AT + 200 else 1.0,
        CHANGE_AT + 1200,
        given=given,
    )
    before = served.rows[CHANGE_AT - LAST : CHANGE_AT]
    assert served.last("rows") > 0.7 * sum(before) / len(before)
    assert served.last("step_ms") < ITL_SLO_MS


@pytest.mark.parametrize("lost_tokens", [0, 40])
@pytest.mark.parametrize("machine", [MACHINE, FLAT])
def test_a_slow_first_step_does_not_bound_chunks_for_good(
    machine: LatencyModel, lost_tokens: int
) -> None:
    """It says 1 token per ms; steps that carried less than the least chunk granted for that were
    no better evidence, so that the grant stayed."""
    chunks = {}
    for slow in (1.0, 30.0):
        served = serve(
            lambda step, slow=slow: slow if step == 0 else 1.0,  # type: ignore[misc]
            1200,
            machine=machine,
            slo_ms=50.0,
            lost_tokens=lost_tokens,
        )
        chunks[slow] = served.last("chunks")
    assert chunks[30.0] > 0.8 * chunks[1.0] > 400


def test_pauses_are_no_change() -> None:
    rng = random.Random(1)
    change = MachineChange()
    for _ in range(5000):
        pause = 10.0 if rng.random() < 0.1 else 1.0
        assert change.observe(8.0 * pause * math.exp(0.1 * rng.gauss(0.0, 1.0)), 8.0) is None


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 6.0])
def test_a_change_is_believed_after_so_many_steps_and_says_how_much(factor: float) -> None:
    change = MachineChange()
    assert change.observe(8.0, 8.0) is None
    found = [change.observe(8.0 * factor, 8.0) for _ in range(CHANGED_STEPS)]
    assert found[:-1] == [None] * (CHANGED_STEPS - 1)
    assert found[-1] == pytest.approx(factor)


def test_what_the_gains_can_follow_is_no_change() -> None:
    change = MachineChange()
    for factor in (0.99 * CHANGED_BY, 1.01 / CHANGED_BY):
        assert all(change.observe(8.0 * factor, 8.0) is None for _ in range(500))


def test_off_to_both_sides_is_no_change() -> None:
    change = MachineChange()
    for _ in range(500):
        assert change.observe(16.0, 8.0) is None
        assert change.observe(4.0, 8.0) is None


@pytest.mark.parametrize("model_ms", [0.0, -1.0, 5e-324])
def test_a_model_that_says_nothing_is_not_compared(model_ms: float) -> None:
    change = MachineChange()
    assert all(change.observe(8.0, model_ms) is None for _ in range(500))
