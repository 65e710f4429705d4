"""Second stage: trials on the real thing around a safe configuration.

The model knows stability, not what users feel. A callable ``evaluate(configuration) ->
metrics`` (a trace replay, a live server) is tried around the tuned setting, within a
budget of calls and never outside the region in which the worst-case goals hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from controllers.tuning.problem import TuningProblem
from controllers.tuning.tune import TuningResult

Evaluate = Callable[[dict[str, Any]], Mapping[str, float]]

_STEP: Final = 0.35  # of a coordinate's log range: the first stride of the pattern search
_SHRINK: Final = 0.5
_SMALLEST_STEP: Final = 0.01
_ATTEMPTS_PER_TRIAL: Final = 200


@dataclass(frozen=True)
class SafeRegion:
    """A box around a safe configuration, and the goals that must hold in it.

    Attributes:
        start: the safe configuration, flat keys.
        bounds: key -> (lowest, highest) of the keys that may vary; both positive.
        problem: the tuning problem whose goals every trial must keep.
    """

    start: dict[str, Any]
    bounds: dict[str, tuple[float, float]]
    problem: TuningProblem

    def refusal(self, configuration: Mapping[str, Any]) -> str | None:
        """Why ``configuration`` may not be tried, None when it may."""
        for key, (low, high) in self.bounds.items():
            if not low * (1 - 1e-12) <= configuration[key] <= high * (1 + 1e-12):
                return f"{key} = {configuration[key]:g} is outside {low:g} .. {high:g}"
        if not (
            configuration["h_min_tokens"]
            <= configuration["h0_tokens"]
            <= configuration["h_max_tokens"]
        ):
            return "h_min_tokens <= h0_tokens <= h_max_tokens does not hold"
        goal = self.problem.goals.disk_margin
        found = self.problem.verdict(configuration, goal)
        if not found.stable or found.disk_margin < goal:
            return f"disk margin {found.disk_margin:.3f} < {goal:g}"
        broken = self.problem.violations(self.problem.assess(configuration, exact=2))
        return "; ".join(broken) or None


@dataclass(frozen=True)
class Trial:
    """One evaluated configuration with its metrics; ``error`` where evaluate raised."""

    configuration: dict[str, Any]
    metrics: dict[str, float]
    score: float
    error: str = ""


@dataclass(frozen=True)
class SearchResult:
    """Best trial, all trials in order, and the sampler that chose them."""

    best: Trial
    trials: tuple[Trial, ...]
    sampler: Literal["optuna", "pattern"]


def safe_region(result: TuningResult, spread: float = 2.0) -> SafeRegion:
    """Region within a factor ``spread`` of a tuned configuration.

    H_max may only fall, because it carries the bound on the batch.

    Raises:
        ValueError: ``spread`` is not above 1.
    """
    if not (math.isfinite(spread) and spread > 1):
        raise ValueError(f"spread = {spread:g}: must be finite and above 1")
    start = result.configuration
    bounds = {}
    for key in (result.problem.gain_name, "beta", "h0_tokens", "h_max_tokens", "sigma_ref"):
        if key not in start:
            continue
        low, high = start[key] / spread, start[key] * spread
        if key in (result.problem.gain_name, "beta"):
            high = min(high, 1.0)
        if key == "h_max_tokens":
            high = start[key]
        if key == "sigma_ref":
            low = max(low, 1.001)
        if key in ("h0_tokens", "h_max_tokens"):
            low = max(low, start["h_min_tokens"])
        bounds[key] = (min(low, start[key]), high)
    return SafeRegion(start=dict(start), bounds=bounds, problem=result.problem)


def search(
    evaluate: Evaluate,
    region: SafeRegion,
    budget: int,
    *,
    objective: str,
    maximise: bool = True,
    seed: int = 0,
    sampler: Literal["auto", "optuna", "pattern"] = "auto",
) -> SearchResult:
    """Best configuration of ``region`` by ``metrics[objective]`` in ``budget`` evaluations.

    The tuned start is always the first trial, so the result is never worse than it. Trials
    that raise, or whose objective is not finite, count and lose. ``auto`` takes optuna when
    it is installed; otherwise a seeded pattern search in log coordinates.

    Raises:
        ValueError: a budget below 1, an objective that the first trial does not report, or
            no trial that could be scored.
        ModuleNotFoundError: ``sampler="optuna"`` without optuna.
    """
    if budget < 1:
        raise ValueError(f"budget = {budget}: must be at least 1")
    if (reason := region.refusal(region.start)) is not None:
        raise ValueError(f"the start is not safe: {reason}")
    runner = _Runner(evaluate, region, objective, 1.0 if maximise else -1.0)
    first = runner.run(region.start)
    if not first.error and objective not in first.metrics:
        raise ValueError(
            f"objective {objective!r} is not among the metrics: {', '.join(first.metrics)}"
        )
    use_optuna = sampler == "optuna" or (sampler == "auto" and _has_optuna())
    if use_optuna:
        _optuna_search(runner, budget, seed)
    else:
        _pattern_search(runner, budget, seed)
    best = max(runner.trials, key=lambda trial: trial.score)
    if not math.isfinite(best.score):
        raise ValueError(f"no trial could be scored; the first said: {first.error or 'not finite'}")
    return SearchResult(best, tuple(runner.trials), "optuna" if use_optuna else "pattern")


class _Runner:
    """Evaluates safe configurations and keeps the book."""

    def __init__(self, evaluate: Evaluate, region: SafeRegion, objective: str, sign: float) -> None:
        self.evaluate, self.region, self.objective, self.sign = evaluate, region, objective, sign
        self.trials: list[Trial] = []
        self.keys = list(region.bounds)
        self.low = np.log([region.bounds[key][0] for key in self.keys])
        self.range = np.log([region.bounds[key][1] for key in self.keys]) - self.low

    def configuration(self, unit: np.ndarray) -> dict[str, Any]:
        """Configuration at ``unit`` in the unit cube of log coordinates."""
        values = np.exp(self.low + np.clip(unit, 0.0, 1.0) * self.range)
        found = dict(self.region.start)
        for key, value in zip(self.keys, values, strict=True):
            low, high = self.region.bounds[key]
            found[key] = min(max(float(f"{value:.4g}"), low), high)
        return found

    def unit(self, configuration: Mapping[str, Any]) -> np.ndarray:
        """Inverse of :meth:`configuration`."""
        logs = np.log([configuration[key] for key in self.keys])
        return np.asarray((logs - self.low) / np.where(self.range > 0, self.range, 1.0))

    def seen(self, configuration: Mapping[str, Any]) -> bool:
        return any(trial.configuration == configuration for trial in self.trials)

    def run(self, configuration: dict[str, Any]) -> Trial:
        """Evaluate a configuration known to be safe."""
        try:
            metrics = {k: float(v) for k, v in self.evaluate(dict(configuration)).items()}
            value = self.sign * metrics.get(self.objective, math.nan)
            trial = Trial(configuration, metrics, value if math.isfinite(value) else -math.inf)
        except Exception as error:  # a crashed server is a bad trial, not the end of the search
            trial = Trial(configuration, {}, -math.inf, f"{type(error).__name__}: {error}")
        self.trials.append(trial)
        return trial


def _pattern_search(runner: _Runner, budget: int, seed: int) -> None:
    """Random directions from the best point so far; the stride halves when all fail."""
    rng = np.random.default_rng(seed)
    stride, failures = _STEP, 0
    for _ in range(_ATTEMPTS_PER_TRIAL * budget):
        if len(runner.trials) >= budget or stride < _SMALLEST_STEP:
            return
        best = max(runner.trials, key=lambda trial: trial.score)
        direction = rng.normal(size=len(runner.keys))
        direction /= np.linalg.norm(direction)
        candidate = runner.configuration(runner.unit(best.configuration) + stride * direction)
        improved = False
        if not runner.seen(candidate) and runner.region.refusal(candidate) is None:
            improved = runner.run(candidate).score > best.score
        failures = 0 if improved else failures + 1
        if failures >= 2 * len(runner.keys):
            stride, failures = stride * _SHRINK, 0


def _has_optuna() -> bool:
    try:
        import optuna  # noqa: F401
    except ImportError:
        return False
    return True


def _optuna_search(runner: _Runner, budget: int, seed: int) -> None:
    """Tree-structured Parzen estimator; unsafe suggestions are pruned without a call."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True)
    )
    for _ in range(_ATTEMPTS_PER_TRIAL * budget):
        if len(runner.trials) >= budget:
            return
        trial = study.ask()
        unit = np.array([trial.suggest_float(key, 0.0, 1.0) for key in runner.keys])
        candidate = runner.configuration(unit)
        if runner.seen(candidate) or runner.region.refusal(candidate) is not None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        score = runner.run(candidate).score
        state = optuna.trial.TrialState
        if math.isfinite(score):
            study.tell(trial, score)
        else:
            study.tell(trial, state=state.FAIL)
