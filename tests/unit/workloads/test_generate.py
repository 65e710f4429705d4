"""Generators: rates, shapes, seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twp_sglang.workloads.fields import WorkloadError
from twp_sglang.workloads.generate import WorkloadSpec, generate, read_spec
from twp_sglang.workloads.workload import Workload, summarise


def drawn(arrivals: dict[str, Any], duration_s: float = 2000.0, **stream: Any) -> Workload:
    lengths = {"input_tokens": "50", "output_tokens": "20", **stream}
    phases = [{"duration_s": duration_s, "streams": [{"arrivals": arrivals, **lengths}]}]
    return generate(WorkloadSpec.model_validate({"phases": phases}), seed=4)


def times(workload: Workload) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([r.arrival_s for r in workload.requests])


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ({"kind": "poisson", "rate_rps": 5}, 1.0),
        ({"kind": "even", "rate_rps": 5}, 0.0),
        ({"kind": "gamma", "rate_rps": 5, "cv": 3}, 3.0),
        ({"kind": "gamma", "rate_rps": 5, "cv": 0.5}, 0.5),
    ],
)
def test_rate_and_burstiness_are_what_was_asked(arrivals: dict[str, Any], cv: float) -> None:
    summary = summarise(drawn(arrivals))
    assert summary.rate_rps == pytest.approx(5, rel=0.1)
    assert summary.arrival_cv == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_on_off_is_silent_when_off() -> None:
    found = times(drawn({"kind": "on-off", "on_rps": 10, "on_s": 10, "off_s": 30}, duration_s=400))
    # The first arrival moves to 0, a moment after the phase began.
    assert ((found % 40) < 10.0).mean() > 0.98
    assert len(found) == pytest.approx(1000, rel=0.15)


def test_a_ramp_rises() -> None:
    found = times(drawn({"kind": "ramp", "from_rps": 0, "to_rps": 10}, duration_s=400))
    assert len(found) == pytest.approx(2000, rel=0.1)
    assert (found < 200).mean() == pytest.approx(0.25, abs=0.03)


def test_streams_mix_and_phases_follow_each_other() -> None:
    def stream(rate: float, client: str, length: str) -> dict[str, Any]:
        return {
            "arrivals": {"kind": "poisson", "rate_rps": rate},
            "input_tokens": length,
            "output_tokens": "1-9",
            "client": client,
            "shared_prefix_tokens": 16,
        }

    spec = WorkloadSpec.model_validate(
        {
            "phases": [
                {"duration_s": 100, "streams": [stream(3, "a", "100"), stream(1, "b", "8")]},
                {"duration_s": 50, "streams": [stream(2, "c", "200")]},
            ]
        }
    )
    requests = generate(spec, seed=1).requests
    by_client = {c: [r for r in requests if r.client == c] for c in "abc"}
    assert len(by_client["a"]) == pytest.approx(300, rel=0.2)
    assert max(r.arrival_s for r in by_client["a"]) < 100 < by_client["c"][0].arrival_s + 2
    assert by_client["a"][0].prefix[0].tokens == 16
    # A prompt shorter than the prefix does not hold it.
    assert by_client["b"][0].prefix == ()
    assert generate(spec, seed=1) == generate(spec, seed=1) != generate(spec, seed=2)


def test_another_rate_leaves_the_lengths_alone() -> None:
    slow, fast = (
        drawn({"kind": "poisson", "rate_rps": rate}, 100, output_tokens="1-1000") for rate in (1, 4)
    )
    shorter = len(slow.requests)
    assert [r.output_tokens for r in slow.requests] == [
        r.output_tokens for r in fast.requests[:shorter]
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[phases]]\nduration_s = -1\nstreams = []", "duration_s"),
        (
            '[[phases]]\nduration_s = 1\n[[phases.streams]]\ninput_tokens = "x"\n'
            'output_tokens = "5"\narrivals = {kind = "poisson", rate_rps = 1}',
            "not a length",
        ),
        (
            '[[phases]]\nduration_s = 1\n[[phases.streams]]\ninput_tokens = "5"\n'
            'output_tokens = "5"\narrivals = {kind = "poison", rate_rps = 1}',
            "poison",
        ),
        ("[[phases", "cannot be read"),
    ],
)
def test_a_bad_specification_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read_spec(path)


@pytest.mark.parametrize("rate", [1e9, 1e-9])
def test_absurd_amounts_are_refused(rate: float) -> None:
    with pytest.raises(WorkloadError, match=r"requests|no request"):
        drawn({"kind": "poisson", "rate_rps": rate})
