"""``python -m twp_sglang.audit TRACE``: did every admission keep the rules?

Reads a step trace (a file, or the folder of ``--twp-trace``) and checks each admission
against section IV-B3 of the paper, with the numbers that were recorded when it was made:

    window    load before + expected <= window         reasons window and policy
    kv        KV left free > threshold                 reasons window and policy
    idle      nothing was active                       reason idle
    early     waited at least t_max_steps              reason forced
    limit     at most forced_per_step in one step      reason forced
    clamps    the window lies between its clamps       every step
    record    the counts and loads of a line agree     every step

``policy`` is the reason of admissions that TWP did not decide: those of a baseline, and
those of SGLang itself in an ``observe`` run. The guards are held against them as well, so an
observe trace shows how often stock scheduling breaks what TWP would have kept.

Exit code 0 if nothing is violated, 1 if something is, 2 if there is nothing to judge.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from controllers.step_trace import Admission, Step
from controllers.trace_reader import TraceError, read_step_trace
from twp_sglang.config import TwpConfig
from twp_sglang.one_line_parser import OneLineParser
from twp_sglang.scheduling.laws import build_law, clamps_of

EXAMPLES_SHOWN = 3

KINDS = ("window", "kv", "idle", "early", "limit", "clamps", "record")
"""Kinds of violation, in the order of the module's table."""

GUARDED = ("window", "policy")
"""Reasons that both guards apply to."""


class Violation(NamedTuple):
    """One broken rule."""

    kind: str
    step: int
    rid: str
    detail: str

    def __str__(self) -> str:
        return f"step {self.step}{f', request {self.rid}' if self.rid else ''}: {self.detail}"


class Audit:
    """Takes the steps of one trace; holds what was found."""

    def __init__(self, config: TwpConfig) -> None:
        self._t_max_steps = config.t_max_steps
        self._forced_per_step = config.forced_per_step
        self._low, self._high = _known_clamps(config)
        self.steps = 0
        self.by_reason: Counter[str] = Counter()
        self.unjudged: Counter[str] = Counter()
        self.violations: list[Violation] = []

    @property
    def admissions(self) -> int:
        """How many there were, of any reason."""
        return self.by_reason.total()

    def take(self, step: Step) -> None:
        """Check one step."""
        self.steps += 1
        self._window_in_clamps(step)
        for admission in step.admissions:
            self.by_reason[admission.reason] += 1
            if admission.reason in GUARDED:
                self._guards(step, admission)
            elif admission.reason == "idle":
                if admission.load_before_tokens != 0:
                    self._found(
                        "idle",
                        step,
                        admission,
                        f"admitted as into an idle engine at load {admission.load_before_tokens}",
                    )
            elif admission.reason == "forced" and admission.waited_steps < self._t_max_steps:
                self._found(
                    "early",
                    step,
                    admission,
                    f"forced after {admission.waited_steps} steps, before t_max_steps = "
                    f"{self._t_max_steps}",
                )
        self._forcing_limit(step)
        self._record_agrees(step)

    def _guards(self, step: Step, admission: Admission) -> None:
        if admission.reason == "policy" and admission.load_before_tokens == 0:
            # The head of an idle engine is exempt, whoever let it in.
            return
        window = step.window_tokens
        load = admission.load_before_tokens
        if window is None:
            self._missing("window", step, admission)
        elif load + admission.expected_tokens > window:
            self._found(
                "window",
                step,
                admission,
                f"load {load} + expected {admission.expected_tokens} > window {window:.6g}",
            )
        free, threshold = admission.kv_free, admission.kv_threshold
        if free is None or threshold is None:
            self._missing("kv", step, admission)
        elif not free > threshold:
            self._found(
                "kv", step, admission, f"KV left free {free:.6g} is not above {threshold:.6g}"
            )

    def _missing(self, guard: str, step: Step, admission: Admission) -> None:
        """A guard that nobody recorded: fine for a policy without it, not for TWP's own."""
        if admission.reason == "window":
            self._found("record", step, admission, f"admitted by a gate without a {guard} number")
        else:
            self.unjudged[guard] += 1

    def _forcing_limit(self, step: Step) -> None:
        forced = sum(admission.reason == "forced" for admission in step.admissions)
        if self._forced_per_step is not None and forced > self._forced_per_step:
            self._found(
                "limit",
                step,
                None,
                f"{forced} forced, forced_per_step = {self._forced_per_step}",
            )

    def _window_in_clamps(self, step: Step) -> None:
        window = step.window_tokens
        if window is None:
            return
        if self._low is not None and window < self._low:
            self._found("clamps", step, None, f"window {window:.6g} below H_min {self._low:g}")
        if self._high is not None and window > self._high:
            self._found("clamps", step, None, f"window {window:.6g} above H_max {self._high:g}")

    def _record_agrees(self, step: Step) -> None:
        if step.admitted != len(step.admissions):
            self._found(
                "record",
                step,
                None,
                f"admitted = {step.admitted}, but {len(step.admissions)} admissions are listed",
            )
        forced = sum(admission.reason == "forced" for admission in step.admissions)
        if step.forced != forced:
            self._found(
                "record", step, None, f"forced = {step.forced}, but {forced} are listed as forced"
            )
        loads = [admission.load_before_tokens for admission in step.admissions[1:]]
        for admission, after in zip(step.admissions, [*loads, step.load_tokens], strict=False):
            expected = admission.load_before_tokens + admission.expected_tokens
            if after != expected:
                self._found(
                    "record",
                    step,
                    admission,
                    f"load {admission.load_before_tokens} + {admission.expected_tokens} became "
                    f"{after}",
                )

    def _found(self, kind: str, step: Step, admission: Admission | None, detail: str) -> None:
        rid = "" if admission is None else admission.rid
        self.violations.append(Violation(kind, step.step, rid, detail))


def _known_clamps(config: TwpConfig) -> tuple[float | None, float | None]:
    """Clamps that the configuration fixes; with an automatic H0 an unset one moves."""
    if config.h0_tokens is None:
        return config.h_min_tokens, config.h_max_tokens
    return clamps_of(build_law(config, config.h0_tokens))


def audit(path: Path) -> tuple[Audit, dict[str, Any]]:
    """Judge the trace at ``path``; what was found, and the facts about the trace.

    Raises:
        TraceError: it cannot be read, its header holds no configuration that can be used,
            or nobody was admitted.
    """
    trace = read_step_trace(path)
    config = _configuration(trace.path, trace.header.config)
    found = Audit(config)
    for step in _steps(trace.path, len(trace)):
        found.take(step)
    if not found.admissions:
        raise TraceError(f"{trace.path}: nobody was admitted, so there is nothing to judge")
    return found, {
        "trace": str(trace.path),
        "policy": config.policy,
        "model": trace.header.model,
        "notes": list(trace.notes),
    }


def _configuration(path: Path, recorded: dict[str, Any]) -> TwpConfig:
    # Fields of a newer writer do not matter here; those that do must be there.
    known = {name: value for name, value in recorded.items() if name in TwpConfig.model_fields}
    needed = [name for name in ("policy", "t_max_steps", "forced_per_step") if name not in known]
    if needed:
        raise TraceError(
            f"{path}: its header's config lacks {', '.join(needed)}; only a trace with the "
            "scheduler's configuration can be judged"
        )
    try:
        return TwpConfig.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "config"
        raise TraceError(f"{path}: its header's config: {name}: {first['msg']}") from None


def _steps(path: Path, count: int) -> Iterator[Step]:
    """The ``count`` steps that the reader vouched for; a torn last line is not among them."""
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if zipped else path.open("rb") as file:
        numbered = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
        next(numbered)
        for number, line in numbered:
            try:
                yield Step.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                name = ".".join(map(str, first["loc"]))
                raise TraceError(f"{path}, line {number}: {name}: {first['msg']}") from None
            count -= 1
            if not count:
                return


def as_json(found: Audit, about: dict[str, Any]) -> dict[str, Any]:
    """Everything, for a program; ``violations`` holds every kind, with its first examples."""
    return {
        **about,
        "steps": found.steps,
        "admissions": found.admissions,
        "by_reason": dict(found.by_reason.most_common()),
        "unjudged": dict(found.unjudged),
        "violation_count": len(found.violations),
        "violations": {
            kind: {
                "count": sum(violation.kind == kind for violation in found.violations),
                "examples": _examples(found, kind),
            }
            for kind in KINDS
        },
    }


def as_text(found: Audit, about: dict[str, Any]) -> str:
    """The same for a person."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in found.by_reason.most_common())
    lines = [
        f"{about['trace']}: policy {about['policy']}, {found.steps} steps, "
        f"{found.admissions} admissions ({reasons})",
        *(f"note: {note}" for note in about["notes"]),
    ]
    lines += [
        f"not judged: the {guard} guard of {count} admissions, for want of a recorded number"
        for guard, count in found.unjudged.items()
    ]
    for kind in KINDS:
        count = sum(violation.kind == kind for violation in found.violations)
        if count:
            lines.append(f"VIOLATED  {kind}: {count}")
            lines += [f"    {example}" for example in _examples(found, kind)]
    if about["policy"] == "observe" and found.violations:
        lines.append("note: observe enforces nothing; these are the engine's own decisions")
    lines.append(f"{len(found.violations)} violations")
    return "\n".join(lines)


def _examples(found: Audit, kind: str) -> list[str]:
    matching = [str(violation) for violation in found.violations if violation.kind == kind]
    return matching[:EXAMPLES_SHOWN]


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = OneLineParser(
        prog="python -m twp_sglang.audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="trace file, or its folder")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args(argv)
    try:
        found, about = audit(arguments.trace)
    except TraceError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(found, about), indent=2) if arguments.json else as_text(found, about))
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
