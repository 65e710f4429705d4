"""The objectives in force: as stated, or ``auto``, a multiple of what the machine does unloaded.

    ITL  auto = itl_auto_multiple  x baseline decode step
    TTFT auto = ttft_auto_multiple x first token of a prompt of 1,024 tokens on an idle machine

Baselines come from the calibrated model. Without one they are learned from steps of at most
LOW_ROWS decoding rows, as the lowest median of 16 such steps: they can only fall, so neither
saturation nor a slow spell ever loosens an objective. Until a baseline is known the default of
the configuration is in force.

Fed with rank 0's samples alone, so that tensor-parallel ranks hold the same objective.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.objective_values import AUTO, LARGEST_MS, SMALLEST_MS, Objective
from twp_sglang.scheduling.sample import StepSample

DELIVERY_SHARE_MOST = 0.2
"""Part of an inter-token objective that delivery may claim: where a gap is hardly longer than what
delivery adds, holding steps shorter would cost more than it saves."""

LOW_ROWS = 4
"""A step of so few rows takes what an empty one takes, on every machine measured so far."""

WINDOW_STEPS = 16
"""Steps per median, which ignores a stray one."""

REFERENCE_PROMPT_TOKENS = 1024
"""About the median prompt of the Azure conversation trace (Splitwise, ISCA 2024): 1,020."""

CHUNK_TOKENS_MIN = 64
"""Smaller prompt chunks say more of the step's constant than of a prompt."""


def step_objective_ms(itl_ms: float, delivery_ms: float) -> float:
    """What a step may take so that the client's gap keeps ``itl_ms``, ms: a token is detokenized,
    sent and read after its step, and none of that takes equally long twice."""
    return itl_ms - min(delivery_ms, DELIVERY_SHARE_MOST * itl_ms)


class Lowest:
    """The lowest median of :data:`WINDOW_STEPS` successive values; None before the first."""

    def __init__(self) -> None:
        self._window: list[float] = []
        self.value: float | None = None

    def observe(self, value: float) -> bool:
        """Take one value; say whether the lowest median changed."""
        self._window.append(value)
        if len(self._window) < WINDOW_STEPS:
            return False
        middle = median(self._window)
        self._window.clear()
        if self.value is not None and middle >= self.value:
            return False
        self.value = middle
        return True


class Objectives:
    """ITL and TTFT objective, ms; :meth:`observe` may lower those that are ``auto``."""

    def __init__(self, config: TwpConfig) -> None:
        self._start(config)

    def _start(self, config: TwpConfig) -> None:
        self._config = config
        self._decode = Lowest()
        self._first_token = Lowest()
        model = config.step_model()
        self._given = model is not None
        if model is not None:
            prompt = max(0.0, REFERENCE_PROMPT_TOKENS - config.prefill_free_tokens)
            self._decode.value = model.step_ms(1)
            self._first_token.value = model.step_ms(0, 0, prompt)
        self._learns = not self._given and AUTO in (config.itl_slo_ms, config.ttft_slo_ms)
        self.itl_ms, self.ttft_ms = self._in_force()

    def reconfigure(self, config: TwpConfig) -> None:
        """Take another configuration; baselines that were learned stay unless a model is given
        now or was until now."""
        was_given, decode, first_token = self._given, self._decode, self._first_token
        self._start(config)
        if not was_given and not self._given:
            self._decode, self._first_token = decode, first_token
            self.itl_ms, self.ttft_ms = self._in_force()

    def observe(self, sample: StepSample) -> bool:
        """Take one measured step; say whether an objective changed.

        Args:
            sample: its duration must be a positive number.
        """
        if not self._learns or sample.batch > LOW_ROWS:
            return False
        step_ms = sample.duration_ms
        assert step_ms is not None
        if sample.prefill_tokens == 0:
            changed = self._decode.observe(step_ms)
        elif sample.prefill_tokens >= CHUNK_TOKENS_MIN:
            changed = self._first_token.observe(self._reference_ms(step_ms, sample.prefill_tokens))
        else:
            return False
        if not changed:
            return False
        before = (self.itl_ms, self.ttft_ms)
        self.itl_ms, self.ttft_ms = self._in_force()
        return before != (self.itl_ms, self.ttft_ms)

    def _reference_ms(self, step_ms: float, prompt_tokens: int) -> float:
        """What the reference prompt would take, from a step of ``prompt_tokens``.

        A short chunk is scaled as a whole, constant included: too long rather than too short,
        and corrected once longer ones come.
        """
        scale = REFERENCE_PROMPT_TOKENS / prompt_tokens
        if scale >= 1:
            return step_ms * scale
        constant = min(step_ms, self._decode.value or 0.0)
        return constant + (step_ms - constant) * scale

    def _in_force(self) -> tuple[float, float]:
        config = self._config
        return (
            _resolved("itl_slo_ms", config.itl_slo_ms, config.itl_auto_multiple, self._decode),
            _resolved(
                "ttft_slo_ms", config.ttft_slo_ms, config.ttft_auto_multiple, self._first_token
            ),
        )

    def snapshot(self) -> dict[str, Any]:
        """Values and where each comes from, for /server_info; JSON types only."""
        return {
            "itl_slo_ms": self.itl_ms,
            "itl_slo_source": self._source(self._config.itl_slo_ms, self._decode),
            "ttft_slo_ms": self.ttft_ms,
            "ttft_slo_source": self._source(self._config.ttft_slo_ms, self._first_token),
        }

    def _source(self, stated: Objective, baseline: Lowest) -> str:
        if stated != AUTO:
            return "stated"
        if baseline.value is None:
            return "auto: default until the baseline is learned"
        known = "calibrated" if self._given else "learned at low load"
        return f"auto: baseline {baseline.value:.4g} ms, {known}"


def _resolved(field: str, stated: Objective, multiple: float, baseline: Lowest) -> float:
    if stated != "auto":
        return stated
    if baseline.value is None:
        return float(TwpConfig.model_fields[field].default)
    # Within what may be stated: a model whose units are wrong must not make one beyond it.
    return min(max(multiple * baseline.value, SMALLEST_MS), LARGEST_MS)
