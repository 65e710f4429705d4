"""Command line, traffic, and a server that cannot start."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from pathlib import Path

import pytest

from twp_sglang import demo
from twp_sglang.demonstration.settings import (
    TRAFFIC_ACCELERATOR,
    TRAFFIC_CPU,
    DemoSettings,
    Traffic,
    burst_of,
    replay_settings,
    traffic,
)
from twp_sglang.serving.child import (
    ServerFailed,
    ServerProcess,
    environment,
    free_port,
    port_taken,
)


class TestArguments:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--requests", "0"], "--requests"),
            (["--requests", "many"], "--requests"),
            (["--rate", "-1"], "--rate"),
            (["--rate", "nan"], "--rate"),
            (["--rate", "inf"], "--rate"),
            (["--max-tokens", "0"], "--max-tokens"),
            (["--port", "70000"], "--port"),
            (["--start-timeout", "0"], "--start-timeout"),
        ],
    )
    def test_bad_value_exits_2_and_names_the_flag(
        self, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert demo.main(flags) == 2
        told = capsys.readouterr().err.strip()
        assert said in told
        assert flags[1] in told
        assert len(told.splitlines()) == 1

    @pytest.mark.parametrize("flags", [["--policy", "lifo"], ["--bogus"]])
    def test_unknown_exits_2(self, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            demo.main(flags)
        assert ended.value.code == 2
        assert flags[-1] in capsys.readouterr().err

    def test_flags_after_the_dashes_go_to_the_server(self) -> None:
        read = demo.settings_from(["--policy", "fcfs", "--", "--twp-gamma", "0.3", "--policy"])
        assert read.policy == "fcfs"
        assert read.engine_flags == ("--twp-gamma", "0.3", "--policy")

    def test_defaults(self) -> None:
        read = demo.settings_from([])
        assert (read.policy, read.port, read.requests) == ("twp", None, None)
        assert read.out.is_absolute()


class TestTraffic:
    def test_given_values_win_over_the_devices(self, tmp_path: Path) -> None:
        given = DemoSettings(out=tmp_path, requests=7)
        assert traffic(given, "cpu") == Traffic(requests=7, rate_rps=TRAFFIC_CPU.rate_rps)
        assert traffic(DemoSettings(out=tmp_path), "cuda") == TRAFFIC_ACCELERATOR

    @pytest.mark.parametrize("sent", [TRAFFIC_CPU, TRAFFIC_ACCELERATOR])
    def test_most_requests_arrive_in_the_burst(self, sent: Traffic, tmp_path: Path) -> None:
        from twp_sglang.benchmarking.workload import plan_shapes

        run = replay_settings(DemoSettings(out=tmp_path), sent, "http://127.0.0.1:1")
        shapes, _ = plan_shapes(run)
        peak = burst_of(sent)
        assert len(shapes) == sent.requests
        before = sum(shape.arrival_s < peak.start_s for shape in shapes)
        within = sum(peak.start_s <= shape.arrival_s < peak.end_s for shape in shapes)
        # 0.6 n on average; the arrivals are drawn, with a fixed seed.
        assert 0.4 * sent.requests < within < 0.8 * sent.requests
        assert before >= 3
        assert before + within < sent.requests


class TestServerProcess:
    def test_own_thread_count_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert environment()["OMP_NUM_THREADS"] == "3"
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert 1 <= int(environment()["OMP_NUM_THREADS"]) <= len(os.sched_getaffinity(0))

    async def test_server_that_refuses_to_start_is_told_with_its_words(
        self, tmp_path: Path
    ) -> None:
        server = await ServerProcess.start(
            ["--twp-gamma", "-1"], "http://127.0.0.1:1", tmp_path / "server.log"
        )
        with pytest.raises(ServerFailed, match="exit code 2") as failed:
            await server.ready(60.0, lambda waited_s, last: None)
        assert "gamma = -1" in failed.value.tail
        assert await server.stop()

    @pytest.mark.skipif(
        importlib.util.find_spec("sglang") is None, reason="needs the engine-cpu extra"
    )
    async def test_server_that_is_not_ready_in_time_is_ended(self, tmp_path: Path) -> None:
        # While it still imports, long before it would look for its model.
        server = await ServerProcess.start(
            ["--model-path", str(tmp_path)],
            f"http://127.0.0.1:{free_port()}",
            tmp_path / "server.log",
        )
        with pytest.raises(ServerFailed, match="allow more time"):
            await server.ready(0.2, lambda waited_s, last: None)
        begun = time.monotonic()
        await server.stop()
        assert not server.running
        assert time.monotonic() - begun < 30.0

    async def test_port_taken(self) -> None:
        listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        assert port_taken(port)
        listener.close()
        await listener.wait_closed()
        assert not port_taken(port)
