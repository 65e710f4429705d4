"""Deadlines of the emulated device, on a clock of the test's own and on the real one."""

from __future__ import annotations

import statistics
import time

import pytest

from patches.emulated_device import SPIN_S, EmulatedDevice, wait_until
from twp_sglang.simulator.step_models import Affine, AffineStep


class Clock:
    """A clock that only sleeping moves, and reading a little."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + 80e-6  # a sleeper wakes late


def device(overlap: bool, clock: Clock) -> EmulatedDevice:
    model = AffineStep(l_min_ms=10.0, a_ms=1.0, prefill_ms_per_token=0.1)
    return EmulatedDevice(Affine(model), overlap, clock)


def test_a_wait_sleeps_first_and_spins_only_at_the_end() -> None:
    clock = Clock()
    late_s = wait_until(100.050, clock, clock.sleep)
    assert clock.slept == [pytest.approx(0.050 - SPIN_S, abs=1e-5)]
    assert 0 <= late_s < 5e-6


def test_a_deadline_in_the_past_is_reported_late_at_once() -> None:
    clock = Clock()
    assert wait_until(99.0, clock, clock.sleep) == pytest.approx(1.0, abs=1e-4)
    assert clock.slept == []


def test_overlapped_steps_queue_on_the_device() -> None:
    clock = Clock()
    emulated = device(True, clock)
    first = emulated.launch(5, 0, 0)  # 15 ms
    second = emulated.launch(5, 0, 100)  # 25 ms, launched while the first runs
    assert first - 100.0 == pytest.approx(0.015, abs=1e-5)
    assert second - first == pytest.approx(0.025, abs=1e-12)
    assert emulated.starved_steps == 0


def test_without_overlap_the_hosts_work_hides_behind_the_next_step() -> None:
    clock = Clock()
    emulated = device(False, clock)
    done = emulated.launch(0, 0, 0)
    clock.now_s = done + 0.004  # results processed, next batch formed
    assert emulated.launch(0, 0, 0) - done == pytest.approx(0.010, abs=1e-12)


def test_errors_of_waking_do_not_add_up() -> None:
    clock = Clock()
    emulated = device(False, clock)
    begun = emulated.launch(0, 0, 0) - 0.010
    for _ in range(99):
        clock.now_s += 0.0005  # every wake-up is late
        deadline = emulated.launch(0, 0, 0)
        clock.now_s = max(clock.now_s, deadline)
    assert deadline - begun == pytest.approx(1.0, abs=1e-9)


def test_a_host_slower_than_the_device_is_counted() -> None:
    clock = Clock()
    emulated = device(True, clock)
    done = emulated.launch(0, 0, 0)
    clock.now_s = done + 0.003
    assert emulated.launch(0, 0, 0) - done == pytest.approx(0.013, abs=1e-5)
    assert emulated.starved_steps == 1


@pytest.mark.parametrize("overlap", [True, False])
def test_after_an_idle_spell_a_step_starts_when_launched(overlap: bool) -> None:
    clock = Clock()
    emulated = device(overlap, clock)
    done = emulated.launch(0, 0, 0)
    clock.now_s = done + 0.002
    emulated.idle()
    clock.now_s = done + 0.006
    assert emulated.launch(0, 0, 0) - done == pytest.approx(0.016, abs=1e-5)
    assert emulated.starved_steps == 0


def test_the_real_clock_is_met_without_holding_a_core() -> None:
    emulated = EmulatedDevice(Affine(AffineStep(l_min_ms=5.0)), True)
    cpu = time.process_time()
    took = []
    for _ in range(40):
        began = time.perf_counter()
        emulated.wait(emulated.launch(1, 0, 0))
        took.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    assert sum(took) >= 0.2
    # Single waits end late where others use the machine.
    assert 0.004 < statistics.median(took) < 0.007
    # Spinning is 0.2 ms of 5 ms; a wait that only spins would burn all of it.
    assert cpu < 0.5 * sum(took)
