"""Lengths, arrivals, traces, questions, prompts and SLO notation."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.benchmarking.arrivals import Burst, arrival_times_s, check_bursts, parse_burst
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.benchmarking.prompts import PromptMaker, load_tokenizer, vocabulary_size
from twp_sglang.benchmarking.questions import load_questions
from twp_sglang.benchmarking.settings import RunSettings
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.benchmarking.traces import TraceError, read_trace
from twp_sglang.benchmarking.workload import describe, make_prompts, plan_shapes
from twp_sglang.latency_metrics import Slo


def settings(**changes: object) -> RunSettings:
    fields: dict[str, object] = {
        "url": "http://x",
        "workload": "mixture",
        "json_path": Path("out.json"),
        "requests": 2000,
        "rate_rps": 10.0,
    }
    return RunSettings.model_validate(fields | changes)


class TestLengths:
    def test_mixture_has_the_stated_shares(self) -> None:
        drawn = parse_lengths("50@.5,200@.3,800@.2").sample(20_000, np.random.default_rng(0))
        shares = [float((drawn == length).mean()) for length in (50, 200, 800)]
        assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.012)

    def test_ranges_include_both_ends(self) -> None:
        drawn = parse_lengths("3-5").sample(500, np.random.default_rng(0))
        assert set(drawn.tolist()) == {3, 4, 5}

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "is not a length"),
            ("abc", "'abc' is not a length"),
            ("0", "at least 1"),
            ("9-3", "write 3-9"),
            ("5@.5,6@.4", "sum to 0.9"),
            ("5@.5,6", "every item a probability or none"),
            ("-5", "is not a length"),
            ("1.5", "is not a length"),
        ],
    )
    def test_errors_name_item_and_mend(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            parse_lengths(text)


class TestArrivals:
    def test_poisson_rate_and_dispersion(self) -> None:
        times = arrival_times_s(20_000, 50.0, [], "poisson", np.random.default_rng(3))
        gaps = np.diff(times)
        assert gaps.mean() == pytest.approx(1 / 50.0, rel=0.03)
        assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)

    def test_burst_multiplies_the_rate_only_inside_it(self) -> None:
        burst = Burst(factor=4.0, start_s=100.0, duration_s=50.0)
        times = arrival_times_s(10_000, 20.0, [burst], "poisson", np.random.default_rng(4))
        assert ((times >= 100) & (times < 150)).sum() / 50 == pytest.approx(80.0, rel=0.06)
        assert (times < 100).sum() / 100 == pytest.approx(20.0, rel=0.1)
        after = times[times >= 150]
        assert len(after) / (after[-1] - 150) == pytest.approx(20.0, rel=0.06)

    def test_even_arrivals_and_a_silence(self) -> None:
        quiet = Burst(factor=0.0, start_s=1.0, duration_s=10.0)
        times = arrival_times_s(7, 2.0, [quiet], "even", np.random.default_rng(0))
        assert times.tolist() == [0.0, 0.5, 1.0, 11.5, 12.0, 12.5, 13.0]

    def test_all_at_once(self) -> None:
        times = arrival_times_s(5, float("inf"), [], "poisson", np.random.default_rng(0))
        assert not times.any()

    @given(
        st.integers(1, 60), st.floats(0.1, 100.0), st.floats(0.0, 8.0), st.floats(0.0, 5.0),
        st.integers(0, 99),
    )  # fmt: skip
    def test_never_backwards_and_never_in_a_silence(
        self, count: int, rate: float, factor: float, start: float, seed: int
    ) -> None:
        burst = Burst(factor=factor, start_s=start, duration_s=2.0)
        times = arrival_times_s(count, rate, [burst], "poisson", np.random.default_rng(seed))
        assert np.isfinite(times).all()
        assert (np.diff(times) >= 0).all()
        if factor == 0:
            inside = (times > start + 1e-9) & (times < start + 2.0 - 1e-9)
            assert not inside.any()

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("4:10", "FACTOR:START_S:DURATION_S"),
            ("x:1:2", "FACTOR is 'x'"),
            ("2:-1:2", "START_S is -1"),
            ("2:1:0", "DURATION_S is 0"),
            ("nan:1:2", "FACTOR is nan"),
        ],
    )
    def test_burst_errors(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            parse_burst(text)

    def test_overlap_is_refused(self) -> None:
        with pytest.raises(ValueError, match="burst at 4 s begins before the one at 0 s ends"):
            check_bursts([parse_burst("2:4:1"), parse_burst("2:0:5")])


class TestTraces:
    def write(self, folder: Path, text: str) -> Path:
        path = folder / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return path

    def test_reads_stretches_and_limits(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path, "t_s,client,input_tokens,output_tokens\n5,a,10,2\n\n6.5,b,20,3\n9,c,30,4\n"
        )
        rows = read_trace(path, limit=2, time_stretch=2.0)
        assert [(r.arrival_s, r.input_tokens, r.output_tokens) for r in rows] == [
            (0.0, 10, 2),
            (3.0, 20, 3),
        ]

    def test_reads_the_azure_layout(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
        )
        rows = read_trace(path)
        assert rows[1].arrival_s == pytest.approx(0.052, abs=1e-6)
        assert rows[1].input_tokens == 3180

    @pytest.mark.parametrize(
        ("rows", "line", "says"),
        [
            ("0,1,1\n1,abc,1\n", 3, "input_tokens is 'abc', not a whole number"),
            ("0,1,1\n1,2.5,1\n", 3, "input_tokens is '2.5', not a whole number"),
            ("0,1,0\n", 2, "output_tokens is 0; a request has at least 1"),
            ("0,1,1\n1,1\n", 3, "2 fields where the header has 3"),
            ("5,1,1\n4,1,1\n", 3, "lies before the row above it; sort"),
            ("nan,1,1\n", 2, "t_s is 'nan', not a finite time"),
            ("soon,1,1\n", 2, "t_s is 'soon', not a time"),
        ],
    )
    def test_bad_row_is_named_by_line(
        self, tmp_path: Path, rows: str, line: int, says: str
    ) -> None:
        path = self.write(tmp_path, "t_s,input_tokens,output_tokens\n" + rows)
        with pytest.raises(TraceError, match=f"line {line}: .*{says}"):
            read_trace(path)

    def test_bad_header_empty_and_missing(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="line 1: the header is 'a,b'"):
            read_trace(self.write(tmp_path, "a,b\n1,2\n"))
        with pytest.raises(TraceError, match="no request"):
            read_trace(self.write(tmp_path, "t_s,input_tokens,output_tokens\n"))
        with pytest.raises(TraceError, match="no such file"):
            read_trace(tmp_path / "absent.csv")
        (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(TraceError, match="cannot be read as CSV"):
            read_trace(tmp_path / "binary.csv")


class TestQuestions:
    def test_bundled_where_there_is_no_data(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TWP_DATA_DIR", str(tmp_path))
        questions = load_questions()
        assert questions.source == "bundled questions"
        assert len(questions.texts) >= 5
        assert all(text.endswith("?") for text in questions.texts)

    def test_data_folder_wins_and_bad_lines_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TWP_DATA_DIR", str(tmp_path))
        (tmp_path / "gsm8k").mkdir()
        path = tmp_path / "gsm8k" / "test.jsonl"
        path.write_text('{"question": "How many?"}\n', encoding="utf-8")
        assert load_questions().texts == ("How many?",)
        path.write_text('{"question": "How many?"}\n{"answer": 1}\n', encoding="utf-8")
        with pytest.raises(ValueError, match="line 2"):
            load_questions()

    def test_a_wrong_data_folder_is_not_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TWP_DATA_DIR", str(tmp_path / "absent"))
        with pytest.raises(ValueError, match="TWP_DATA_DIR"):
            load_questions()


class TestPrompts:
    def test_no_two_prompts_share_a_beginning(self) -> None:
        shapes, _ = plan_shapes(settings(requests=300))
        for form in ("ids", "text"):
            seen = set()
            for run in ("aaaa", "bbbb"):
                for planned in make_prompts(shapes, form, PromptMaker(run, 50_000, None)):
                    head = planned.prompt[:10]
                    seen.add(head if isinstance(head, str) else tuple(head.tolist()))
            assert len(seen) == 600

    def test_ids_have_the_planned_length_and_stay_in_the_vocabulary(self) -> None:
        shapes, _ = plan_shapes(settings(requests=50))
        for planned in make_prompts(shapes, "ids", PromptMaker("s", 1000, None)):
            assert len(planned.prompt) == planned.shape.input_tokens
            assert not isinstance(planned.prompt, str)
            assert planned.prompt.min() >= 0
            assert planned.prompt.max() < 1000

    def test_questions_without_a_tokenizer_cannot_be_ids(self) -> None:
        shapes, _ = plan_shapes(settings(workload="gsm8k", requests=3))
        with pytest.raises(ValueError, match="--tokenizer PATH"):
            make_prompts(shapes, "ids", PromptMaker("s", 1000, None))

    def test_a_tokenizer_makes_text_exact(self) -> None:
        class Letters:
            """One token a character."""

            def encode(self, text: str) -> list[int]:
                return [ord(c) for c in text]

            def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
                return "".join(map(chr, token_ids))

            def __len__(self) -> int:
                return 128

        assert len(PromptMaker("s", 128, Letters()).words(0, 40)) == 40
        assert vocabulary_size(Letters(), None) == 128

    def test_vocabulary_from_the_model_or_a_safe_one(self, tmp_path: Path) -> None:
        assert vocabulary_size(None, str(tmp_path)) == 1000
        (tmp_path / "config.json").write_text('{"vocab_size": 49152}', encoding="utf-8")
        assert vocabulary_size(None, str(tmp_path)) == 49152

    def test_a_tokenizer_that_cannot_be_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Loader:
            @staticmethod
            def from_pretrained(path: str) -> None:
                raise OSError(f"{path} is not a folder\nand more")

        # The real package takes ten seconds to import.
        monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=Loader))
        with pytest.raises(ValueError, match=r"cannot be loaded: x is not a folder$"):
            load_tokenizer("x")
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ValueError, match="needs the package transformers"):
            load_tokenizer("x")


class TestPlan:
    def test_seed_fixes_the_plan_and_rate_leaves_lengths_alone(self) -> None:
        one, _ = plan_shapes(settings(seed=5))
        two, _ = plan_shapes(settings(seed=5))
        faster, _ = plan_shapes(settings(seed=5, rate_rps=100.0))
        other, _ = plan_shapes(settings(seed=6))
        assert one == two
        assert [s.input_tokens for s in one] == [s.input_tokens for s in faster]
        assert one != other
        prints = {
            describe(settings(), shapes, "drawn", "ids").fingerprint
            for shapes in (one, two, faster, other)
        }
        assert len(prints) == 3

    def test_section_vi_mixture(self) -> None:
        shapes, _ = plan_shapes(settings(mixture="section-vi"))
        lengths = np.array([s.input_tokens for s in shapes])
        assert ((lengths >= 30) & (lengths <= 80)).mean() == pytest.approx(0.6, abs=0.04)
        assert ((lengths >= 350) & (lengths <= 512)).mean() == pytest.approx(0.1, abs=0.03)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"requests": None}, "needs --requests"),
            ({"rate_rps": None}, "needs --rate"),
            ({"workload": "csv"}, "--trace FILE"),
            ({"workload": "csv", "trace": "t.csv"}, "--rate does not apply"),
            ({"trace": "t.csv"}, "--trace applies to --workload csv only"),
            ({"workload": "random", "mixture": "section-vi"}, "--mixture applies"),
            ({"api": "openai-chat", "prompts": "ids"}, "takes text only"),
            (
                {"rate_rps": float("inf"), "bursts": (Burst(factor=2, start_s=0, duration_s=1),)},
                "rate",
            ),
        ],
    )
    def test_flags_that_do_not_go_together(self, changes: dict[str, object], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            settings(**changes)

    def test_all_at_once_is_a_rate(self) -> None:
        shapes, _ = plan_shapes(settings(rate_rps=float("inf"), requests=4))
        assert [shape.arrival_s for shape in shapes] == [0.0] * 4


class TestSlos:
    def test_reads_units(self) -> None:
        assert parse_slos("ttft=2s, itl_p99=50ms") == (
            Slo(metric="ttft", limit_ms=2000.0),
            Slo(metric="itl_p99", limit_ms=50.0),
        )

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("ttft", "write METRIC=LIMIT"),
            ("itl=5ms", "'itl' is not a metric with an SLO; one of ttft"),
            ("ttft=2", "with its unit"),
            ("ttft=-2s", "above 0"),
            ("ttft=1s,ttft=2s", "given twice"),
            ("ttft=1.2.3s", "not a number"),
            ("", "is not an SLO"),
        ],
    )
    def test_errors(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            parse_slos(text)
