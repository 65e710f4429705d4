"""From a command line to a serving engine, or to a clear reason why not."""

from __future__ import annotations

import logging
import os
import sys

from twp_sglang.config import TwpConfig
from twp_sglang.serving import engine_settings, options, refusals

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
    except options.OptionsError as error:
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
    if asked.config.policy == "off":
        return _serve_stock(asked.engine_argv)
    return _serve(asked)


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
    from patches.process import Payload, entry_for
    from patches.sglang_0_5.versions import judge
    from patches.sources import InstalledSource, SourceError

    try:
        verdict = judge(InstalledSource())
    except SourceError as error:
        print(f"twp: {error}", file=sys.stderr)
        return EXIT_USAGE
    if not verdict.ok:
        print(
            f"twp: sglang {verdict.version} does not fit TWP's hooks (python -m patches check): "
            + "; ".join(verdict.reasons())
            + f"; install sglang {verdict.table.first} to {verdict.table.last}, or serve with "
            "--twp-policy off",
            file=sys.stderr,
        )
        return EXIT_USAGE

    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(asked.engine_argv)
    reasons = refusals.refused(arguments, asked.config.policy)
    if reasons:
        for reason in reasons:
            print(f"twp: {reason}", file=sys.stderr)
        return EXIT_USAGE
    if not verdict.tried:
        logger.warning(
            "TWP: sglang %s was never tried (tried: %s to %s); all its signatures fit",
            verdict.version,
            verdict.table.first,
            verdict.table.last,
        )
    _tell(asked.config, asked.given)
    chunk_tokens = None
    if asked.config.policy != "observe":
        interleaving = engine_settings.choose(
            arguments, asked.config.chunk_tokens, _on_cpu(arguments)
        )
        chunk_tokens = interleaving.chunk_tokens
        for note in interleaving.notes:
            logger.warning("TWP prefill: %s", note)
    payload = Payload(
        asked.config.model_dump_json(),
        None if asked.trace_dir is None else str(asked.trace_dir),
        arguments.model_path,
        chunk_tokens,
    )
    try:
        arguments.resolve_once()
        from sglang.srt.entrypoints.http_server import launch_server

        launch_server(arguments, run_scheduler_process_func=entry_for(payload))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RuntimeError as error:
        # SGLang's word for a scheduler that died; the process itself has said why.
        if "scheduler" not in str(error).lower():
            raise
        print(f"twp: the server did not start: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _on_cpu(arguments: object) -> bool:
    """Whether the engine will run on a CPU."""
    from twp_sglang.platforms.cpu_reference import accelerator_present

    device = getattr(arguments, "device", None)
    return device == "cpu" if device is not None else accelerator_present() is None


def _tell(config: TwpConfig, given: dict[str, str]) -> None:
    for name, source in sorted(given.items()):
        logger.info("TWP %s = %s (%s)", name, getattr(config, name, None), source)
    unset = [name for name in ("l_min_ms", "h0_tokens") if name not in given]
    if config.policy in ("twp", "observe") and unset and "b0" not in given:
        logger.warning(
            "TWP is not calibrated to this machine (%s unset, b0 = %d is the paper's): it learns "
            "l_min while serving and sets H0 from the requests' own limits. "
            "python -m twp_sglang.calibrate measures both.",
            " and ".join(unset),
            config.b0,
        )
