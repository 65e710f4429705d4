"""What a window law is: a pure step from one measured sample to the next window.

The server, the simulator and the analysis call the same law objects. A law never
reads a clock and holds no mutable state: everything it remembers is in the state it
returns, so that tensor-parallel ranks that are fed the same samples compute the
same window to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """Base of every model and configuration here: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LawSample(NamedTuple):
    """What a law may look at after one decode step.

    Attributes:
        sigma: slowdown, filtered inter-token latency over ``l_min`` (section IV-A).
        itl_ms: filtered inter-token latency, the numerator of ``sigma``.
        step_ms: duration of the newest counted step, unfiltered.
        queue: requests waiting for admission, q.
        load_tokens: remaining output tokens of all active requests, K.
        batch: active requests, B.
        kv_tokens: KV-cache tokens held by the active requests.
        prefill_tokens: prompt tokens that rode in the newest step.
    """

    sigma: float
    itl_ms: float
    step_ms: float
    queue: int
    load_tokens: int
    batch: int
    kv_tokens: int = 0
    prefill_tokens: int = 0


@runtime_checkable
class Law(Protocol):
    """A window law. ``state`` is opaque to the caller and immutable.

    ``step`` maps (sample, state) to (window_tokens, next state); ``initial`` gives the
    state before the first sample, and ``window`` reads the window that a state stands
    for, so that a gate can ask before anything was measured.
    """

    name: str

    def initial(self) -> Any:
        """State at start-up."""

    def window(self, state: Any) -> float:
        """Window in tokens that ``state`` stands for."""

    def step(self, sample: LawSample, state: Any) -> tuple[float, Any]:
        """Advance one decode step; return the new window in tokens and the new state."""
