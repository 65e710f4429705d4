"""The command line of the load generator."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError

from twp_sglang.benchmarking.arrivals import ArrivalProcess, parse_burst
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.benchmarking.settings import (
    GSM8K_OUTPUT,
    RANDOM_INPUT,
    RANDOM_OUTPUT,
    Api,
    Mixture,
    PromptKind,
    RunSettings,
    WorkloadName,
)
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.one_line_parser import OneLineParser

_EXAMPLES = """\
examples:
  a burst of GSM8K questions, four times the rate for five seconds:
    python -m twp_sglang.bench run --workload gsm8k --requests 200 --rate 2 \\
        --burst 4:20:5 --slo ttft=2s,itl_p99=200ms --json twp.json --png twp.png
  the paper's mixture, every length exact:
    python -m twp_sglang.bench run --workload mixture --requests 250 --rate 18 --json mix.json
  a trace at a tenth of its speed, first 500 requests:
    python -m twp_sglang.bench run --workload csv --trace trace.csv --time-stretch 10 \\
        --limit 500 --json trace.json
  any OpenAI-compatible server:
    python -m twp_sglang.bench run --api openai-chat --url http://127.0.0.1:8000 \\
        --workload gsm8k --requests 50 --rate 1 --json other.json
"""


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the message of a ValueError, which it would swallow."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _count(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a whole number") from None
    if value < least:
        raise ValueError(f"{value} is too small; give at least {least}")
    return value


def _positive(text: str, *, infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if math.isnan(value) or value <= 0 or (math.isinf(value) and not infinite):
        raise ValueError(f"'{text}': give a {'' if infinite else 'finite '}number above 0")
    return value


def _temperature(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _positive(text)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{text}' is not an address; write it like http://127.0.0.1:30000")
    base = text.rstrip("/")
    return base.removesuffix("/v1")  # the address that OpenAI clients are given


def _tokenizer(text: str) -> str | None:
    return None if text == "none" else text


def build_parser() -> OneLineParser:
    """The parser of ``python -m twp_sglang.bench``."""
    parser = OneLineParser(
        prog="python -m twp_sglang.bench",
        description="Open-loop load generator: replays a workload, records every token's time.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,compare}")
    _add_run(commands)
    compare = commands.add_parser(
        "compare",
        help="put runs side by side",
        description="Print runs beside the first one, with ratios, and draw them.",
    )
    compare.add_argument("files", nargs="+", type=Path, metavar="RUN.json", help="first is base")
    compare.add_argument(
        "--png", type=Path, default=Path("compare.png"), help="figure to write (%(default)s)"
    )
    compare.add_argument(
        "--slo", type=_typed(parse_slos), default=(), metavar="METRIC=LIMIT,...",
        help="judge all runs by these SLOs instead of their own",
    )  # fmt: skip
    compare.add_argument("--no-png", action="store_true", help="write no figure")
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="measure one run",
        description="Replay a workload against a server and write one JSON file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = _typed(lambda text: _count(text, 1))
    positive = _typed(_positive)

    server = run.add_argument_group("server")
    server.add_argument(
        "--url", type=_typed(_url), default="http://127.0.0.1:30000", help="(%(default)s)"
    )
    server.add_argument(
        "--api", choices=get_args(Api), default="sglang",
        help="sglang: /generate; openai: /v1/completions; openai-chat: /v1/chat/completions "
        "(%(default)s)",
    )  # fmt: skip
    server.add_argument("--model", help="model name to ask for (default: the server's)")
    server.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    server.add_argument(
        "--no-flush", dest="flush", action="store_false",
        help="leave the prefix cache as it is (default: POST /flush_cache before the run)",
    )  # fmt: skip

    load = run.add_argument_group("load")
    load.add_argument("--workload", choices=get_args(WorkloadName), required=True)
    load.add_argument("--requests", type=count, metavar="N")
    load.add_argument(
        "--rate", type=_typed(lambda text: _positive(text, infinite=True)), metavar="R",
        help="requests per second outside bursts; inf sends all at once",
    )  # fmt: skip
    load.add_argument(
        "--burst", action="append", type=_typed(parse_burst), default=[],
        metavar="FACTOR:START_S:DURATION_S",
        help="multiply the rate for a while; may be given several times",
    )  # fmt: skip
    load.add_argument(
        "--arrivals", choices=get_args(ArrivalProcess), default="poisson", help="(%(default)s)"
    )
    load.add_argument(
        "--seed", type=_typed(lambda text: _count(text, 0)), default=0,
        help="of arrivals and lengths; prompts are new in every run (%(default)s)",
    )  # fmt: skip
    load.add_argument(
        "--mixture", choices=get_args(Mixture), default="workloads",
        help="for --workload mixture: prompt lengths of the paper's four workloads or of its "
        "section VI run (%(default)s)",
    )  # fmt: skip
    lengths = _typed(parse_lengths)
    load.add_argument(
        "--input-tokens", type=lengths, metavar="LAW",
        help="prompt lengths: N, LOW-HIGH, or a mixture like 50@.5,200@.3,800@.2 "
        f"(random: {RANDOM_INPUT})",
    )  # fmt: skip
    load.add_argument(
        "--output-tokens", type=lengths, metavar="LAW",
        help=f"tokens asked for, same notation (random: {RANDOM_OUTPUT}, gsm8k: {GSM8K_OUTPUT})",
    )  # fmt: skip
    load.add_argument(
        "--trace", type=Path, metavar="FILE", help="CSV with t_s,input_tokens,output_tokens"
    )
    load.add_argument("--time-stretch", type=positive, default=1.0, metavar="X",
                      help="multiply the trace's times; 2 halves the rate")  # fmt: skip
    load.add_argument("--limit", type=count, metavar="N", help="first N requests of the trace")
    load.add_argument(
        "--concurrency-cap", type=count, metavar="N",
        help="at most N requests in flight; the run is then no longer open-loop",
    )  # fmt: skip

    content = run.add_argument_group("prompts and sampling")
    content.add_argument(
        "--prompts", choices=get_args(PromptKind), default="auto",
        help="token ids or text; auto: ids where lengths define the workload and the API takes "
        "them (%(default)s)",
    )  # fmt: skip
    content.add_argument(
        "--tokenizer", type=_tokenizer, default=None, metavar="PATH|none",
        help="makes text lengths exact; needs transformers (none)",
    )  # fmt: skip
    content.add_argument(
        "--vocab-size", type=count, metavar="N",
        help="token ids are drawn below N (default: the model's, if readable)",
    )  # fmt: skip
    content.add_argument("--temperature", type=_typed(_temperature), default=0.0, help="(0)")
    content.add_argument(
        "--ignore-eos", action=argparse.BooleanOptionalAction, default=None,
        help="generate to the planned length (default: yes, but not for gsm8k)",
    )  # fmt: skip

    measuring = run.add_argument_group("measuring")
    measuring.add_argument(
        "--slo", type=_typed(parse_slos), default=(), metavar="METRIC=LIMIT,...",
        help="for goodput: ttft, tpot, e2e, itl_p50, itl_p95, itl_p99, itl_max; "
        "for example ttft=2s,itl_p99=50ms",
    )  # fmt: skip
    measuring.add_argument(
        "--warmup", type=_typed(lambda text: _count(text, 0)), default=2, metavar="N",
        help="requests sent one by one before the run, not counted (%(default)s)",
    )  # fmt: skip
    measuring.add_argument("--timeout", type=positive, default=600.0, metavar="S",
                           help="seconds until a request counts as timed out (600)")  # fmt: skip

    output = run.add_argument_group("output")
    output.add_argument("--json", type=Path, required=True, metavar="OUT")
    output.add_argument("--png", type=Path, metavar="OUT", help="draw the run")
    output.add_argument("--label", default="", help="name in tables (default: the file's)")


def check_writable(flag: str, path: Path) -> None:
    """Make sure, before an hour of measuring, that its result can be written.

    Raises:
        ValueError: ``path`` is a folder, or lies in one that cannot be made or written.
    """
    if path.is_dir():
        raise ValueError(f"{flag} {path}: is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{flag} {path}: its folder cannot be made: {error}") from None
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{flag} {path}: its folder cannot be written; name another")


def settings_from(arguments: argparse.Namespace) -> RunSettings:
    """The settings that parsed arguments of ``run`` stand for.

    Raises:
        ValueError: flags that do not go together, or an output that cannot be written.
    """
    for flag, path in (("--json", arguments.json), ("--png", arguments.png)):
        if path is not None:
            check_writable(flag, path)
    try:
        return RunSettings(
            url=arguments.url,
            api=arguments.api,
            model=arguments.model,
            api_key_env=arguments.api_key_env,
            flush=arguments.flush,
            workload=arguments.workload,
            requests=arguments.requests,
            rate_rps=arguments.rate,
            bursts=tuple(arguments.burst),
            arrivals=arguments.arrivals,
            seed=arguments.seed,
            mixture=arguments.mixture,
            input_tokens=arguments.input_tokens,
            output_tokens=arguments.output_tokens,
            trace=arguments.trace,
            time_stretch=arguments.time_stretch,
            limit=arguments.limit,
            concurrency_cap=arguments.concurrency_cap,
            prompts=arguments.prompts,
            tokenizer=arguments.tokenizer,
            vocab_size=arguments.vocab_size,
            temperature=arguments.temperature,
            ignore_eos=arguments.ignore_eos,
            slos=arguments.slo,
            warmup=arguments.warmup,
            timeout_s=arguments.timeout,
            json_path=arguments.json,
            png_path=arguments.png,
            label=arguments.label,
        )
    except ValidationError as error:
        first = error.errors()[0]
        # A cross-field message names its flags; a field's own needs its name.
        where = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{where}: {message}" if where else message) from None
