"""The simulator beside the engine: ``python -m analysis.fidelity --help``, docs/fidelity.md."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from analysis.judging import decisions, latency, tiny_model
from analysis.judging.engine import JudgementError
from twp_sglang.benchmarking.arrivals import parse_burst
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.config import POLICY_NAMES
from twp_sglang.simulator.step_sources import step_source

_EXAMPLES = """\
examples:
  admissions under three policies, on the paper's machine:
    python -m analysis.fidelity decisions --profile paper-v100 --policy twp --policy priority \\
        --policy observe --out fidelity
  a small random model on this CPU, three runs:
    python -m analysis.fidelity latency --requests 240 --rate 12 --out fidelity
  a server of your own flags:
    python -m analysis.fidelity latency --requests 400 --rate 5 --out fidelity -- \\
        --model-path MODEL --twp-policy twp
"""

_TRACED_POLICIES = tuple(name for name in POLICY_NAMES if name != "off")
"""``off`` registers no hook and so records no trace; ``observe`` decides as stock."""


def build_parser() -> argparse.ArgumentParser:
    """The parser."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.fidelity",
        description="How far the simulator can be believed: its decisions beside those of an "
        "emulated engine, its latencies beside those of a real one. Starts its own servers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)

    add = commands.add_parser(
        "decisions", help="one workload through both: the same admissions?", allow_abbrev=False
    ).add_argument
    add("--profile", default="paper-v100", metavar="NAME|FILE", help="step model [paper-v100]")
    add(
        "--policy",
        action="append",
        choices=_TRACED_POLICIES,
        help="may be repeated, one server each [twp]",
    )
    add("--waves", type=_positive, default=2, metavar="N", help="bursts, one after another [2]")
    add("--requests", type=_positive, default=24, metavar="N", help="requests of a burst [24]")
    add("--input-tokens", default="50@.5,200@.3,800@.2", metavar="LAW", help="[the paper's]")
    add("--output-tokens", default="20@.5,50@.3,200@.2", metavar="LAW", help="[the paper's]")
    _common(add)

    add = commands.add_parser(
        "latency", help="calibrated on half a run, judged on the other", allow_abbrev=False
    ).add_argument
    add("--requests", type=_positive, default=240, metavar="N", help="of each run [240]")
    add("--rate", type=float, default=12.0, metavar="RPS", help="requests per second [12]")
    add("--burst", action="append", default=[], metavar="FACTOR:START_S:DURATION_S")
    add("--runs", type=_positive, default=3, metavar="N", help="runs for the spread [3]")
    add("--input-tokens", default="32-256", metavar="LAW", help="[32-256]")
    add("--output-tokens", default="16-64", metavar="LAW", help="[16-64]")
    _common(add)
    return parser


def _common(add: object) -> None:
    assert callable(add)
    add("--seed", type=int, default=0, metavar="N", help="of lengths and arrivals [0]")
    add("--out", type=Path, required=True, metavar="DIR", help="JSON, CSV, PNG, logs and traces")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (1 where nothing was measured, 2 for bad input,
    130 after Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, flags = words, []
    if "--" in words:
        place = words.index("--")
        own, flags = words[:place], words[place + 1 :]
    parser = build_parser()
    arguments = parser.parse_args(own)
    command = shlex.join(["python", "-m", "analysis.fidelity", *words])
    console = Console()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        if arguments.command == "decisions":
            _decisions(arguments, flags, command, console)
        else:
            _latency(arguments, flags, command, console)
    except (JudgementError, TimeoutError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except ValidationError as error:
        first = error.errors()[0]
        place_of = ".".join(str(part) for part in first["loc"])
        print(f"{parser.prog}: error: {place_of}: {first['msg']}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; every server was stopped", file=sys.stderr)
        return 130
    return 0


def _decisions(
    arguments: argparse.Namespace, flags: list[str], command: str, console: Console
) -> None:
    from analysis.judging import report

    step_source(arguments.profile)  # a wrong name ends here, not after a minute
    planned = decisions.waves(
        arguments.waves,
        arguments.requests,
        arguments.input_tokens,
        arguments.output_tokens,
        arguments.seed,
    )
    results = []
    for policy in dict.fromkeys(arguments.policy or ["twp"]):
        console.print(f"policy {policy}: server and simulator", highlight=False)
        results.append(
            asyncio.run(
                decisions.judge(
                    ["--twp-policy", policy, *flags],
                    arguments.profile,
                    planned,
                    arguments.out / f"decisions-{policy}",
                    console,
                )
            )
        )
    report.show_decisions(results, console)
    for path in report.write_decisions(results, command, arguments.out):
        console.print(str(path), highlight=False, soft_wrap=True)


def _latency(
    arguments: argparse.Namespace, flags: list[str], command: str, console: Console
) -> None:
    from analysis.judging import report

    traffic = latency.Traffic(
        requests=arguments.requests,
        rate_rps=arguments.rate,
        bursts=tuple(parse_burst(text) for text in arguments.burst),
        input_tokens=parse_lengths(arguments.input_tokens).text,
        output_tokens=parse_lengths(arguments.output_tokens).text,
        seed=arguments.seed,
    )
    named = {word.partition("=")[0] for word in flags}
    if not named & {"--model-path", "--model", "--twp-emulate"}:
        flags = [*tiny_model.flags(arguments.out / "model"), *flags]
    if "--twp-policy" not in named:
        # Arrival order, no feedback from step times: the step model alone is judged.
        flags = [*flags, "--twp-policy", "fcfs"]
    result = asyncio.run(
        latency.judge(flags, traffic, arguments.runs, arguments.out / "latency-runs", console)
    )
    report.show_latency(result, console)
    for path in report.write_latency(result, command, arguments.out):
        console.print(str(path), highlight=False, soft_wrap=True)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
