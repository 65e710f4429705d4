"""Starts the real server on the tiny random model and talks to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from analysis.judging.tiny_model import CONFIG as TINY_MODEL

START_TIMEOUT_S = 180.0
"""SGLang takes 25 to 45 s on an idle two-core machine; several times that on a busy one."""


def tiny_model(folder: Path) -> Path:
    """A model folder with a configuration only; --load-format dummy makes the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_MODEL))
    return folder


def text_model(folder: Path) -> Path:
    """The same with a byte-level tokenizer (one token a byte) and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny_model(folder)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    config = {**TINY_MODEL, "vocab_size": len(vocabulary)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SGLANG_SERVE = "sglang serve"
"""SGLang's own command, which finds TWP by its flags."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: Any


class Server:
    """A running server process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log_path = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def request(
        self,
        path: str,
        body: Any = None,
        timeout: float = 120.0,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Reply(answer.status, _parsed(answer.read()))
        except urllib.error.HTTPError as error:
            return Reply(error.code, _parsed(error.read()))

    def generate(
        self, input_ids: list[int], max_new_tokens: int, timeout: float = 120.0, **params: Any
    ) -> Reply:
        extra = {key: params.pop(key) for key in ("rid", "stream") if key in params}
        sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True, **params}
        return self.request(
            "/generate", {"input_ids": input_ids, "sampling_params": sampling, **extra}, timeout
        )

    def internal_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.request("/server_info").body["internal_states"][0]
        return state

    def twp(self) -> dict[str, Any]:
        state: dict[str, Any] = self.internal_state()["twp"]
        return state

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Until no request is queued or active."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            state = self.twp()
            if state["queue"] == 0 and state["batch"] == 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"still busy after {timeout_s} s: {self.twp()}")


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def command(
    model: Path | None, port: int, *flags: str, module: str = "twp_sglang.launch_server"
) -> list[str]:
    start = [sys.executable, "-m", module]
    if module == SGLANG_SERVE:
        # The script beside this interpreter, not another installation's.
        start = [str(Path(sys.executable).with_name("sglang")), "serve"]
    loading: list[str] = []
    if model is not None:
        loading = ["--model-path", str(model), "--load-format", "dummy"]
        if not (model / "tokenizer.json").exists():
            loading.append("--skip-tokenizer-init")
    return [
        *start,
        *loading,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *flags,
    ]


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for ``condition``, and fail where it does not come."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "condition not reached"
        time.sleep(0.02)


@contextmanager
def serving(
    model: Path,
    folder: Path,
    *flags: str,
    module: str = "twp_sglang.launch_server",
    environment: dict[str, str] | None = None,
    own_model: bool = True,
    orderly: bool = True,
) -> Iterator[Server]:
    """A server that is ready, stopped at the end with everything it started.

    Args:
        own_model: whether ``model`` is served; without it the flags must name what is.
        orderly: whether it is asked to end and its files are then complete; SGLang looks
            every five seconds whether it was asked. Else it is killed at the end.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(model if own_model else None, port, *flags, module=module),
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            start_new_session=True,
        )
    server = Server(process, port, log)
    try:
        _wait_ready(server)
        yield server
    finally:
        stop(process, orderly=orderly)


def stop(process: subprocess.Popen[bytes], *, orderly: bool = True) -> None:
    """SIGTERM where it is to end ``orderly``, then SIGKILL, to the group that the test started."""
    if orderly and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def _wait_ready(server: Server) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise AssertionError(
                f"the server ended with {server.process.returncode}:\n{server.log()[-4000:]}"
            )
        try:
            if server.request("/health", timeout=5.0).status == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"not ready after {START_TIMEOUT_S} s:\n{server.log()[-4000:]}")


def run_to_end(
    model: Path,
    *flags: str,
    module: str = "twp_sglang.launch_server",
    environment: dict[str, str] | None = None,
    timeout_s: float = 150.0,
) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    return subprocess.run(
        command(model, free_port(), *flags, module=module),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
