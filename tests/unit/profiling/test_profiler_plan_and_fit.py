"""Which steps are measured, and what model comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from twp_sglang.profiling.fitting import FitError, fit_steps
from twp_sglang.profiling.model_shape import ShapeError, model_shape, shape_names
from twp_sglang.profiling.roofline import Rates, roofline
from twp_sglang.profiling.settings import GPU_BATCHES, GPU_CHUNKS, GPU_CONTEXTS
from twp_sglang.profiling.step_points import PlanError, StepPoint, make_plan
from twp_sglang.simulator.step_models import Affine, AffineStep

BATCHES, CONTEXTS, CHUNKS = (1, 2, 4, 8, 16, 32, 64), (512, 2048, 8192), (64, 256, 1024)


def plan(slots: int = 10**7, context_limit: int = 10**6, seed: int = 0):
    return make_plan(BATCHES, CONTEXTS, CHUNKS, slots=slots, context_limit=context_limit, seed=seed)


def test_every_kind_is_measured_and_a_part_is_held_out() -> None:
    made = plan()
    assert {p.kind for p in made.points} == {"decode", "mixed", "prefill"}
    assert len(set(made.points)) == len(made.points)
    assert made.held_out < set(made.points)
    assert 0.1 < len(made.held_out) / len(made.points) <= 0.25
    # A bend between two values can only be found where both are in the fit.
    for kind in ("mixed", "prefill"):
        for chunk in CHUNKS:
            group = [p for p in made.points if p.kind == kind and p.chunk == chunk]
            assert len(made.held_out & set(group)) < len(group)
    decode = {(p.batch, p.context) for p in made.points if p.kind == "decode"}
    assert decode == {(b, c) for b in BATCHES for c in CONTEXTS}


def test_held_out_points_lie_inside_what_is_fitted() -> None:
    """A fit must not be judged on reaching beyond its data."""
    made = plan()
    for kind in ("decode", "mixed", "prefill"):
        fitted = [p for p in made.points if p.kind == kind and p not in made.held_out]
        for axis in ("batch", "context", "chunk", "prefix"):
            values = [getattr(p, axis) for p in fitted]
            for point in made.held_out:
                if point.kind == kind:
                    assert min(values) <= getattr(point, axis) <= max(values)


def test_a_cut_run_has_seen_the_corners() -> None:
    made = plan()
    first = made.points[: len(made.points) // 2]
    for batch, context in ((1, 512), (64, 8192)):
        assert StepPoint("decode", batch, context) in first


def test_what_does_not_fit_is_named() -> None:
    made = plan(slots=40_000, context_limit=4096)
    assert all(p.slots <= 40_000 for p in made.points)
    assert any("KV slots" in line for line in made.left_out)
    assert any("longer than the model's 4096" in line for line in made.left_out)
    with pytest.raises(PlanError, match=r"no step of the grid fits.*--batches"):
        plan(slots=3)


TRUE = AffineStep(
    l_min_ms=2.0,
    b0=16,
    alpha_ms=0.05,
    a_ms=0.004,
    kappa_ms_per_token=3e-5,
    prefill_ms_per_token=0.02,
    prefill_free_tokens=128,
)


def test_a_known_model_is_found_again() -> None:
    made, true = plan(), Affine(TRUE)
    times = {p: true.step_ms(p.batch, p.kv_tokens, p.chunk) for p in made.points}
    fit = fit_steps(times, made.held_out)
    assert fit.step.b0 == TRUE.b0
    for name in ("l_min_ms", "alpha_ms", "kappa_ms_per_token", "prefill_ms_per_token"):
        assert getattr(fit.step, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert fit.held_out_error_percent["all"] < 1e-4
    assert fit.held_out_points == len(made.held_out)


def test_scatter_alone_makes_no_knee() -> None:
    rng = np.random.default_rng(1)
    flat = Affine(TRUE.model_copy(update={"alpha_ms": 0.0, "b0": 0.0}))
    made = plan()
    times = {
        p: flat.step_ms(p.batch, p.kv_tokens, p.chunk) * float(rng.normal(1, 0.02))
        for p in made.points
    }
    fit = fit_steps(times, made.held_out)
    assert fit.step.alpha_ms == 0.0
    assert fit.held_out_error_percent["all"] < 5


def test_the_form_explains_a_machine_that_follows_its_roofline() -> None:
    """Matrix products bound by weights or by FLOPs, attention by KV bytes, a launch each: no
    such plane. What the form leaves is the least error to hope for on a GPU."""
    shape = model_shape("llama-3.2-3b")
    rates = Rates(bytes_per_s=4e12, flops_per_s=7e14, how="stated")
    made = make_plan(
        GPU_BATCHES, GPU_CONTEXTS, GPU_CHUNKS, slots=900_000, context_limit=131_072, seed=0
    )

    def machine(point: StepPoint) -> float:
        bounds = roofline(shape, point, rates, 2)
        attention = 4 * point.chunk * (point.prefix + point.chunk / 2) * shape.layers
        attention *= shape.heads * shape.head_dim / rates.flops_per_s * 1e3
        products = max(bounds.weights_ms, bounds.compute_ms - attention)
        return products / 0.8 + bounds.kv_ms / 0.75 + attention / 0.5 + 0.4

    fit = fit_steps({point: machine(point) for point in made.points}, made.held_out)
    assert fit.held_out_error_percent["decode"] < 5.0
    # A chunk's attention to its prefix has no term: prompts are foretold less well.
    assert fit.held_out_error_percent["all"] < 7.0


def test_held_out_error_is_of_points_that_were_not_fitted() -> None:
    made, true = plan(), Affine(TRUE)
    times = {p: true.step_ms(p.batch, p.kv_tokens, p.chunk) for p in made.points}
    spoilt = {p: ms * (2.0 if p in made.held_out else 1.0) for p, ms in times.items()}
    fit = fit_steps(spoilt, made.held_out)
    assert fit.fitted_error_percent < 1e-4
    assert fit.held_out_error_percent["all"] == pytest.approx(50.0, rel=1e-4)


def test_too_few_points_are_no_model() -> None:
    with pytest.raises(FitError, match="3 points were measured, 4 are needed"):
        fit_steps({StepPoint("decode", b, 100): 1.0 for b in (1, 2, 3)}, frozenset())


def test_bundled_shapes_have_the_published_sizes() -> None:
    assert model_shape("llama-3.2-3b").parameters == pytest.approx(3.21e9, rel=0.005)
    assert model_shape("llama-3.1-8b").parameters == pytest.approx(8.03e9, rel=0.005)
    assert model_shape("llama-3.1-8b").kv_bytes_per_token(2) == 131_072


@pytest.mark.parametrize("name", shape_names())
def test_a_config_json_gives_the_shape_back(name: str, tmp_path: Path) -> None:
    shape = model_shape(name)
    (tmp_path / "config.json").write_text(json.dumps(shape.config_json()))
    again = model_shape(str(tmp_path))
    assert again.model_dump(exclude={"name"}) == shape.model_dump(exclude={"name"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read as JSON"),
        ('{"num_hidden_layers": 2}', "hidden_size"),
        ('{"num_hidden_layers": 2, "num_local_experts": 8}', "dense decoders"),
        ("[1]", "one JSON object"),
    ],
)
def test_a_bad_shape_is_refused(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ShapeError, match=says):
        model_shape(str(path))


def test_roofline_of_a_decode_step_by_hand() -> None:
    shape = model_shape("llama-3.1-8b")
    rates = Rates(bytes_per_s=4e12, flops_per_s=8e14, how="stated")
    bounds = roofline(shape, StepPoint("decode", 64, 2047), rates, 2)
    # 7.5 G parameters that are read, and 64 x 2048 KV tokens read, 64 written.
    assert bounds.weights_ms == pytest.approx(2 * shape.step_parameters / 4e12 * 1e3)
    assert bounds.kv_ms == pytest.approx((64 * 2048 + 64) * 131_072 / 4e12 * 1e3)
    assert bounds.bound_ms == pytest.approx(bounds.weights_ms + bounds.kv_ms)
    prefill = roofline(shape, StepPoint("prefill", 0, 0, 4096), rates, 2)
    assert prefill.bound_by == "compute"
    assert prefill.compute_ms == pytest.approx(2 * 6.98e9 * 4096 / 8e14 * 1e3, rel=0.1)
