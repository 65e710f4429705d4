"""The command line of ``python -m twp_sglang.top``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import aiohttp
from rich.console import Console
from rich.live import Live

from twp_sglang.terminal import plain
from twp_sglang.terminal.client import Look, NoState, look
from twp_sglang.terminal.history import History
from twp_sglang.terminal.view import render

EXIT_NO_STATE = 1
DEFAULT_URL = "http://127.0.0.1:30000"
_FRESH_PER_S = 4


def main(argv: list[str]) -> int:
    """Watch until interrupted; 0, or 1 with the reason where there is nothing to watch."""
    arguments = _parser().parse_args(argv)
    url = _address(arguments.url)
    try:
        return asyncio.run(_watch(url, arguments.api_key, arguments.interval, arguments.once))
    except NoState as error:
        print(f"top: {error}", file=sys.stderr)
        return EXIT_NO_STATE
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m twp_sglang.top",
        description="A running server in the terminal: latency, window, queue, memory, and one "
        "line that says why requests wait now. Writes plain lines where its output is no terminal.",
    )
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, help=f"[{DEFAULT_URL}]")
    parser.add_argument("--once", action="store_true", help="show one frame and end")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks [1]"
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("TWP_API_KEY"),
        metavar="KEY",
        help="the server's API key [environment variable TWP_API_KEY]",
    )
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text}: must be between 0.1 and 3600 seconds")
    return value


def _address(url: str) -> str:
    """``host:port`` and ``:port`` as people type them, too."""
    if "://" not in url:
        url = f"http://127.0.0.1{url}" if url.startswith(":") else f"http://{url}"
    return url.rstrip("/").removesuffix("/twp")


async def _watch(url: str, api_key: str | None, interval_s: float, once: bool) -> int:
    console = Console()
    history = History()
    async with aiohttp.ClientSession(trust_env=False) as session:
        # The first look tells what is wrong with the address; later ones may fail and come back.
        seen = await look(session, url, api_key)
        history.add(seen)
        if not console.is_terminal:
            return await _lines(session, url, api_key, interval_s, once, seen)
        if once:
            console.print(render(history, console.width))
            return 0
        with Live(console=console, screen=True, refresh_per_second=_FRESH_PER_S) as live:
            trouble = ""
            while True:
                live.update(render(history, console.width, trouble))
                await asyncio.sleep(interval_s)
                try:
                    history.add(await look(session, url, api_key))
                    trouble = ""
                except NoState as error:
                    trouble = f"{error} Trying again."


async def _lines(
    session: aiohttp.ClientSession,
    url: str,
    api_key: str | None,
    interval_s: float,
    once: bool,
    seen: Look,
) -> int:
    while True:
        print("\n".join(plain.lines(seen)), flush=True)
        if once:
            return 0
        await asyncio.sleep(interval_s)
        seen = await look(session, url, api_key)
