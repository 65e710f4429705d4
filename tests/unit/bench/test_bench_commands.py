"""``bench run`` and ``bench compare`` as a user meets them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bench_peer import Behaviour, Peer, open_stream, paced, serving, sglang_stream, sse
from PIL import Image
from rich.console import Console

from twp_sglang import bench
from twp_sglang.benchmarking.arguments import build_parser, settings_from
from twp_sglang.benchmarking.compare_command import compare
from twp_sglang.benchmarking.results import RunReport, read_report
from twp_sglang.benchmarking.run_command import RunError, run
from twp_sglang.benchmarking.slo_argument import parse_slos


def steady(gap_s: float) -> Behaviour:
    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await sglang_stream(paced(body, gap_s))(request, body)

    return behave


async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "model is asleep"}}, status=400)


async def busy(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=503, text="busy")


async def run_against(
    peer: Peer, out: Path, *flags: str, console: Console | None = None
) -> tuple[int, RunReport]:
    async with serving(peer):
        arguments = build_parser().parse_args(
            ["run", "--url", peer.url, "--json", str(out), *flags]
        )
        settings = settings_from(arguments)
        status = await run(settings, console or Console(quiet=True), "bench run ...")
    return status, read_report(out)


SMALL = ("--workload", "random", "--requests", "6", "--rate", "40", "--output-tokens", "4",
         "--input-tokens", "10-20")  # fmt: skip


async def test_a_run_is_recorded_whole(tmp_path: Path) -> None:
    peer = Peer(
        [steady(0.01)],
        info={
            "version": "0.5.23",
            "served_model_name": "tiny",
            "skip_tokenizer_init": True,
            "device": "cpu",
            "api_key": "secret",
            "internal_states": [{"twp": {"policy": "twp", "emulated": True, "forced": 3}}],
        },
    )
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    status, report = await run_against(
        peer, tmp_path / "deep" / "a.json", *SMALL,
        "--slo", "ttft=5s,itl_p99=0.001ms", "--warmup", "1", "--png", str(tmp_path / "a.png"),
        "--label", "mine", console=console,
    )  # fmt: skip
    assert status == 0
    summary, header = report.summary, report.header
    assert (summary.planned, summary.sent, summary.completed) == (6, 6, 6)
    assert summary.failed == {}
    assert summary.latency.output_tokens == 24
    assert summary.latency.itl_ms.count == 18
    assert summary.latency.goodput_rps == 0.0
    assert header.server.model == "tiny"
    assert header.server.emulated is True
    assert header.server.twp_after[0]["forced"] == 3
    assert header.server.settings == {"device": "cpu", "skip_tokenizer_init": True}
    assert "secret" not in (tmp_path / "deep" / "a.json").read_text()
    assert header.flush == "flushed"
    assert peer.flushes == 1
    assert len(peer.bodies) == 7
    for body, record in zip(peer.bodies[1:], report.requests, strict=True):
        assert len(body["input_ids"]) == record.planned_input_tokens
        assert body["sampling_params"]["ignore_eos"] is True
        assert body["stream"] is True
    shown = console.export_text()
    assert "EMULATED" in shown
    assert "goodput" in shown
    assert "Small n: 6" in shown
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] > 1000


async def test_prompts_are_new_in_every_run(tmp_path: Path) -> None:
    seen = set()
    for name in ("a", "b"):
        peer = Peer([steady(0.0)])
        await run_against(peer, tmp_path / f"{name}.json", *SMALL, "--warmup", "2")
        seen |= {tuple(body["input_ids"][:8]) for body in peer.bodies}
    assert len(seen) == 16
    one, two = (read_report(tmp_path / f"{name}.json") for name in ("a", "b"))
    assert one.header.workload.fingerprint == two.header.workload.fingerprint


async def test_gsm8k_goes_as_salted_text_and_honours_eos(tmp_path: Path) -> None:
    peer = Peer([steady(0.0)])
    _, report = await run_against(
        peer, tmp_path / "a.json", "--workload", "gsm8k", "--requests", "3", "--rate", "inf",
        "--output-tokens", "2",
    )  # fmt: skip
    assert report.summary.completed == 3
    assert len({body["text"][:2] for body in peer.bodies}) > 1  # nothing shared in front
    assert len({body["text"][:10] for body in peer.bodies}) == 5
    for body in peer.bodies:
        assert body["text"].endswith(("?", "."))
        assert body["sampling_params"]["ignore_eos"] is False


async def test_server_faults_are_counted_and_the_run_ends(tmp_path: Path) -> None:
    peer = Peer([busy, steady(0.0), busy, steady(0.0)])
    status, report = await run_against(peer, tmp_path / "a.json", *SMALL, "--warmup", "0")
    assert status == 0
    assert report.summary.failed == {"http_503": 2}
    assert report.summary.completed == 4
    assert any("2 of 6 requests failed" in caution for caution in report.summary.cautions)


async def test_nothing_completed_is_status_1_with_a_file(tmp_path: Path) -> None:
    status, report = await run_against(Peer([busy]), tmp_path / "a.json", *SMALL, "--png",
                                       str(tmp_path / "a.png"))  # fmt: skip
    assert status == 1
    assert report.summary.failed == {"http_503": 6}
    assert report.summary.latency.ttft_ms.p50 is None


async def test_refused_warm_up_stops_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"model is asleep.*check --api"):
        await run_against(Peer([refuse]), tmp_path / "a.json", *SMALL)
    assert not (tmp_path / "a.json").exists()


async def test_refused_flush_and_cached_prompts_are_told(tmp_path: Path) -> None:
    peer = Peer([steady(0.0)], flush_status=400)
    _, report = await run_against(peer, tmp_path / "a.json", *SMALL)
    assert report.header.flush == "refused: busy"
    assert any("not flushed" in caution for caution in report.summary.cautions)


async def test_openai_server_without_server_info(tmp_path: Path) -> None:
    async def chat(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await open_stream(request)
        for _ in range(body["max_tokens"]):
            await response.write(sse({"choices": [{"delta": {"content": "x"}}]}))
        finish = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        await response.write(sse(finish) + b"data: [DONE]\n\n")
        return response

    peer = Peer([chat], info=None)
    _, report = await run_against(peer, tmp_path / "a.json", *SMALL, "--api", "openai-chat")
    assert report.header.server.kind == "other"
    assert report.header.server.emulated is None
    assert peer.bodies[0]["model"] == "peer-model"
    assert peer.bodies[0]["messages"][0]["content"].count(" ") > 3
    assert any("no running token count" in caution for caution in report.summary.cautions)


async def test_api_key_is_sent_but_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_KEY", "sesame")
    peer = Peer([steady(0.0)])
    await run_against(peer, tmp_path / "a.json", *SMALL, "--api-key-env", "BENCH_KEY")
    assert peer.headers[0]["Authorization"] == "Bearer sesame"
    assert "sesame" not in (tmp_path / "a.json").read_text()


async def test_ctrl_c_writes_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    async with serving(Peer([steady(0.02)])) as peer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "twp_sglang.bench", "run", "--url", peer.url, "--json", str(out),
            "--workload", "random", "--requests", "500", "--rate", "20", "--output-tokens", "10",
            "--warmup", "0",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(60):
            while len(peer.bodies) < 20:
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, _ = await process.communicate()
    assert process.returncode == 130, output.decode()
    report = read_report(out)
    assert report.header.interrupted
    assert 0 < report.summary.completed < 500
    assert report.summary.planned == 500
    assert b"Interrupted" in output
    assert b"Traceback" not in output


class TestBadInput:
    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            ("--workload random --requests 0 --rate 1", "--requests: 0 is too small"),
            ("--workload random --requests 5 --rate -1", "--rate: '-1'"),
            ("--workload random --requests 5 --rate nan", "--rate: 'nan'"),
            ("--workload random --requests 5 --rate 1 --slo itl=5ms", "--slo: 'itl' is not"),
            ("--workload random --requests 5 --rate 1 --burst 4", "--burst: '4' is not a burst"),
            ("--workload random --requests 5 --rate 1 --url ftp://x", "--url: 'ftp://x'"),
            ("--workload nonsense --requests 5 --rate 1", "--workload: invalid choice"),
            ("--workload random --rate 1", "needs --requests N"),
            ("--workload csv", "give it with --trace FILE"),
            ("--workload random --requests 5 --rate 1 --json .", "is a folder"),
            ("--workload csv --trace absent.csv", "absent.csv: no such file"),
            ("--workload random --requests 5 --rate 1 --url http://127.0.0.1:9", "no server"),
            ("--workload random --requests 5 --rate 1 --api-key-env NOPE_KEY", "NOPE_KEY"),
        ],
    )
    def test_one_message_and_status_2(
        self, flags: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        try:
            status = bench.main(["run", "--json", str(tmp_path / "a.json"), *flags.split()])
        except SystemExit as error:
            status = int(error.code or 0)
        message = capsys.readouterr().err
        assert status == 2
        assert says in message
        assert len(message.strip().splitlines()) == 1
        assert not (tmp_path / "a.json").exists()

    def test_compare_of_something_else(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "x.json"
        for content, says in (("{}", "not a result of `bench run`"), ("[", "not a result")):
            path.write_text(content)
            assert bench.main(["compare", str(path)]) == 2
            assert says in capsys.readouterr().err
        assert bench.main(["compare", str(tmp_path / "absent.json")]) == 2
        assert "no such file" in capsys.readouterr().err


class TestCompare:
    async def make(self, folder: Path, name: str, gap_s: float, *flags: str) -> Path:
        path = folder / f"{name}.json"
        await run_against(Peer([steady(gap_s)]), path, *SMALL, "--warmup", "0", *flags)
        return path

    def show(self, *paths: Path, png: Path | None = None) -> str:
        console = Console(record=True, width=160, file=open(os.devnull, "w"))  # noqa: SIM115
        assert compare(paths, png, console) == 0
        return " ".join(console.export_text().split())

    async def test_ratios_are_to_the_first(self, tmp_path: Path) -> None:
        slow = await self.make(tmp_path, "slow", 0.08)
        fast = await self.make(tmp_path, "fast", 0.02)
        png = tmp_path / "figures" / "c.png"
        text = self.show(slow, fast, png=png)
        rows = (
            "TTFT P50", "ITL P99", "ITL max", "TPOT P95", "E2E max", "Decode gap P99", "ITL CV",
            "Output tokens/s", "Goodput requests/s", "Failed requests",
        )  # fmt: skip
        for row in rows:
            assert row in text
        line = text.split("ITL P50")[1].split("ITL P95")[0]
        ratio = float(line.split("│")[3].split("×")[0])
        assert 0.15 < ratio < 0.6
        assert "not comparable" not in text
        assert "few completed requests in slow (6), fast (6)" in text
        with Image.open(png) as image:
            assert image.size[0] > 1000

    async def test_unlike_workloads_are_named(self, tmp_path: Path) -> None:
        one = await self.make(tmp_path, "one", 0.0)
        two = await self.make(tmp_path, "two", 0.0, "--seed", "4")
        three = await self.make(tmp_path, "three", 0.0, "--slo", "ttft=1s")
        text = self.show(one, two, three)
        assert "two is not comparable with one: different workloads" in text
        assert "seed 0 against 4" in text
        assert "three is not comparable with one: SLOs none against ttft=1000ms" in text

    async def test_slos_can_be_stated_afterwards(self, tmp_path: Path) -> None:
        slow = await self.make(tmp_path, "slow", 0.1)
        fast = await self.make(tmp_path, "fast", 0.0, "--slo", "ttft=1s")
        console = Console(record=True, width=160, file=open(os.devnull, "w"))  # noqa: SIM115
        compare([slow, fast], None, console, parse_slos("itl_max=95ms"))
        text = " ".join(console.export_text().split())
        assert "SLOs met by │ 0 % │ 100 %" in text
        assert "not comparable" not in text

    async def test_runs_with_one_label_get_their_files_names(self, tmp_path: Path) -> None:
        one = await self.make(tmp_path, "one", 0.0, "--label", "same")
        two = await self.make(tmp_path, "two", 0.0, "--label", "same")
        text = self.show(one, two)
        assert "few completed requests in one (6), two (6)" in text

    async def test_brackets_in_names_are_no_markup(self, tmp_path: Path) -> None:
        label = "[/x] [red]"
        one = await self.make(tmp_path, "[one]", 0.0, "--label", label)
        assert label in self.show(one, png=tmp_path / "[c].png")

    async def test_a_run_without_any_completed_request(self, tmp_path: Path) -> None:
        good = await self.make(tmp_path, "good", 0.0)
        bad = tmp_path / "bad.json"
        await run_against(Peer([busy]), bad, *SMALL)
        text = self.show(good, bad, png=tmp_path / "c.png")
        assert "Failed requests │ 0 │ 6" in text


async def test_file_round_trips_and_has_plain_keys(tmp_path: Path) -> None:
    _, report = await run_against(Peer([steady(0.01)]), tmp_path / "a.json", *SMALL)
    raw = json.loads((tmp_path / "a.json").read_text())
    assert raw["schema_version"] == "twp-bench/1"
    assert set(raw) == {"schema_version", "header", "summary", "requests"}
    times = report.requests[0].token_times()
    assert len(times.token_ms) == 4
    e2e_ms = times.token_ms[-1] - times.submitted_ms
    assert e2e_ms == pytest.approx(report.requests[0].e2e_ms, abs=0.01)  # stored rounded
