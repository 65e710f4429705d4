"""How long the next step will take: a calibrated or learned model with an online correction.

The law of :mod:`controllers.laws.predictive` predicts, corrects by two gains and learns its
margin; here it is fed with the engine's samples and asked for rows and chunks. What replaces
the model while serving, and how far one that was not given is believed, is told by
:mod:`twp_sglang.scheduling.model_learning`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from controllers.laws.base import LawSample
from controllers.laws.predictive import PredictiveLaw, PredictiveLawConfig, PredictiveState
from controllers.models.latency import LatencyModel
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.graph_ceiling import GraphCeiling
from twp_sglang.scheduling.model_learning import ModelLearning, first_guess
from twp_sglang.scheduling.objectives import Objectives, step_objective_ms
from twp_sglang.scheduling.prompt_pacing import ChunkBound, PromptPacing, even_chunk
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.self_calibration import Fit

CHUNK_MAX_TOKENS = 8192
"""A stock engine's own chunk; with nobody decoding there is nobody to protect."""

UNREACHABLE = 2.0
"""Where a single row takes longer than the objective, nobody's objective can be kept; steps of
twice that row are then allowed, instead of one request at a time."""

ROWS_FLOOR = 1.25
STEP_FLOOR = 1.5
"""Rows that lengthen the decode step by no more than a quarter over that of the longest row
alone, and steps no longer than one and a half times that row's, are let in whatever the budget
says: a margin widened by pauses, a model of another machine or one very long context may leave
none, and a batch of one protects nobody from any of them."""

REACH_ROWS = 2
"""Whether one row keeps the objective is told by steps of hardly more: the gain of a larger batch
may come from a knee that nobody knows of yet."""

REACH_STEPS = 64
"""A saturated engine may have no such step for good. There the model, without the gain, is believed
once so many decode steps on end missed the objective: the fits at 8 to 64 are made by then."""


def _no_tokens() -> int:
    return 0


class OnlineStepModel:
    """Predicts steps and says how many rows and prompt tokens keep the objective."""

    def __init__(self, config: TwpConfig) -> None:
        self._start(config)

    def _start(self, config: TwpConfig) -> None:
        self._slo_ms = Objectives(config).itl_ms
        self._delivery_ms = config.itl_delivery_ms
        self._free = config.prefill_free_tokens
        given = config.step_model()
        self._stated_ceiling = config.graph_ceiling_rows
        self._ceiling = _ceiling(self._stated_ceiling)
        start = given or first_guess(self._slo_ms)
        self._learning = ModelLearning(start, given is not None, self._free, self._stated_ceiling)
        self.source = "calibrated" if given is not None else "learning"
        self._b0 = config.b0
        self._missed = 0
        """Decode steps on end that missed the objective."""
        self.pacing = PromptPacing()
        self._bound = ChunkBound()
        self._adopt(start)

    def reconfigured(self, config: TwpConfig, itl_slo_ms: float) -> OnlineStepModel:
        """This model under another configuration and objective, ms, for :meth:`become`; this one
        stays as it is. Where the model is not given, before or after, what was learned stays.

        Raises:
            ValueError: the model cannot be used.
        """
        other = copy(self)
        other._learning = self._learning.copied()
        other._take(config)
        if itl_slo_ms != other._slo_ms:
            other.objective_changed(itl_slo_ms)
        return other

    def become(self, other: OnlineStepModel) -> None:
        """Take all of ``other``, which :meth:`reconfigured` made and nobody else uses."""
        vars(self).update(vars(other))

    def _take(self, config: TwpConfig) -> None:
        given = config.step_model()
        if given != self._learning.given:
            self._start(config)
        self._b0 = config.b0
        if config.itl_delivery_ms != self._delivery_ms:
            self._delivery_ms = config.itl_delivery_ms
            self.law = self._law()
        if self.source != "learned":
            self._free = config.prefill_free_tokens
        if config.graph_ceiling_rows != self._stated_ceiling:
            self._stated_ceiling = config.graph_ceiling_rows
            self._ceiling = _ceiling(self._stated_ceiling)
            self._learning.calibration.jump_rows = self._stated_ceiling

    def objective_changed(self, itl_slo_ms: float) -> None:
        """From now on another objective, ms; what was learned stays."""
        self._slo_ms = itl_slo_ms
        if self._learning.given is None:
            self._learning.calibration.guess = first_guess(itl_slo_ms)
        if self.source == "learning":
            self._adopt(first_guess(itl_slo_ms))
        else:
            self.law = self._law()

    def _adopt(self, model: LatencyModel, residual: float = 0.0) -> None:
        self.model = model
        self._least_goal_ms = 0.0
        self.law = self._law()
        state = self.law.initial()
        self.state: PredictiveState = state._replace(
            residual_var=max(state.residual_var, residual**2)
        )

    def _law(self) -> PredictiveLaw:
        self._goal_ms = max(self._for_steps(self._slo_ms), self._least_goal_ms)
        return PredictiveLaw(
            PredictiveLawConfig(
                itl_objective_ms=self._goal_ms,
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
        fit = self._learning.observe(
            sample,
            step_ms,
            self.predicted_ms(sample.batch, sample.kv_tokens, sample.prefill_tokens),
            self._goal_ms,
            self.model,
            self._free,
            None if self._ceiling is None else self._ceiling.rows,
        )
        if fit is not None:
            self._take_over(fit)
        self.pacing.observe(sample.prefill_tokens, self.even_chunk)
        if sample.batch:
            self._bound.observe(sample.prefill_tokens, step_ms, self._goal_ms)
        prefill = max(0, sample.prefill_tokens - round(self._free))
        measured = step_ms
        ceiling = self._ceiling
        if ceiling is not None:
            batch, kv = sample.batch, sample.kv_tokens
            plain = self._plain_ms(batch, kv, sample.prefill_tokens)
            at = self._plain_ms(ceiling.rows, kv)
            if ceiling.observe(batch, step_ms, plain, at):
                measured = 0.0  # the jump learns from it, the gains must not
        learned = self.law.step(
            LawSample(
                1.0, step_ms, measured, queue, load_tokens, sample.batch, sample.kv_tokens, prefill
            ),
            self.state,
        )[1]
        if self.source == "learning":
            # How wrong the first guess is says nothing about the margin of a model.
            learned = learned._replace(
                gain_decode=1.0, gain_prefill=1.0, residual_var=self.state.residual_var
            )
        self.state = learned
        if sample.batch:
            missed = step_ms > self._for_steps(self._slo_ms)
            self._missed = self._missed + 1 if missed else 0
        self._reach(few=sample.batch <= REACH_ROWS and not sample.prefill_tokens)

    def _reach(self, *, few: bool) -> None:
        """Plan for longer steps where the objective is out of reach, as the step of a few rows
        told, or the model where there are none, and only as long as it is."""
        gain = self.state.gain_decode
        if not few and self._missed >= REACH_STEPS:
            gain, few = min(gain, 1.0), True
        row_ms = gain * self.law.decode_ms(1, 0)
        theta = self.theta
        # Of the goal only theta is planned for.
        reachable = row_ms <= theta * self._for_steps(self._slo_ms)
        least = 0.0 if reachable else UNREACHABLE * row_ms / theta
        if least > self._least_goal_ms and not few:
            return
        # It follows the gain in strides, because a law is built anew for each.
        if abs(least - self._least_goal_ms) > 0.1 * max(least, self._least_goal_ms):
            self._least_goal_ms = least
            self.law = self._law()

    def _take_over(self, fit: Fit) -> None:
        """Plan by ``fit`` from now on."""
        rows = self.state
        self._adopt(fit.model, fit.residual)
        self.state = self.state._replace(
            row_tokens=rows.row_tokens,
            row_kv_tokens=rows.row_kv_tokens,
            prefill_per_step=rows.prefill_per_step,
        )
        self._free = fit.free_tokens
        if fit.jump_rows is not None:
            self._ceiling = GraphCeiling(fit.jump_rows, fit.jump_ms)
        elif self._stated_ceiling is None:
            self._ceiling = None
        self.source = "learned"

    def _plain_ms(self, batch: int, kv_tokens: int, prefill_tokens: int = 0) -> float:
        """Step time with the gains in force, without what a ceiling adds."""
        state = self.state
        prefill = self.model.prefill_ms_per_token * max(0.0, prefill_tokens - self._free)
        decode = self.law.decode_ms(batch, kv_tokens)
        return state.gain_decode * decode + state.gain_prefill * prefill

    def _extra_ms(self, batch: int, kv_tokens: int) -> float:
        ceiling = self._ceiling
        if ceiling is None or batch <= ceiling.rows:
            return 0.0
        return ceiling.extra_ms(batch, self._plain_ms(ceiling.rows, kv_tokens))

    def predicted_ms(self, batch: int, kv_tokens: int, prefill_tokens: int = 0) -> float:
        """Step time with the gains in force."""
        return self._plain_ms(batch, kv_tokens, prefill_tokens) + self._extra_ms(batch, kv_tokens)

    def holds_alone(self, objective_ms: float) -> bool:
        """Whether a step of one row keeps ``objective_ms``; a tighter one is out of reach."""
        row_ms = self.state.gain_decode * self.law.decode_ms(1, 0)
        return row_ms <= self.theta * self._for_steps(objective_ms)

    def _for_steps(self, objective_ms: float) -> float:
        """What steps may take of a client's objective."""
        return step_objective_ms(objective_ms, self._delivery_ms)

    def admits(
        self,
        batch: int,
        kv_tokens: int,
        waiting: int = 0,
        objective_ms: float | None = None,
        longest: Callable[[], int] = _no_tokens,
    ) -> bool:
        """Whether one more row keeps the predicted step within theta times the objective, or
        lengthens that of the longest row alone by less than a quarter.

        Args:
            batch: rows now.
            kv_tokens: held now.
            waiting: requests that could come along; they decide whether it is worth going
                beyond a ceiling of the batch.
            objective_ms: in place of the configured objective.
            longest: KV tokens of the row that holds most; asked only where it matters.
        """
        if not self._learning.believes_rows(batch + 1, self._b0):
            return False
        step_goal_ms = None if objective_ms is None else self._for_steps(objective_ms)
        ceiling = self._ceiling
        if ceiling is None or batch < ceiling.rows:
            tries = self._learning.tries_rows(batch + 1, self.model)
            if self.law.admits(self.state, batch, kv_tokens, 0.0, step_goal_ms, tries):
                return True
            return self._hardly_longer(batch + 1, kv_tokens, longest)
        allowed_ms = self.law.budget_ms(self.state, step_goal_ms)
        demand = batch + waiting
        if not ceiling.worth_it(demand, allowed_ms, lambda rows: self._plain_ms(rows, kv_tokens)):
            return False
        extra = self._extra_ms(batch + 1, kv_tokens)
        return self.law.admits(self.state, batch, kv_tokens, extra, step_goal_ms)

    def _hardly_longer(self, rows: int, kv_tokens: int, longest: Callable[[], int]) -> bool:
        """Whether ``rows`` make a step within ROWS_FLOOR of the longest row's alone."""
        if self.law.beyond_knee(rows, kv_tokens):
            return False
        step_ms = self._plain_ms(rows, kv_tokens)
        if step_ms > ROWS_FLOOR * self._plain_ms(1, kv_tokens):
            return False  # however the KV is spread
        return step_ms <= ROWS_FLOOR * self._plain_ms(1, longest())

    def _step_goal_ms(self, kv_tokens: int, asked_ms: float, longest: Callable[[], int]) -> float:
        """Objective to plan a step by: at least STEP_FLOOR times the longest row's alone."""
        floor = STEP_FLOOR / self.theta
        if floor * self._plain_ms(1, kv_tokens) <= asked_ms:
            return asked_ms  # however the KV is spread
        return max(asked_ms, floor * self._plain_ms(1, longest()))

    def chunk_tokens(
        self,
        batch: int,
        kv_tokens: int,
        waiting_tokens: int | None = None,
        now_ms: float = 0.0,
        objective_ms: float | None = None,
        longest: Callable[[], int] = _no_tokens,
    ) -> int:
        """Prompt tokens beside ``batch`` decoding rows; the whole chunk beside none.

        Args:
            batch: decoding rows.
            kv_tokens: held now.
            waiting_tokens: prompt tokens of all who wait or are under way; None asks for the
                most that the objective allows.
            now_ms: the time.
            objective_ms: in place of the configured objective.
            longest: KV tokens of the row that holds most; asked only where it matters.
        """
        extra = self._extra_ms(batch, kv_tokens)
        asked = self._goal_ms if objective_ms is None else self._for_steps(objective_ms)
        goal = self._step_goal_ms(kv_tokens, asked, longest)
        chunk = self.law.chunk_tokens(self.state, batch, kv_tokens, 0, extra, goal)
        if batch <= 0:
            return chunk
        chunk = int(min(chunk + int(self._free), CHUNK_MAX_TOKENS, self._bound.tokens))
        # By the objective itself: what the model says of one row may be another machine's.
        chunk = self._learning.believed_chunk(chunk, self.theta * asked)
        if waiting_tokens is None:
            return chunk
        return self.pacing.chunk_tokens(
            chunk,
            waiting_tokens,
            self.even_chunk,
            lambda tokens: self.predicted_ms(batch, kv_tokens, tokens),
            now_ms,
        )

    @property
    def even_chunk(self) -> float:
        """Prompt tokens per step beyond which larger chunks gain next to nothing."""
        state, model = self.state, self.model
        return even_chunk(
            state.gain_decode * model.l_min_ms,
            state.gain_prefill * model.prefill_ms_per_token,
            self._free,
        )

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
            "itl_slo_reachable": self._least_goal_ms == 0.0,
            "itl_step_goal_ms": self._goal_ms,
            "prefill_free_tokens": self._free,
            "even_chunk_tokens": min(self.even_chunk, float(CHUNK_MAX_TOKENS)),
            "graph_ceiling_rows": None if self._ceiling is None else self._ceiling.rows,
            "graph_jump_ms": None if self._ceiling is None else self._ceiling.jump_ms,
        }


def _ceiling(rows: int | None) -> GraphCeiling | None:
    return None if rows is None else GraphCeiling(rows)
