"""The traffic of a cell: recorded or generated, one half of it, stretched to a load.

Constants are chosen on the ``tune`` half and judged on the ``test`` half. Of a recorded trace
these are the first and the second half of its requests; a generated workload is drawn anew,
from other random numbers. A seed picks a stretch of consecutive requests of the half, so
that several seeds see different traffic; arrival times are then scaled by one factor to the
load asked for, which leaves the burstiness as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from analysis.cells.machines import Machine
from analysis.cells.utilisation import engine_time, span_s
from twp_sglang.simulator.step_sources import DATA_DIR_VARIABLE, data_dir
from twp_sglang.workloads.generate import (
    Phase,
    Poisson,
    Stream,
    WorkloadSpec,
    generate,
    read_spec,
)
from twp_sglang.workloads.read import FORMATS, read_workload
from twp_sglang.workloads.request import Request

Half = Literal["tune", "test"]

RECORDED = {
    "azure-conv": ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure"),
    "azure-code": ("azure2023/AzureLLMInferenceTrace_code.csv", "azure"),
    "servegen": ("servegen/deepseek-r1_resample_morning1h.csv", "servegen"),
}
"""Traces of the data folder by name."""

PHASES = ("azure-code", "azure-conv", "servegen")
"""Of the traffic ``phases``: code, conversation, long outputs, each at the same load."""

GENERATED = ("paper-mixture", "paper-burst")
"""The paper's four-way mixture of lengths; the same with a tenth of the time at 4 times the
rate. The paper gives no rates: they follow from the load."""

NAMES = (*RECORDED, "phases", *GENERATED)

_INPUTS, _OUTPUTS = "50@.5,200@.3,800@.2", "20@.5,50@.3,200@.2"
_BURST = 4.0


class Traffic(NamedTuple):
    """Requests of one run, in order of arrival, at the load asked for."""

    requests: tuple[Request, ...]
    span_s: float
    whole_half: bool
    """Whether the half holds no more requests than these: seeds then differ by noise only."""


def check(name: str) -> None:
    """Read ``name`` once, so that a mistake shows before anything runs.

    Raises:
        ValueError: no such traffic, or a file that cannot be read.
    """
    for part in _parts(name):
        _drawn(part, "tune", 0, 16)


def cell_traffic(
    name: str, machine: Machine, half: Half, load: float, seed: int, requests: int
) -> Traffic:
    """The requests of one run.

    Args:
        name: one of :data:`NAMES`, or ``FILE:FORMAT`` with a format of
            ``twp_sglang.simulate``.
        machine: whose engine time the load counts.
        half: which part of the traffic.
        load: utilisation U to reach, see :mod:`analysis.cells.utilisation`.
        seed: which stretch of the half.
        requests: how many; of several phases each gets its share.

    Raises:
        ValueError: no such traffic, or all requests arrive at once.
    """
    parts = _parts(name)
    share = max(2, requests // len(parts))
    placed: list[Request] = []
    start_s, whole = 0.0, True
    for part in parts:
        drawn, is_whole = _drawn(part, half, seed, share)
        whole &= is_whole
        span = span_s(drawn)
        if span <= 0.0:
            raise ValueError(
                f"traffic {part}: {len(drawn)} requests that all arrive at once have no load; "
                "take more of them"
            )
        needed = engine_time(drawn, machine.model, machine.kv_tokens).needed_s
        factor = needed / (load * span)
        first = drawn[0].arrival_s
        placed += [r._replace(arrival_s=start_s + (r.arrival_s - first) * factor) for r in drawn]
        start_s += span * factor
    return Traffic(tuple(placed), start_s, whole)


def mean_output_tokens(name: str, half: Half) -> float:
    """Mean output length of a half."""
    lengths = [np.mean([r.output_tokens for r in _all_of(part, half)]) for part in _parts(name)]
    return float(np.mean(lengths))


def output_lengths(name: str, half: Half) -> list[int]:
    """Output lengths of a half."""
    return [r.output_tokens for part in _parts(name) for r in _all_of(part, half)]


def mean_prompt_tokens(name: str, half: Half) -> float:
    """Mean prompt length of a half."""
    lengths = [np.mean([r.input_tokens for r in _all_of(part, half)]) for part in _parts(name)]
    return float(np.mean(lengths))


def source_file(name: str) -> tuple[Path, str] | None:
    """File and format of a recorded traffic; None for a generated one.

    Raises:
        ValueError: no such traffic, or no data folder.
    """
    if name in GENERATED:
        return None
    if name in RECORDED:
        relative, form = RECORDED[name]
        folder = data_dir()
        path = None if folder is None else folder / relative
        if path is None or not path.is_file():
            raise ValueError(
                f"traffic {name}: {relative} is looked for in the folder that {DATA_DIR_VARIABLE} "
                "names; set it, or give a trace as FILE:FORMAT"
            )
        return path, form
    file, colon, form = name.rpartition(":")
    if not colon or form not in FORMATS:
        raise ValueError(
            f"traffic {name}: give one of {', '.join(NAMES)}, or FILE:FORMAT with a format of "
            f"{', '.join(FORMATS)}"
        )
    return Path(file), form


def files(name: str) -> list[Path]:
    """Every file that ``name`` reads."""
    return [found[0] for part in _parts(name) if (found := source_file(part)) is not None]


def _parts(name: str) -> tuple[str, ...]:
    return PHASES if name == "phases" else (name,)


def _is_drawn(name: str) -> bool:
    found = source_file(name)
    return found is None or found[1] == "spec"


def _drawn(name: str, half: Half, seed: int, count: int) -> tuple[Sequence[Request], bool]:
    """``count`` consecutive requests of a half, or all; whether it is all."""
    if _is_drawn(name):
        # Odd and even seeds never meet: the halves share no draw.
        return _generated(name, 2 * seed + (half == "test"), count), False
    everything = _all_of(name, half)
    spare = len(everything) - count
    if spare <= 0:
        return everything, True
    start = int(np.random.default_rng([seed, half == "test"]).integers(spare + 1))
    return everything[start : start + count], False


_TYPICAL = 2000
"""Requests of a generated workload that stand for it where its lengths are asked for."""


def _all_of(name: str, half: Half) -> Sequence[Request]:
    if _is_drawn(name):
        return _generated(name, int(half == "test"), _TYPICAL)
    everything = _recorded(name)
    middle = len(everything) // 2
    return everything[:middle] if half == "tune" else everything[middle:]


@functools.lru_cache(maxsize=8)
def _recorded(name: str) -> tuple[Request, ...]:
    found = source_file(name)
    assert found is not None
    path, form = found
    # A file without times gets some; the load scales them.
    rate = 1.0 if form == "gsm8k" else None
    requests = read_workload(path, form, rate_rps=rate).requests
    if len(requests) < 4:
        raise ValueError(f"traffic {name}: {len(requests)} requests cannot be halved; 4 can")
    return requests


def _generated(name: str, seed: int, count: int) -> Sequence[Request]:
    found = source_file(name)
    if found is not None:
        return generate(read_spec(found[0]), seed, count).requests
    return generate(_paper_spec(name, count), seed, count).requests


def _paper_spec(name: str, count: int) -> WorkloadSpec:
    def phase(rate: float, duration_s: float) -> Phase:
        stream = Stream(
            arrivals=Poisson(rate_rps=rate), input_tokens=_INPUTS, output_tokens=_OUTPUTS
        )
        return Phase(duration_s=duration_s, streams=(stream,))

    if name == "paper-mixture":
        # Half as many again as are wanted, so that the draw is never short.
        return WorkloadSpec(name=name, phases=(phase(1.0, 1.5 * count + 30.0),))
    total_s = count / (0.9 + 0.1 * _BURST)
    return WorkloadSpec(
        name=name,
        phases=(
            phase(1.0, 0.45 * total_s),
            phase(_BURST, 0.1 * total_s),
            phase(1.0, 0.95 * total_s + 30.0),
        ),
    )
