"""One request at a time: does TWP cost TTFT or ITL against stock SGLang?

``python -m benchmarks.light_load --model-path DIR [--rounds N] [-- SGLANG FLAGS]``

Starts stock SGLang and TWP in turn, ``rounds`` times each, drives both with the same
workload at most one request at a time, and prints the ratio of the medians over rounds
beside stock's own spread from round to round. Only ratios within one run mean anything on
a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twp_sglang.serving.child import ServerProcess, free_port

CASES = {"stock": "sglang.launch_server", "twp": "twp_sglang.launch_server"}
METRICS = (("ttft_ms", "p50"), ("ttft_ms", "p95"), ("itl_ms", "p50"), ("itl_ms", "p95"))
START_TIMEOUT_S = 180.0


async def measure(module: str, flags: list[str], folder: Path, arguments: Any) -> dict[str, Any]:
    """Start one server, run the workload, stop it; the summary that bench writes."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["--host", "127.0.0.1", "--port", str(port), *flags]
    server = await ServerProcess.start(words, url, folder / "server.log", module=module)
    try:
        await server.ready(START_TIMEOUT_S, lambda waited_s, line: None)
        report = folder / "bench.json"
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twp_sglang.bench", "run", "--url", url),
            *("--workload", "random", "--rate", "inf", "--concurrency-cap", "1"),
            *("--input-tokens", arguments.input_tokens),
            *("--output-tokens", arguments.output_tokens),
            *("--requests", str(arguments.requests), "--warmup", "3", "--json", str(report)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        if await client.wait() != 0:
            raise SystemExit(f"bench failed against {module}; server log: {server.tail()}")
        summary: dict[str, Any] = json.loads(report.read_text())["summary"]["latency"]
        return summary
    finally:
        await server.stop()


async def compare(arguments: Any, flags: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All rounds, the two cases in turn, beginning with the other one every second round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for number in range(arguments.rounds):
        order = list(CASES) if number % 2 == 0 else list(reversed(CASES))
        for name in order:
            with tempfile.TemporaryDirectory(prefix="twp-light-") as folder:
                summary = await measure(CASES[name], flags, Path(folder), arguments)
            found[name].append(summary)
            print(f"round {number + 1} {name}: TTFT P50 {summary['ttft_ms']['p50']:.1f} ms, "
                  f"ITL P50 {summary['itl_ms']['p50']:.2f} ms", flush=True)  # fmt: skip
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Medians over rounds, their ratio, and stock's own spread."""
    result = Table("metric", "stock", "twp", "twp / stock", "stock's own spread", "verdict")
    for metric, percentile in METRICS:
        values = {
            name: [summary[metric][percentile] for summary in summaries]
            for name, summaries in found.items()
        }
        middle = {name: statistics.median(numbers) for name, numbers in values.items()}
        low, high = min(values["stock"]), max(values["stock"])
        inside = low <= middle["twp"] <= high
        result.add_row(
            f"{metric} {percentile}",
            f"{middle['stock']:.2f}",
            f"{middle['twp']:.2f}",
            f"{middle['twp'] / middle['stock']:.3f}",
            f"{low:.2f} to {high:.2f}",
            "within" if inside else "better" if middle["twp"] < low else "outside",
        )
    return result


def main() -> None:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.light_load", description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=40, help="per round and case")
    parser.add_argument("--input-tokens", default="20@.5,200@.5", help="as bench takes it")
    parser.add_argument("--output-tokens", default="30", help="as bench takes it")
    parser.add_argument("--json", type=Path, help="write all summaries here")
    parser.add_argument("flags", nargs="*", help="after --: flags for both servers")
    arguments = parser.parse_args()
    flags = ["--model-path", arguments.model_path, *arguments.flags]
    found = asyncio.run(compare(arguments, flags))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    Console().print(table(found))


if __name__ == "__main__":
    main()
