"""Which steps of a trace may enter the regression, and as what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controllers.trace_reader import FloatArray, IntArray, StepTrace


@dataclass(frozen=True)
class DecodeSamples:
    """Timed steps in which at least one request decoded, in the order of the trace.

    All arrays have shape (n,): ``row`` is the index in the trace, ``batch`` in requests,
    ``kv_tokens`` and ``prefill_tokens`` in tokens, ``step_ms`` the step's duration.
    """

    row: IntArray
    batch: FloatArray
    kv_tokens: FloatArray
    prefill_tokens: FloatArray
    step_ms: FloatArray

    def __len__(self) -> int:
        return int(self.row.size)

    def take(self, mask: np.ndarray) -> DecodeSamples:
        """The samples where ``mask`` is true."""
        return DecodeSamples(
            row=self.row[mask],
            batch=self.batch[mask],
            kv_tokens=self.kv_tokens[mask],
            prefill_tokens=self.prefill_tokens[mask],
            step_ms=self.step_ms[mask],
        )


def decode_samples(trace: StepTrace) -> DecodeSamples:
    """Decode and mixed steps with a duration.

    Steps without one (idle gaps, warm-up, drain) say nothing of the step time, and steps
    that only prefill run other kernels than the decode step whose time the loop feels.
    """
    duration = trace["duration_ms"]
    with np.errstate(invalid="ignore"):
        usable = trace.is_kind("decode", "mixed") & (trace["batch"] > 0) & (duration > 0)
    row = np.flatnonzero(usable)
    return DecodeSamples(
        row=row,
        batch=trace["batch"][row],
        kv_tokens=trace["kv_tokens"][row],
        prefill_tokens=trace["prefill_tokens"][row],
        step_ms=duration[row],
    )
