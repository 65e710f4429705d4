"""From a command line to a serving engine, or to a clear reason why not."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import NoReturn

from twp_sglang import policy_fields
from twp_sglang.config import TwpConfig
from twp_sglang.config_values import OptionsError
from twp_sglang.serving import emulation, engine_settings, options, refusals
from twp_sglang.serving.child import port_taken
from twp_sglang.serving.early_end import leave_on_sigterm
from twp_sglang.simulator.step_sources import step_source

logger = logging.getLogger(__name__)

EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""


def main(argv: list[str]) -> int:
    """Serve until told to stop; the exit code.

    2 for anything wrong with what was asked, before any model is looked for; 1 when the
    engine did not start or TWP does not decide in it; 130 after Ctrl-C.
    """
    try:
        asked = options.parse(argv)
    except OptionsError as error:
        print(f"twp: {error}", file=sys.stderr)
        return EXIT_USAGE
    if asked.help_wanted:
        print(options.parser().format_help())
        print("SGLang's own flags:\n")
    try:
        import sglang  # noqa: F401 - only to tell its absence from a fault further down
    except ImportError:
        print(
            "twp: sglang is not installed: install twp-sglang with its engine-cpu or engine-cuda "
            "extra (README)",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if asked.config.policy == "off" and asked.trace_dir is not None:
        print(
            f"twp: --twp-trace {asked.trace_dir}: --twp-policy off has no step trace; use observe, "
            "which leaves the decisions to SGLang, or leave the flag out",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if asked.config.policy == "off" and asked.emulate is None:
        return _serve_stock(asked.engine_argv)
    return _serve(asked)


def serve_and_leave(argv: list[str]) -> NoReturn:
    """:func:`main`, then the end of the process, whatever happened.

    Not by way of the interpreter's finalisation: with its children gone, that can wait for
    ever for ZeroMQ sockets whose other end no longer reads, and a supervisor would never
    see the server end.
    """
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
        code = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve_stock(argv: list[str]) -> int:
    """SGLang as SGLang starts itself: no hook, no function of ours."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(argv)
    logger.warning("TWP is off: stock SGLang scheduling, no hook registered")
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _serve(asked: options.Options) -> int:
    """Serve with hooks: TWP's, those of the emulated engine, or both."""
    from patches import fault_injection
    from patches.http.doorway_install import add_doorway
    from patches.http.install import add_routes, announce
    from patches.install import ProofError
    from patches.process import Payload, entry_for
    from patches.sglang_0_5.versions import HTTP_TABLES

    try:
        fault_injection.requested()
    except ValueError as error:
        print(f"twp: {error}; unset it", file=sys.stderr)
        return EXIT_USAGE
    steers, emulates = asked.config.policy != "off", asked.emulate is not None
    if not _hooks_fit(steers, emulates):
        return EXIT_USAGE

    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    http_hooks = HTTP_TABLES[-1]
    try:
        if steers:
            announce(http_hooks)
    except ProofError as error:
        print(f"twp: {error}", file=sys.stderr)
        return EXIT_USAGE
    load_plugins()
    # SGLang's own command has loaded them before it asks for a backend, and loads none twice.
    HookRegistry.apply_hooks()
    try:
        engine_argv = emulation.with_model(asked.engine_argv) if emulates else asked.engine_argv
    except OSError as error:
        print(f"twp: the model of the emulated engine cannot be kept: {error}", file=sys.stderr)
        return EXIT_USAGE
    arguments = prepare_server_args(engine_argv)
    reasons = refusals.refused(arguments, asked.config.policy) if steers else []
    if port_taken(int(arguments.port)):
        # SGLang would find out once the model is loaded, and end with code 3.
        reasons = [f"--port {arguments.port}: somebody listens there already; take another"]
    model = arguments.model_path
    preferred_chunk = asked.config.chunk_tokens
    notes: list[str] = []
    if asked.emulate is not None:
        reasons = emulation.refused(arguments) + reasons
        source = step_source(asked.emulate)
        preferred_chunk = preferred_chunk or emulation.chunk_tokens(source)
        try:
            notes = [] if reasons else emulation.prepare(arguments, source)
        except (ValueError, OSError) as error:
            reasons.append(str(error))
        model = arguments.served_model_name
    if reasons:
        for reason in reasons:
            print(f"twp: {reason}", file=sys.stderr)
        return EXIT_USAGE
    for note in notes:
        logger.warning("EMULATED engine: %s", note)
    if steers:
        _tell(asked.config, asked.given)
    else:
        logger.warning("TWP is off: stock SGLang scheduling, no hook of TWP registered")
    chunk_tokens = None
    if asked.config.policy not in ("off", "observe"):
        # An emulated accelerator takes chunks as an accelerator does.
        interleaving = engine_settings.choose(
            arguments,
            preferred_chunk,
            not emulates and _on_cpu(arguments),
            sized=asked.config.policy == "slo" and asked.config.chunk_tokens is None,
        )
        chunk_tokens = interleaving.chunk_tokens
        for note in interleaving.notes:
            logger.warning("TWP prefill: %s", note)
    if emulates:
        emulation.fill_chunk(arguments)
    payload = Payload(
        asked.config.model_dump_json(),
        None if asked.trace_dir is None else str(asked.trace_dir),
        model,
        chunk_tokens,
        asked.emulate,
    )
    leave_on_sigterm()
    try:
        # 0.5.17 has resolved them already.
        getattr(arguments, "resolve_once", lambda: None)()
        from sglang.srt.entrypoints import http_server

        if steers:
            absent = add_routes(http_hooks, arguments)
            if absent is None:
                add_doorway(http_server.app, http_server.get_global_state)
            logger.warning("TWP: %s", absent or "live page at /twp, configuration at /twp/config")

        http_server.launch_server(arguments, run_scheduler_process_func=entry_for(payload))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ProofError as error:
        print(f"twp: the HTTP process cannot be attended to: {error}", file=sys.stderr)
        return EXIT_FAILED
    except RuntimeError as error:
        # SGLang's word for a scheduler that died; the process itself has said why.
        if "scheduler" not in str(error).lower():
            raise
        print(f"twp: the server did not start: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _hooks_fit(steers: bool, emulates: bool) -> bool:
    """Whether the installed SGLang takes the hooks that were asked for; says so if not."""
    from patches.sglang_0_5.versions import EMULATION_TABLES, HTTP_TABLES, TABLES, judge
    from patches.sources import InstalledSource, SourceError

    for wanted, tables, whose, check, way_out in (
        (steers, TABLES, "TWP's", "check", ", or serve with --twp-policy off"),
        (steers, HTTP_TABLES, "the HTTP process's", "check", ", or serve with --twp-policy off"),
        (emulates, EMULATION_TABLES, "the emulated engine's", "check --emulation", ""),
    ):
        if not wanted:
            continue
        try:
            verdict = judge(InstalledSource(), tables)
        except SourceError as error:
            print(f"twp: {error}", file=sys.stderr)
            return False
        if not verdict.ok:
            print(
                f"twp: sglang {verdict.version} does not fit {whose} hooks (python -m patches "
                f"{check}): "
                + "; ".join(verdict.reasons())
                + f"; install sglang {verdict.table.first} to {verdict.table.last}{way_out}",
                file=sys.stderr,
            )
            return False
        if not verdict.tried:
            logger.warning(
                "TWP: sglang %s was never tried (tried: %s to %s); all its signatures fit",
                verdict.version,
                verdict.table.first,
                verdict.table.last,
            )
    return True


def _on_cpu(arguments: object) -> bool:
    """Whether the engine will run on a CPU."""
    from twp_sglang.platforms.cpu_reference import accelerator_present

    device = getattr(arguments, "device", None)
    return device == "cpu" if device is not None else accelerator_present() is None


def _tell(config: TwpConfig, given: dict[str, str]) -> None:
    for name, source in sorted(given.items()):
        logger.info("TWP %s = %s (%s)", name, getattr(config, name, None), source)
    for name in policy_fields.unread(config.policy, given):
        logger.warning(
            "TWP %s = %s (%s) changes nothing: policy %s does not read it%s",
            name,
            getattr(config, name),
            given[name],
            config.policy,
            "; --twp-policy twp does" if name in policy_fields.WINDOW_FIELDS else "",
        )
    unset = [name for name in ("l_min_ms", "h0_tokens") if name not in given]
    if config.policy in ("twp", "observe") and unset and "b0" not in given:
        logger.warning(
            "TWP is not calibrated to this machine (%s unset, b0 = %d is the paper's): it learns "
            "l_min while serving and sets H0 from the requests' own limits. "
            "python -m twp_sglang.calibrate measures both.",
            " and ".join(unset),
            config.b0,
        )
