"""How fast the simulator is: requests per second of one core, and peak memory.

    python -m benchmarks.simulator_speed [--policy twp] [--requests 100000] [--repeat 3]

Runs the Azure conversation trace (or, without the data folder, a Poisson stream of about its
rate and lengths) on the ``h100-llama31-8b`` profile. Time is the process's CPU time, so that
other work on the machine does not count; the figure is the best of ``--repeat`` runs. With
``--requests`` beyond the trace's length the trace is played several times in a row.
"""

from __future__ import annotations

import argparse
import resource
import time

from twp_sglang.config import POLICY_NAMES, TwpConfig
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import simulate
from twp_sglang.simulator.step_sources import data_dir, step_source
from twp_sglang.workloads.generate import WorkloadSpec, generate
from twp_sglang.workloads.read import read_workload
from twp_sglang.workloads.request import Request
from twp_sglang.workloads.workload import Workload

TRACE = "azure2023/AzureLLMInferenceTrace_conv.csv"
PROFILE = "h100-llama31-8b"


def conversation() -> Workload:
    """The trace, or a stream like it."""
    folder = data_dir()
    if folder is not None and (folder / TRACE).is_file():
        return read_workload(folder / TRACE, "azure")
    stream = {
        "arrivals": {"kind": "poisson", "rate_rps": 5.5},
        "input_tokens": "100-1000@.5,1000-2000@.3,2000-4100@.2",
        "output_tokens": "20-130@.5,130-450@.5",
    }
    spec = {"name": "like Azure conv", "phases": [{"duration_s": 3500, "streams": [stream]}]}
    return generate(WorkloadSpec.model_validate(spec))


def repeated(workload: Workload, count: int) -> list[Request]:
    """``count`` requests: the workload over and over, each play after the one before."""
    span = workload.requests[-1].arrival_s + 1.0
    plays = -(-count // len(workload.requests))
    return [
        request._replace(arrival_s=request.arrival_s + play * span)
        for play in range(plays)
        for request in workload.requests
    ][:count]


def main() -> None:
    """Measure and print one line per policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", choices=POLICY_NAMES, action="append")
    parser.add_argument("--requests", type=int, help="how many [the trace's]")
    parser.add_argument("--time-stretch", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    workload = conversation()
    requests = repeated(workload, arguments.requests or len(workload.requests))
    stretch = arguments.time_stretch
    requests = [r._replace(arrival_s=r.arrival_s * stretch) for r in requests]
    print(f"{workload.name}: {len(requests):,} requests, times x {stretch:g}, {PROFILE}")
    for policy in arguments.policy or ("off", "fcfs", "twp"):
        stock = policy == "off"
        settings = EngineSettings(
            kv_tokens=413_696,
            step_kind="prefill-first" if stock else "mixed",
            decode_chunk_tokens=None if stock else 512,
        )
        best = float("inf")
        for _ in range(arguments.repeat):
            began = time.process_time()
            run = simulate(
                requests,
                settings,
                lambda: step_source(PROFILE).model,
                TwpConfig.model_validate({"policy": policy}),
            )
            best = min(best, time.process_time() - began)
        steps = run.result.steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{policy:>14}: {len(requests) / best:8,.0f} requests/s, {steps / best:9,.0f} steps/s "
            f"({steps:,} steps in {best:.2f} s of CPU), peak memory {peak:,.0f} MB"
        )


if __name__ == "__main__":
    main()
