"""The plan of a run: who arrives when, with which prompt, asking for how many tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.arrivals import arrival_times_s
from twp_sglang.benchmarking.prompts import Prompt, PromptMaker
from twp_sglang.benchmarking.questions import Questions, load_questions
from twp_sglang.benchmarking.settings import RunSettings
from twp_sglang.benchmarking.traces import read_trace


@dataclass(frozen=True, slots=True)
class Shape:
    """One request before its prompt is made.

    Attributes:
        arrival_s: seconds from the start of the run.
        input_tokens: planned prompt length; None where the prompt is a question.
        output_tokens: tokens asked for (max_new_tokens).
        question: text, for the gsm8k workload.
    """

    arrival_s: float
    output_tokens: int
    input_tokens: int | None = None
    question: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request ready to be sent at ``shape.arrival_s``."""

    index: int
    shape: Shape
    prompt: Prompt


class WorkloadRecord(FrozenModel):
    """What was replayed, for the header of a result.

    ``fingerprint`` covers every arrival time and length (and question); two runs with the
    same fingerprint asked for the same work at the same times. ``prompts`` says in which
    form it was sent.
    """

    name: str
    source: str
    requests: int
    rate_rps: float | str | None
    arrivals: str
    bursts: tuple[str, ...]
    input_tokens: str
    output_tokens: str
    prompts: Literal["ids", "text"]
    ignore_eos: bool
    span_s: float
    fingerprint: str


def plan_shapes(settings: RunSettings) -> tuple[list[Shape], str]:
    """Arrivals and lengths of a run, and where they come from; a function of the seed alone.

    Raises:
        ValueError: a trace or question file that cannot be used.
    """
    if settings.workload == "csv":
        if settings.trace is None:
            raise ValueError("--workload csv needs a trace; give it with --trace FILE")
        rows = read_trace(settings.trace, limit=settings.limit, time_stretch=settings.time_stretch)
        shapes = [Shape(row.arrival_s, row.output_tokens, row.input_tokens) for row in rows]
        return shapes, f"{settings.trace.name}, times x {settings.time_stretch:g}"

    count, rate, outputs = settings.requests, settings.rate_rps, settings.output_law
    if count is None or rate is None or outputs is None:
        raise ValueError(f"--workload {settings.workload} needs --requests and --rate")
    # One stream per quantity: a change of rate must not change the lengths.
    arrival_rng, input_rng, output_rng = (
        np.random.default_rng([settings.seed, stream]) for stream in range(3)
    )
    times = arrival_times_s(count, rate, settings.bursts, settings.arrivals, arrival_rng)
    output_tokens = outputs.sample(count, output_rng)
    if settings.workload == "gsm8k":
        questions = load_questions()
        picked = _question_order(questions, count, input_rng)
        return [
            Shape(float(t), int(out), question=text)
            for t, out, text in zip(times, output_tokens, picked, strict=True)
        ], questions.source
    inputs = settings.input_law
    if inputs is None:
        raise ValueError(f"--workload {settings.workload} has no prompt lengths")
    return [
        Shape(float(t), int(out), int(length))
        for t, out, length in zip(
            times, output_tokens, inputs.sample(count, input_rng), strict=True
        )
    ], "drawn"


def make_prompts(
    shapes: Sequence[Shape], form: Literal["ids", "text"], maker: PromptMaker
) -> list[PlannedRequest]:
    """Make every prompt ahead of the run, so that making them delays no arrival.

    Raises:
        ValueError: questions are wanted as token ids and there is no tokenizer.
    """
    planned = []
    for index, shape in enumerate(shapes):
        prompt: Prompt
        if shape.question is not None:
            make = maker.question_ids if form == "ids" else maker.question
            prompt = make(index, shape.question)
        else:
            tokens = shape.input_tokens or 1
            prompt = maker.token_ids(tokens) if form == "ids" else maker.words(index, tokens)
        planned.append(PlannedRequest(index, shape, prompt))
    return planned


def describe(
    settings: RunSettings, shapes: Sequence[Shape], source: str, form: Literal["ids", "text"]
) -> WorkloadRecord:
    """The header entry of a workload."""
    digest = hashlib.sha256()
    for shape in shapes:
        row = f"{shape.arrival_s:.6f},{shape.input_tokens},{shape.output_tokens},{shape.question}\n"
        digest.update(row.encode())
    rate = settings.rate_rps
    inputs, outputs = settings.input_law, settings.output_law
    return WorkloadRecord(
        name=settings.workload,
        source=source,
        requests=len(shapes),
        rate_rps="inf" if rate == float("inf") else rate,
        arrivals="trace" if settings.workload == "csv" else settings.arrivals,
        bursts=tuple(f"{b.factor:g}:{b.start_s:g}:{b.duration_s:g}" for b in settings.bursts),
        input_tokens=inputs.text if inputs else source,
        output_tokens=outputs.text if outputs else source,
        prompts=form,
        ignore_eos=settings.generates_to_length,
        span_s=round(shapes[-1].arrival_s, 6),
        fingerprint=digest.hexdigest()[:16],
    )


def _question_order(questions: Questions, count: int, rng: np.random.Generator) -> list[str]:
    # Each question once before any comes twice.
    rounds = -(-count // len(questions.texts))
    order = np.concatenate([rng.permutation(len(questions.texts)) for _ in range(rounds)])
    return [questions.texts[i] for i in order[:count]]
