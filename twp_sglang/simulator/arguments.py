"""The command line of the simulator."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from twp_sglang.benchmarking.slo_argument import itl_limit_ms, ttft_limit_ms
from twp_sglang.config import POLICY_NAMES, TwpConfig
from twp_sglang.config_values import OptionsError, build, load_table, one_spelling, value_of
from twp_sglang.latency_metrics import Slo
from twp_sglang.objective_values import SPELLINGS
from twp_sglang.simulator.placement import PlacementName
from twp_sglang.simulator.pool_settings import PoolSettings, read_pool
from twp_sglang.simulator.replicas import ROUTER_NAMES
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.step_profiles import StepProfile, profile_names
from twp_sglang.workloads.read import FORMATS

STOCK_CHUNK_TOKENS = 8192
"""SGLang's own chunk on an 80 GB GPU."""

MIXED_CHUNK_TOKENS = 512
"""What the launcher sets on an accelerator under a steering policy."""

POOL_POLICIES: tuple[Literal["round-robin", "serverlessllm"], ...] = (
    "round-robin",
    "serverlessllm",
)
"""Policies that decide between containers; inside one they admit first come, first served."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; ``vars`` of its result are the names used below."""
    parser = argparse.ArgumentParser(
        prog="python -m twp_sglang.simulate",
        description="Serve recorded or generated traffic on a simulated SGLang engine: the "
        "same policy objects as the server, step times from a model, no GPU.",
        allow_abbrev=False,
    )
    add = parser.add_argument_group("traffic").add_argument
    add("--trace", type=Path, required=True, metavar="FILE", help="the workload; .gz is unpacked")
    add("--format", choices=FORMATS, required=True, help="what FILE is; spec draws a workload")
    add(
        "--time-stretch",
        type=float,
        default=1.0,
        metavar="X",
        help="factor on all times: 2 halves the rate, burstiness stays [1]",
    )
    add("--limit", type=_positive, metavar="N", help="only the first N requests [all]")
    add(
        "--rate",
        type=float,
        metavar="RPS",
        help="requests per second where the format has no times (gsm8k)",
    )
    add(
        "--max-new-tokens",
        type=_positive,
        metavar="N",
        help="limit that every client declares; unset, each knows its length exactly, as in a "
        "replay by a load generator",
    )
    add("--seed", type=_seed, default=0, metavar="N", help="of everything drawn [0]")

    add = parser.add_argument_group("policy").add_argument
    add(
        "--policy",
        choices=(*POLICY_NAMES, *POOL_POLICIES),
        required=True,
        help="off is stock SGLang; round-robin and serverlessllm choose between the containers "
        "of a pool and admit as fcfs inside",
    )
    add("--config", type=Path, metavar="FILE", help="TOML or JSON, as --twp-config of the server")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one configuration field, over the file; may be repeated",
    )

    add = parser.add_argument_group("engine").add_argument
    add(
        "--step-model",
        required=True,
        metavar="NAME|FILE",
        help=f"one of {', '.join(profile_names())}; table:MODEL/TABLE; a JSON file; or a step "
        "trace (.jsonl) to replay",
    )
    add("--kv-tokens", type=_positive, metavar="N", help="size of the KV pool [the profile's]")
    add("--page-size", type=_positive, default=1, metavar="N", help="tokens per KV page [1]")
    add(
        "--step-kind",
        choices=("prefill-first", "interval", "mixed"),
        help="[prefill-first under off and observe, else mixed]",
    )
    add(
        "--chunk-tokens",
        type=int,
        metavar="N",
        help="SGLang's own chunk, 0 for whole prompts [8192]; unset, a steering policy bounds "
        "prompt tokens while somebody decodes by the configuration's chunk_tokens, the "
        "profile's or 512",
    )
    add("--max-running", type=_positive, default=2048, metavar="N", help="rows of a batch [2048]")
    add("--max-queued", type=int, metavar="N", help="refuse beyond N waiting [none]")
    add("--no-overlap", action="store_true", help="no overlapped scheduling")
    add("--ignore-eos", action="store_true", help="reserve whole limits, as for a load generator")
    add("--preemption", action="store_true", help="higher priority may displace running requests")
    add("--noise", type=float, default=0.0, metavar="S", help="scatter of log step time [0]")
    add("--replicas", type=_positive, default=1, metavar="N", help="engines behind a router [1]")
    add("--router", choices=ROUTER_NAMES, default="round-robin", help="[round-robin]")
    add(
        "--load-report-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="age that a load report may have under least-tokens [0]",
    )

    add = parser.add_argument_group("serverless pool").add_argument
    add(
        "--pool",
        type=Path,
        metavar="FILE",
        help="serve on containers that start cold: nodes, GPUs, models, tiers, keep-alive (TOML or "
        "JSON) [under round-robin and serverlessllm 2 nodes of 2 GPUs; otherwise no pool]",
    )

    add = parser.add_argument_group("result").add_argument
    add(
        "--slo",
        default="",
        metavar="LIST",
        help="objectives for goodput: ttft=2s,itl_p99=50ms; policy slo holds them where neither "
        "--config nor --set states its own",
    )
    add("--json", type=Path, required=True, metavar="OUT", help="result file")
    add("--steps", type=Path, metavar="OUT.jsonl", help="step trace, one file per replica")
    add("--no-progress", action="store_true", help="no progress bar")
    return parser


def configuration(policy: str, file: Path | None, settings: list[str]) -> TwpConfig:
    """The policy's configuration from file and ``--set``.

    Raises:
        OptionsError: naming field, value, source and mend.
    """
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    if file is not None:
        values.update(one_spelling(load_table(file, "--config"), f"file {file}"))
        given.update(dict.fromkeys(values, f"file {file}"))
    stated: dict[str, Any] = {}
    for item in settings:
        key, equals, text = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise OptionsError(f"--set {item}: write KEY=VALUE, for example gamma=0.1")
        stated[key] = value_of(text.strip())
        given[SPELLINGS.get(key, key)] = f"--set {item}"
    values.update(one_spelling(stated, "--set"))
    values["policy"] = policy
    given["policy"] = "--policy"
    return build(values, given)


def with_objectives(config: TwpConfig, slos: Sequence[Slo]) -> tuple[TwpConfig, str]:
    """``config`` of policy slo with the objectives of ``--slo`` where it states none itself.

    Judged by one objective and steered by another, a run would say little about either. No
    delivery is kept back then: here a token is there when its step ends.

    Returns:
        The configuration, and a line that says what was taken; empty where nothing was.

    Raises:
        OptionsError: a limit that the policy cannot hold.
    """
    stated = config.model_fields_set
    limits = {"itl_slo_ms": itl_limit_ms(slos), "ttft_slo_ms": ttft_limit_ms(slos)}
    taken = {
        name: limit for name, limit in limits.items() if limit is not None and name not in stated
    }
    if config.policy != "slo" or not taken:
        return config, ""
    values: dict[str, Any] = {**config.model_dump(include=stated), **taken}
    if "itl_slo_ms" in taken:
        values.setdefault("itl_delivery_ms", 0.0)
    held = ", ".join(f"{name} = {limit:g}" for name, limit in taken.items())
    line = f"policy slo holds the objectives of --slo: {held}; --set states others"
    return build(values, dict.fromkeys(taken, "--slo")), line


def admission_policy(policy: str) -> str:
    """What decides inside a container under ``--policy policy``."""
    return "fcfs" if policy in POOL_POLICIES else policy


def pool_of(arguments: argparse.Namespace) -> tuple[PoolSettings, PlacementName] | None:
    """The pool and who places requests in it; None where none is asked for.

    Raises:
        PoolFileError: the file cannot be used.
        OptionsError: a flag that has no meaning on a pool.
    """
    policy = arguments.policy
    places = policy in POOL_POLICIES
    if arguments.pool is None and not places:
        return None
    if arguments.replicas != 1:
        raise OptionsError(
            f"--replicas {arguments.replicas}: a pool starts its containers itself; give nodes and "
            "gpus_per_node in the --pool file instead"
        )
    if arguments.steps is not None:
        raise OptionsError(
            f"--steps {arguments.steps}: a step trace is of one engine, and a pool's containers "
            "come and go; leave it out, or simulate one engine without --pool"
        )
    pool = PoolSettings() if arguments.pool is None else read_pool(arguments.pool)
    return pool, policy if places else "plain"


def engine_settings(
    arguments: argparse.Namespace, config: TwpConfig, profile: StepProfile | None
) -> EngineSettings:
    """The engine as the flags, the configuration and the profile give it.

    Raises:
        OptionsError: no size of the KV pool.
        pydantic.ValidationError: a combination that no engine can have.
    """
    kv_tokens = arguments.kv_tokens
    if kv_tokens is None:
        kv_tokens = profile.kv_tokens if profile is not None else None
    if kv_tokens is None:
        raise OptionsError(
            "--kv-tokens: this step model names no KV pool; give its size in tokens "
            "(max_total_num_tokens in SGLang's log)"
        )
    stock = config.policy in ("off", "observe")
    kind = arguments.step_kind or ("prefill-first" if stock else "mixed")
    page = arguments.page_size
    chunk: int | None = arguments.chunk_tokens
    while_decoding: int | None = None
    if not stock:
        # As the launcher chooses C: a chunk size given for SGLang replaces only the default.
        preferred = (profile.chunk_tokens if profile else None) or MIXED_CHUNK_TOKENS
        while_decoding = config.chunk_tokens or (preferred if chunk is None else None)
        if while_decoding is not None:
            while_decoding = -(-while_decoding // page) * page
    if chunk is None:
        chunk = -(-STOCK_CHUNK_TOKENS // page) * page
    return EngineSettings(
        kv_tokens=kv_tokens,
        page_size=arguments.page_size,
        step_kind=kind,
        chunk_tokens=chunk or None,
        decode_chunk_tokens=while_decoding,
        max_running_requests=arguments.max_running,
        max_queued_requests=arguments.max_queued,
        overlap=not arguments.no_overlap,
        ignore_eos=arguments.ignore_eos,
        priority_preemption=arguments.preemption,
    )


def _positive(text: str) -> int:
    return _at_least(1, text)


def _seed(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value}: must be at least {least}")
    return value
