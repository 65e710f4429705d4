"""The burst workload that every setting is given, sized for the machine."""

from __future__ import annotations

from controllers.laws.base import FrozenModel
from controllers.models import LatencyModel
from twp_sglang.benchmarking.arrivals import Burst
from twp_sglang.calibration.profile import Profile

GPU_LENGTHS = ("128-1024", "64-512")
CPU_LENGTHS = ("16-96", "16-48")
"""Prompt and output tokens: a chat's on a GPU, a tenth of it where steps are slow."""

_BURST_FROM, _BURST_FOR = 0.3, 0.25
"""The burst begins when the light load has shown itself, and leaves time to recover."""

_MOST_RPS = 200.0
"""One client process sends and reads no more."""


class Traffic(FrozenModel):
    """What is served, the same requests at the same times for every setting."""

    rate_rps: float
    seconds: float
    burst_factor: float
    input_tokens: str
    output_tokens: str
    seed: int
    how: str

    @property
    def burst(self) -> Burst:
        """The burst in it."""
        return Burst(
            factor=self.burst_factor,
            start_s=round(_BURST_FROM * self.seconds, 2),
            duration_s=round(_BURST_FOR * self.seconds, 2),
        )

    @property
    def requests(self) -> int:
        """Requests that arrive in ``seconds``, on average."""
        share = 1 + (self.burst_factor - 1) * _BURST_FOR
        return max(8, round(self.rate_rps * self.seconds * share))

    def bench_words(self, slo: str) -> list[str]:
        """Arguments of ``twp_sglang.bench run``, without address and file."""
        burst = self.burst
        words = [
            *("--workload", "random", "--requests", str(self.requests)),
            *("--rate", str(self.rate_rps), "--seed", str(self.seed)),
            *("--burst", f"{burst.factor:g}:{burst.start_s:g}:{burst.duration_s:g}"),
            *("--input-tokens", self.input_tokens, "--output-tokens", self.output_tokens),
        ]
        return [*words, "--slo", slo] if slo else words


def mean_tokens(law: str) -> float:
    """Mean of ``LOW-HIGH``."""
    low, high = (int(word) for word in law.split("-"))
    return (low + high) / 2


def sized(
    profile: Profile,
    lengths: tuple[str, str],
    *,
    load: float,
    seconds: float,
    burst_factor: float,
    seed: int,
) -> Traffic:
    """Traffic that asks for ``load`` of the calibrated engine outside the burst.

    A request takes its prompt's time and its share of the decode steps at the largest
    batch measured: the engine cannot do better than that, so a burst of 1/load and more
    times the rate overloads it.
    """
    prompt, output = (mean_tokens(law) for law in lengths)
    batch = max((point.batch for point in profile.decode_points), default=1)
    largest = [point.median_ms for point in profile.decode_points if point.batch == batch]
    step_ms = min(largest, default=100.0)
    model = profile.decode.model if profile.decode is not None else None
    if isinstance(model, LatencyModel):
        # At the contexts that will be served rather than those of the calibration.
        step_ms = max(step_ms, model.step_ms(batch, kv_tokens=batch * (prompt + output / 2)))
    prompt_ms = (profile.prefill_ms_per_token or 0.0) * prompt
    request_ms = output * step_ms / batch + prompt_ms
    rate = min(load * 1000.0 / request_ms, _MOST_RPS)
    return Traffic(
        rate_rps=round(rate, 3),
        seconds=round(seconds, 1),
        burst_factor=burst_factor,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        seed=seed,
        how=f"{load:g} of what the engine carries: {request_ms:.1f} ms of engine time per request "
        f"({output:g} tokens at {step_ms:.2f} ms for {batch} rows, and {prompt:g} prompt tokens)",
    )
