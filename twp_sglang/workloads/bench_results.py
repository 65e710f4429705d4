"""Result files of load generators, replayed: SGLang, vLLM and this package's own.

SGLang's ``bench_serving --output-details`` and vLLM's ``bench serve --save-detailed`` write
``input_lens`` and ``output_lens`` per request. Where the file has ``start_times`` these are
the arrivals; otherwise they are drawn anew from its ``request_rate`` (Poisson, from the
seed), since the file does not hold them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from twp_sglang.workloads.fields import Place, WorkloadError, opened, seconds, tokens
from twp_sglang.workloads.request import Request
from twp_sglang.workloads.workload import Workload, in_order

_OWN = "twp-bench/1"


def read_bench_result(path: Path, limit: int | None = None, seed: int = 0) -> Workload:
    """Read a result file; a JSON-lines file gives its last run.

    Raises:
        WorkloadError: the file cannot be read, lacks the lengths of each request, or a
            value is bad.
    """
    place = Place(path)
    with opened(path) as handle:
        text = handle.read()
    run = _run(text, place)
    if run.get("schema_version") == _OWN:
        return _own(run, place, limit)
    inputs, outputs = (_list(run, name, place) for name in ("input_lens", "output_lens"))
    if len(inputs) != len(outputs):
        raise place.error(f"{len(inputs)} input_lens and {len(outputs)} output_lens")
    notes = []
    starts = run.get("start_times")
    if isinstance(starts, list) and len(starts) == len(inputs):
        # Any clock's origin; the smallest becomes 0.
        numbers = [float(value) for value in starts if isinstance(value, int | float)]
        if len(numbers) != len(starts):
            raise place.error("start_times holds something that is no number")
        first = min(numbers, default=0.0)
        arrivals = [seconds(value - first, "start_times", place) for value in numbers]
    else:
        arrivals, note = _drawn(run, len(inputs), seed, place)
        notes.append(note)
    requests = []
    failed = 0
    for arrival_s, given, made in zip(arrivals, inputs, outputs, strict=True):
        output_tokens = tokens(made, "output_lens", place, least=0)
        if not output_tokens:
            failed += 1
            continue
        requests.append(Request(arrival_s, tokens(given, "input_lens", place), output_tokens))
    if failed:
        notes.append(f"{failed} requests left out: they produced nothing")
    return in_order(path.name, requests[:limit], notes)


def _run(text: str, place: Place) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except json.JSONDecodeError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            loaded = json.loads(lines[-1]) if lines else None
        except json.JSONDecodeError as error:
            raise place.error(f"is not JSON ({error.msg})") from None
    if not isinstance(loaded, dict):
        raise place.error("holds no result object")
    return loaded


def _list(run: dict[str, Any], name: str, place: Place) -> list[Any]:
    value = run.get(name)
    if not isinstance(value, list) or not value:
        raise place.error(
            f"no {name} per request; write the file with --output-details (SGLang) or "
            "--save-detailed (vLLM)"
        )
    return value


def _drawn(run: dict[str, Any], count: int, seed: int, place: Place) -> tuple[list[float], str]:
    try:
        rate = float(run.get("request_rate", math.inf))
    except (TypeError, ValueError):
        raise place.error(f"request_rate is {run['request_rate']!r}, not a number") from None
    if math.isinf(rate):
        return [0.0] * count, "no start_times and no finite request_rate: all arrive at once"
    if not rate > 0:
        raise place.error(f"request_rate is {rate:g}; it must be above 0")
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    gaps[0] = 0.0
    return np.cumsum(gaps).tolist(), f"no start_times: arrivals drawn, Poisson at {rate:g}/s"


def _own(run: dict[str, Any], place: Place, limit: int | None) -> Workload:
    try:
        requests = []
        for record in run["requests"]:
            length = record["planned_input_tokens"] or record["prompt_tokens"]
            if not length:
                raise place.error(f"request {record['index']}: its prompt length is not known")
            requests.append(
                Request(
                    seconds(record["arrival_s"], "arrival_s", place),
                    tokens(length, "planned_input_tokens", place),
                    # What was asked for: with ignore_eos that is what comes.
                    tokens(
                        record["output_tokens"] or record["planned_output_tokens"],
                        "output_tokens",
                        place,
                    ),
                    max_new_tokens=tokens(
                        record["planned_output_tokens"], "planned_output_tokens", place
                    ),
                )
            )
    except (KeyError, TypeError) as error:
        raise WorkloadError(f"{place.path}: not a result of `bench run` ({error})") from None
    return in_order(place.path.name, requests[:limit])
