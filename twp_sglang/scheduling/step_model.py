"""How long the next step will take: a calibrated or learned model with an online correction.

The law of :mod:`controllers.laws.predictive` predicts, corrects by two gains and learns its
margin; here it is fed with the engine's samples and asked for rows and chunks. Without a
profile it starts from a guess that is cautious against the objective and takes over what
:mod:`twp_sglang.scheduling.self_calibration` finds, and until a profile is given it does not
go beyond twice what it has seen.
"""

from __future__ import annotations

from typing import Any

from controllers.laws.base import LawSample
from controllers.laws.predictive import PredictiveLaw, PredictiveLawConfig, PredictiveState
from controllers.models.latency import LatencyModel
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.objectives import Objectives
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.self_calibration import SelfCalibration

CHUNK_MAX_TOKENS = 8192
"""A stock engine's own chunk; with nobody decoding there is nobody to protect."""

CHUNK_START_TOKENS = 512
"""Chunk that the first guess takes to cost half the objective: the usual token budget of
chunked prefill on accelerators."""

ROWS_START = 32
"""Rows that the first guess takes to cost a quarter of the objective."""

EXTRAPOLATE = 2
"""How far beyond the largest batch or chunk seen a learned model is believed."""


class OnlineStepModel:
    """Predicts steps and says how many rows and prompt tokens keep the objective."""

    def __init__(self, config: TwpConfig) -> None:
        self._start(config)

    def _start(self, config: TwpConfig) -> None:
        self._slo_ms = Objectives(config).itl_ms
        self._free = config.prefill_free_tokens
        given = config.step_model()
        self._calibration = SelfCalibration() if given is None else None
        self.source = "calibrated" if given is not None else "learning"
        self._b0 = config.b0
        self._rows_seen = 0
        self._prefill_seen = CHUNK_START_TOKENS
        self._adopt(given or _first_guess(self._slo_ms))

    def reconfigure(self, config: TwpConfig) -> None:
        """Take another configuration. Where the model is not given, before or after, what was
        learned stays.

        Raises:
            ValueError: the model cannot be used; nothing has changed.
        """
        given = config.step_model()
        present = self.model if self._calibration is None else None
        if given != present:
            self._start(config)
        self._b0 = config.b0
        self._free = config.prefill_free_tokens

    def objective_changed(self, itl_slo_ms: float) -> None:
        """From now on another objective, ms; what was learned stays."""
        self._slo_ms = itl_slo_ms
        if self.source == "learning":
            self._adopt(_first_guess(itl_slo_ms))
        else:
            self.law = self._law()

    def _adopt(self, model: LatencyModel, residual: float = 0.0) -> None:
        self.model = model
        self.law = self._law()
        state = self.law.initial()
        self.state: PredictiveState = state._replace(
            residual_var=max(state.residual_var, residual**2)
        )

    def _law(self) -> PredictiveLaw:
        return PredictiveLaw(
            PredictiveLawConfig(
                itl_objective_ms=self._slo_ms,
                latency=self.model,
                chunk_max_tokens=CHUNK_MAX_TOKENS,
                # The window is reported, not gated by: no clamp.
                h_min_tokens=1.0,
                h_max_tokens=1e9,
            )
        )

    @property
    def theta(self) -> float:
        """Part of the objective to plan for: the margin learned so far."""
        return self.law.theta(self.state.residual_var)

    def observe(self, sample: StepSample, load_tokens: int, queue: int) -> None:
        """Take one measured step.

        Args:
            sample: its duration must be a positive number.
            load_tokens: K, for the reported window.
            queue: waiting requests.
        """
        step_ms = sample.duration_ms
        assert step_ms is not None
        if self._calibration is not None:
            self._rows_seen = max(self._rows_seen, sample.batch)
            self._prefill_seen = max(self._prefill_seen, sample.prefill_tokens)
            fit = self._calibration.observe(
                step_ms, sample.batch, sample.kv_tokens, sample.prefill_tokens
            )
            if fit is not None:
                rows = self.state
                self._adopt(fit.model, fit.residual)
                self.state = self.state._replace(
                    row_tokens=rows.row_tokens,
                    row_kv_tokens=rows.row_kv_tokens,
                    prefill_per_step=rows.prefill_per_step,
                )
                self.source = "learned"
        prefill = max(0, sample.prefill_tokens - round(self._free))
        learned = self.law.step(
            LawSample(
                1.0, step_ms, step_ms, queue, load_tokens, sample.batch, sample.kv_tokens, prefill
            ),
            self.state,
        )[1]
        if self.source == "learning":
            # How wrong the first guess is says nothing about the margin of a model.
            learned = learned._replace(
                gain_decode=1.0, gain_prefill=1.0, residual_var=self.state.residual_var
            )
        self.state = learned

    def predicted_ms(self, batch: int, kv_tokens: int, prefill_tokens: int = 0) -> float:
        """Step time with the gains in force."""
        state = self.state
        prefill = self.model.prefill_ms_per_token * max(0.0, prefill_tokens - self._free)
        decode = self.law.decode_ms(batch, kv_tokens)
        return state.gain_decode * decode + state.gain_prefill * prefill

    def admits(self, batch: int, kv_tokens: int) -> bool:
        """Whether one more row keeps the predicted step within theta times the objective."""
        if self._calibration is not None and batch + 1 > self._rows_believed():
            return False
        return self.law.admits(self.state, batch, kv_tokens)

    def _rows_believed(self) -> int:
        return EXTRAPOLATE * max(self._b0, self._rows_seen)

    def chunk_tokens(self, batch: int, kv_tokens: int) -> int:
        """Most prompt tokens beside ``batch`` decoding rows; the whole chunk beside none."""
        chunk = self.law.chunk_tokens(self.state, batch, kv_tokens)
        if batch <= 0:
            return chunk
        if self._calibration is not None:
            chunk = min(chunk, EXTRAPOLATE * self._prefill_seen)
        return min(chunk + int(self._free), CHUNK_MAX_TOKENS)

    def prompt_rate(self, batch: int, kv_tokens: int) -> float:
        """Prompt tokens per ms that the model promises under backlog, above 0."""
        chunk = self.chunk_tokens(batch, kv_tokens)
        return chunk / max(self.predicted_ms(batch, kv_tokens, chunk), 1e-3)

    @property
    def window_tokens(self) -> float:
        """H: the largest token load whose predicted step keeps the objective."""
        return self.law.window(self.state)

    def snapshot(self) -> dict[str, Any]:
        """State for /server_info; JSON types only."""
        return {
            "model_source": self.source,
            "model": self.model.model_dump(mode="json"),
            "gain_decode": self.state.gain_decode,
            "gain_prefill": self.state.gain_prefill,
            "residual": self.state.residual_var**0.5,
            "theta": self.theta,
        }


def _first_guess(slo_ms: float) -> LatencyModel:
    """A machine on which a small batch costs a quarter of the objective, ROWS_START rows
    another quarter, and CHUNK_START_TOKENS prompt tokens half of it."""
    return LatencyModel(
        l_min_ms=slo_ms / 4,
        b0=0.0,
        alpha_ms=0.0,
        a_ms=slo_ms / 4 / ROWS_START,
        prefill_ms_per_token=slo_ms / 2 / CHUNK_START_TOKENS,
    )
