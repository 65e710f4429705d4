"""Short ways to requests, passes and samples for the tests of the scheduling core."""

from __future__ import annotations

from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.policies.slo import Slo
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.step_model import OnlineStepModel


def request(seq: int, **attributes: Any) -> RequestInfo:
    """A request of 10 prompt and 20 expected output tokens that came in pass 0."""
    values: dict[str, Any] = {"arrival_pass": 0, "prompt_tokens": 10, "expected_tokens": 20}
    return RequestInfo(f"r{seq}", seq, **{**values, **attributes})


def view(**attributes: Any) -> PassView:
    """Pass 1 of an engine with one running request of 20 tokens and all of 1,000 KV free."""
    values: dict[str, Any] = {
        "pass_index": 1,
        "load_tokens": 20,
        "batch": 1,
        "kv_free_tokens": 1000,
        "kv_capacity_tokens": 1000,
    }
    return PassView(**{**values, **attributes})


def sample(duration_ms: float | None, **attributes: Any) -> StepSample:
    """A decode step of 8 requests."""
    values: dict[str, Any] = {
        "step": 1,
        "kind": "decode",
        "batch": 8,
        "prefill_tokens": 0,
        "kv_tokens": 500,
    }
    return StepSample(**{**values, "duration_ms": duration_ms, **attributes})


def config(**fields: Any) -> TwpConfig:
    """A configuration without warm-up, so that the first sample counts, and without delivery, so
    that steps may take the whole objective."""
    return TwpConfig(**{"warmup_steps": 0, "itl_delivery_ms": 0.0, **fields})


def seasoned(policy: Slo) -> Slo:
    """``policy`` after it has seen the largest batches and chunks there are: how far it goes
    beyond what it saw bounds nothing any more."""
    seasoned_model(policy.model)
    return policy


def seasoned_model(model: OnlineStepModel) -> OnlineStepModel:
    """The same for a step model."""
    learning = model._learning
    learning._rows_seen = learning._prefill_seen = 10_000
    learning._knee, learning._beyond_knee = model.model.b0, 1_000
    return model
