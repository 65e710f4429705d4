"""The plot shows the trace's own numbers, on the run's clock."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from controllers.trace_reader import StepTrace, read_step_trace
from tests.unit.demo.stories import record
from twp_sglang.demonstration.picture import draw, figure_of, machine


def trace_of(folder: Path, window: bool = True, forced: int = 0) -> StepTrace:
    """Ten steps of 100 ms from t = 1,000 ms on, two of them prefill."""
    lines = [json.dumps({"schema": "twp-step-trace", "version": 1, "created_unix_s": 1.0})]
    for step in range(1, 11):
        prefill = step in (3, 4)
        lines.append(
            json.dumps(
                {
                    "step": step,
                    "t_ms": 900.0 + 100.0 * step,
                    "kind": "prefill" if prefill else "decode",
                    "duration_ms": 100.0,
                    "batch": 0 if prefill else step,
                    "prefill_tokens": 64 if prefill else 0,
                    "kv_tokens": 10 * step,
                    "queue": 10 - step,
                    "load_tokens": 40 * step,
                    "window_tokens": 400.0 - step if window else None,
                    "sigma": 1.0,
                    "itl_ms": 100.0 + step,
                    "admitted": int(step % 2),
                    "forced": forced if step == 5 else 0,
                }
            )
        )
    path = folder / "steps.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return read_step_trace(path)


def curves(figure: object) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for axis in figure.axes  # type: ignore[attr-defined]
        for line in axis.lines
    }


def test_a_long_name_of_the_machine_stays_inside_the_picture(tmp_path: Path) -> None:
    name = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz with a very long name, 176 cores"
    title = f"HuggingFaceTB/SmolLM2-135M-Instruct on SGLang 0.5.20, policy twp · {name} (CPU)\nx"
    figure = figure_of(trace_of(tmp_path), [record(0)], 1000.0, title)
    figure.draw_without_rendering()
    drawn = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    assert 0 < drawn.x0 < drawn.x1 < figure.bbox.width
    shown = figure.get_suptitle()
    assert " ".join(shown.split()) == " ".join(title.split())
    assert shown.endswith("\nx")


def test_curves_are_the_traces(tmp_path: Path) -> None:
    figure = figure_of(trace_of(tmp_path), [record(0)], 1000.0, "title")
    drawn = curves(figure)
    at_s = [0.1 * step for step in range(10)]
    assert drawn["window H"][0] == pytest.approx(at_s)
    assert drawn["window H"][1] == [400.0 - step for step in range(1, 11)]
    assert drawn["admitted so far"][1] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    # The two prefill steps decode nobody and are left out.
    assert drawn["batch B"][1] == [1, 2, 5, 6, 7, 8, 9, 10]
    assert drawn["ITL, as clients saw it"] == (
        pytest.approx([0.62, 0.75]),
        pytest.approx([120.0, 130.0]),
    )


def test_steps_before_the_run_are_left_out(tmp_path: Path) -> None:
    drawn = curves(figure_of(trace_of(tmp_path), [], 1500.0, "title"))
    assert drawn["window H"][0] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    # Admissions of the server's own warm-up are none of the run's.
    assert drawn["admitted so far"][1][-1] == 2


def test_forced_admissions_are_marked(tmp_path: Path) -> None:
    assert "forced admission" not in curves(figure_of(trace_of(tmp_path), [], 0.0, ""))
    marked = curves(figure_of(trace_of(tmp_path, forced=1), [], 1000.0, ""))["forced admission"]
    assert marked == (pytest.approx([0.4]), pytest.approx([200.0]))


def test_policy_without_a_window(tmp_path: Path) -> None:
    assert "window H" not in curves(figure_of(trace_of(tmp_path, window=False), [], 0.0, ""))


def test_run_without_a_token(tmp_path: Path) -> None:
    failed = record(0, error="http_500").model_copy(update={"ttft_ms": None, "itl_ms": ()})
    assert "ITL, as clients saw it" not in curves(
        figure_of(trace_of(tmp_path), [failed], 1000.0, "")
    )


def test_png_is_written_and_not_blank(tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "deep" / "window.png"
    draw(trace_of(tmp_path), [record(0)], 1000.0, "model · machine", path)
    pixels = imread(path)
    assert pixels.shape[0] > 500
    assert np.ptp(pixels[..., :3]) > 0.5


def test_machine_is_named() -> None:
    assert "core" in machine("cpu")
