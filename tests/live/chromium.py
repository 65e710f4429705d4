"""A headless Chromium by its own DevTools protocol: open a page, look at it, take its picture."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browser() -> str | None:
    """The Chromium of this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab: what it shows, what it said on its console, and what it asked the network for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(future, 20)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        done = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to ``url``."""
        await self.call("Page.navigate", url=url)

    async def until(self, script: str, timeout_s: float = 15.0) -> Any:
        """Wait until an expression is true; its value."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            with contextlib.suppress(AssertionError):
                value = await self.run(script)
                if value:
                    return value
            if asyncio.get_running_loop().time() > end:
                shown = await self.run("document.body?.innerText ?? ''")
                raise AssertionError(f"never true: {script}; console {self.errors}; page: {shown}")
            await asyncio.sleep(0.1)

    async def text(self, selector: str) -> str:
        """What an element shows."""
        return str(await self.run(f"document.querySelector({selector!r}).innerText"))

    async def look(
        self, width: int, height: int, *, dark: bool = False, phone: bool = False
    ) -> None:
        """Set the size of the window and the theme that the person prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[theme])

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                future = self._answers.pop(event["id"])
                if "error" in event:
                    future.set_exception(AssertionError(str(event["error"])))
                else:
                    future.set_result(event["result"])
            else:
                self._note(event["method"], event["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str([one.get("value") for one in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Page]:
    """A browser with one empty tab; ended, with all it wrote, at the end of the block."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            # Root in a container has no user namespace to put the browser into.
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tabs = await answer.json()
                address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Network", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _port(folder: Path, process: asyncio.subprocess.Process) -> int:
    """The port that the browser chose, which it writes down once it listens."""
    file = folder / "DevToolsActivePort"
    for _ in range(300):
        if process.returncode is not None:
            raise AssertionError(f"the browser ended with {process.returncode}")
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise AssertionError("the browser did not start within 30 s")
