"""The clock of an emulated accelerator: steps that take what a model says, and no model runs.

Deadlines are absolute. A step that a busy machine reports late does not push the next one
back, so errors do not add up. Waiting sleeps to shortly before the deadline and spins the
rest: a core is held for at most :data:`SPIN_S` per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from twp_sglang.simulator.step_models import StepModel

SPIN_S = 200e-6
"""Spun at the end of a wait. Linux wakes a sleeper 50 to 100 us late; a spin of twice that
makes most steps accurate to a few microseconds for 3 % of a core at steps of 6 ms."""


def wait_until(
    deadline_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Return when ``clock`` shows ``deadline_s``; the seconds by which it is late."""
    left = deadline_s - clock()
    while left > SPIN_S:
        sleep(left - SPIN_S)
        left = deadline_s - clock()
    while left > 0:
        left = deadline_s - clock()
    return -left


class EmulatedDevice:
    """One stream of steps.

    With SGLang's overlap scheduling the host launches a step while the one before runs, as
    on a GPU: a step starts when it is launched or when its predecessor ends, whichever is
    later. Without overlap the host works between two steps; that work is taken to be hidden
    behind the second one (up to its whole length), because the profiles describe the
    accelerator alone and Python on a laptop is not the host that they go with.
    """

    def __init__(
        self,
        model: StepModel,
        overlap: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._overlap = overlap
        self._clock = clock
        self._free_s = 0.0
        self._busy = False
        self.steps = 0
        self.busy_ms = 0.0
        """Sum of the predicted step times."""
        self.starved_steps = 0
        """Steps for which the device had to wait for the host between two steps: there the
        run shows this host, not the emulated machine."""
        self.late_ms_max = 0.0
        self.late_ms_sum = 0.0

    def launch(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """Start a step now; when it will be done, in seconds of the clock.

        Args:
            rows: decoding requests in the step.
            kv_tokens: KV tokens that its attention reads.
            prefill_tokens: prompt tokens in the step.
        """
        duration_ms = self._model.step_ms(rows, kv_tokens, prefill_tokens)
        duration_s = duration_ms / 1e3
        now = self._clock()
        earliest = now if self._overlap or not self._busy else now - duration_s
        if self._busy and earliest > self._free_s:
            self.starved_steps += 1
        self._free_s = max(self._free_s, earliest) + duration_s
        self._busy = True
        self.steps += 1
        self.busy_ms += duration_ms
        return self._free_s

    def wait(self, deadline_s: float) -> None:
        """Until the step that ends at ``deadline_s`` is done."""
        late_ms = 1e3 * wait_until(deadline_s, self._clock)
        self.late_ms_sum += late_ms
        self.late_ms_max = max(self.late_ms_max, late_ms)

    def idle(self) -> None:
        """The engine has nothing to run: the next step starts when it is launched."""
        self._busy = False
