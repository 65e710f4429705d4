"""Token Window Pacing, Algorithm 1 of the paper."""

from __future__ import annotations

from copy import copy
from itertools import chain
from typing import Any

from controllers.laws.base import LawSample
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.decision import NOBODY_WAITS, Decision, Grant
from twp_sglang.scheduling.forcing import ForcingBudget
from twp_sglang.scheduling.gate import Gate
from twp_sglang.scheduling.kv_headroom import KvHeadroom
from twp_sglang.scheduling.learned_lengths import LearnedLengths
from twp_sglang.scheduling.lengths_online import FinishedAnswer, OutputLengths
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.monitor import Monitor
from twp_sglang.scheduling.overload import Overload
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Policy, Signals
from twp_sglang.scheduling.ranking import Ranking
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.window import Window


class Twp(Policy):
    """Measure, adapt the window, rank, admit while the load fits (Algorithm 1)."""

    name = "twp"

    def __init__(self, config: TwpConfig) -> None:
        super().__init__()
        self.overload = Overload(config)
        self.monitor = Monitor(config.beta, config.b0, config.l_min_ms, config.warmup_steps)
        self.window = Window(config)
        self.headroom = KvHeadroom(
            config.kv_headroom_min,
            config.kv_headroom_max,
            config.kv_horizon_steps,
            config.kv_relax,
        )
        self._model = config.step_model()
        self._ranking, self._gate = _order_and_gate(config)
        self._forcing = ForcingBudget(_forced_tokens(config), config.forced_burst_tokens)
        self._pass_index = 0
        self._lengths: OutputLengths | None = None
        if config.length_source == "learned":
            self._lengths = OutputLengths(config.kv_quantile)
            self.length_source = LearnedLengths(self._lengths)
            self.reads_lengths = True
        self._load = ActiveLoad(0, 0)

    def reconfigure(self, config: TwpConfig) -> None:
        """Window, latency, baseline and memory threshold go on from where they are."""
        # All that can refuse is built before anything is set.
        model, (ranking, gate) = config.step_model(), _order_and_gate(config)
        self.window.reconfigure(config)
        if self.overload is not None:
            self.overload.reconfigure(config)
        self.monitor.reconfigure(config.beta, config.b0, config.l_min_ms)
        self.headroom.reconfigure(
            config.kv_headroom_min,
            config.kv_headroom_max,
            config.kv_horizon_steps,
            config.kv_relax,
        )
        self._model, self._ranking, self._gate = model, ranking, gate
        self._forcing.reconfigure(_forced_tokens(config), config.forced_burst_tokens)

    def try_out(self, config: TwpConfig) -> None:
        """Builds the law of the window beside the one in force, and the rest anew."""
        config.step_model()
        _order_and_gate(config)
        copy(self.window).reconfigure(config)

    def admitted(self, grant: Grant) -> None:
        """Taken; forced ones are paid for."""
        super().admitted(grant)
        if grant.reason == "forced":
            self._forcing.spend(grant.request.prompt_tokens, self._pass_index)

    def enqueue(self, request: RequestInfo) -> None:
        """Joins the queue; a first arrival also teaches the mean expected length."""
        super().enqueue(request)
        if not request.retracted:
            self.window.arrived(request.expected_tokens)

    def finished(self, answer: FinishedAnswer) -> None:
        """Teaches the output lengths, where they are learned."""
        if self._lengths is not None:
            self._lengths.learn(answer)

    def observe(self, sample: StepSample) -> None:
        """Steps 1 and 2: the latency, then the window, once per counted step."""
        if self.overload is not None:
            self.overload.observe(sample, self.queue)
        if not self.monitor.observe(sample):
            return
        itl_ms = self.monitor.itl_ms
        assert itl_ms is not None
        assert sample.duration_ms is not None
        self.window.step(
            LawSample(
                sigma=self.monitor.sigma,
                itl_ms=itl_ms,
                step_ms=sample.duration_ms,
                queue=len(self.queue),
                load_tokens=self._load.load_tokens,
                batch=sample.batch,
                kv_tokens=sample.kv_tokens,
                prefill_tokens=sample.prefill_tokens,
            )
        )

    def decide(self, view: PassView) -> Decision:
        """Steps 3 and 4: rank, then admit from the head while both guards hold."""
        threshold = self.headroom.threshold
        queue = self.queue
        self._pass_index = view.pass_index
        if not len(queue):
            return NOBODY_WAITS
        if not queue.retracted and self._surely_closed(view, threshold):
            fits = view.load_tokens + (queue.shortest_expected() or 0) <= self.window.tokens
            return Decision((), "kv" if fits else "window")
        load = ActiveLoad(view.load_tokens, view.batch)
        ranked = self._ranking.top(
            queue, view.pass_index, load.mean_remaining_tokens, GRANTS_PER_PASS
        )
        decision = self._gate.decide(
            chain(queue.retracted, ranked),
            view,
            self.window.tokens,
            threshold,
            self._forcing.credit(view.pass_index),
        )
        if not decision.closed and len(decision.grants) < len(queue):
            return Decision(decision.grants, "limit")
        return decision

    def waiting_order(self, view: PassView) -> list[RequestInfo]:
        """Retracted requests, then by rank."""
        load = ActiveLoad(view.load_tokens, view.batch)
        queue = self.queue
        ranked = self._ranking.top(queue, view.pass_index, load.mean_remaining_tokens, queue.fresh)
        return [*queue.retracted, *ranked]

    def predicted_ms(self, sample: StepSample) -> float | None:
        """By the calibrated step model, where the configuration holds one."""
        if self._model is None:
            return None
        return self._model.step_ms(sample.batch, sample.kv_tokens, sample.prefill_tokens)

    def end_pass(
        self, kv_free_tokens: int, kv_capacity_tokens: int, load: ActiveLoad | None
    ) -> None:
        """Moves the memory threshold; remembers the load for the law."""
        self.headroom.observe(kv_free_tokens, kv_capacity_tokens)
        if load is not None:
            self._load = load

    @property
    def kv_threshold(self) -> float | None:
        """delta_kv now in force."""
        return self.headroom.threshold

    def signals(self) -> Signals:
        """Window, slowdown and filtered latency."""
        return Signals(self.window.tokens, self.monitor.sigma, self.monitor.itl_ms)

    def _surely_closed(self, view: PassView, threshold: float) -> bool:
        """Whether no request at all could pass, told without ranking the queue.

        Sound because the guards are monotone: when the shortest expected output does not
        fit into the window, none does, and when the pool is below the threshold before any
        prompt, it is after each.
        """
        if view.batch == 0:
            return False
        oldest = self.queue.oldest()
        if oldest is not None and self._gate.is_starved(oldest, view.pass_index):
            return False
        shortest = self.queue.shortest_expected() or 0
        if view.load_tokens + shortest > self.window.tokens:
            return True
        return view.kv_free_tokens <= threshold * view.kv_capacity_tokens

    def snapshot(self) -> dict[str, Any]:
        """Adds window, slowdown, baseline and memory threshold."""
        return {
            **super().snapshot(),
            "window_tokens": self.window.tokens,
            "h0_tokens": self.window.h0_tokens,
            "load_tokens": self._load.load_tokens,
            "batch": self._load.batch,
            "sigma": self.monitor.sigma,
            "itl_ms": self.monitor.itl_ms,
            "l_min_ms": self.monitor.baseline.l_min_ms,
            "l_min_source": self.monitor.baseline.source,
            "prefill_ms_per_token": self.monitor.prefill_ms_per_token,
            "kv_headroom": self.headroom.threshold,
            "lengths": None if self._lengths is None else self._lengths.snapshot(),
            "forced_credit_tokens": self._forcing.credit(self._pass_index),
            "steps_counted": self.monitor.counted,
            "steps_ignored": self.monitor.ignored,
        }


def _forced_tokens(config: TwpConfig) -> float | None:
    """The paper's forcing knows no bound of any kind."""
    return None if config.forced_per_step is None else config.forced_tokens_per_step


def _order_and_gate(config: TwpConfig) -> tuple[Ranking, Gate]:
    """What ranks and what admits; neither remembers anything."""
    ranking = Ranking(config.w_starvation, config.w_balance, config.w_fairness, config.t_max_steps)
    return ranking, Gate(config.t_max_steps, config.forced_per_step)
