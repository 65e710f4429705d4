"""From what was measured to the profile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from twp_sglang.calibration.decode_fit import DecodeFit, FitRefused, fit_decode
from twp_sglang.calibration.machine import Machine
from twp_sglang.calibration.prefill_fit import PrefillFit, fit_prefill
from twp_sglang.calibration.profile import (
    DecodeMeasurement,
    EngineRecord,
    PrefillMeasurement,
    Profile,
)
from twp_sglang.calibration.samples import DecodePoint, PrefillProbe, iqr, median, undisturbed
from twp_sglang.calibration.server import Server
from twp_sglang.calibration.settings import CalibrationSettings
from twp_sglang.calibration.sources import SourceName
from twp_sglang.calibration.sweep import Findings
from twp_sglang.calibration.window import nominal_window

_EMULATED = "step times are emulated: this profile describes the emulator, not a machine"
_POOR_RESIDUAL_PERCENT = 10.0


def assemble(
    findings: Findings,
    settings: CalibrationSettings,
    server: Server,
    machine: Machine,
    source: SourceName,
    command: str,
) -> Profile:
    """Fit and gather everything; what cannot be fitted is None and a warning says why."""
    warnings = list(findings.notes)
    if server.emulated:
        warnings.insert(0, _EMULATED)
    decode: DecodeFit | None = None
    try:
        decode = fit_decode(findings.points, settings.min_scaling, settings.seed)
    except FitRefused as refused:
        warnings.append(f"no fit: {refused}")
    if decode is not None:
        warnings += decode.warnings
        worst = decode.worst_residual_percent
        if worst is not None and worst > _POOR_RESIDUAL_PERCENT:
            warnings.append(
                f"one batch size lies {worst:.0f} % off the fit: the curve has more than one bend "
                "(look at the picture), so b0 and l_min are the best of a rough description"
            )
    prefill = fit_prefill(findings.probes, settings.seed, server.chunk_tokens)
    if prefill is None and settings.prefill != ():
        warnings.append("prefill cost unknown: fewer than two prompt lengths were measured")
    window = nominal_window(None if decode is None else decode.b0, settings)
    if prefill is not None and prefill.hi > 2.0 * prefill.lo:
        warnings.append(
            f"prefill cost known only to lie in {prefill.lo:.3g} .. {prefill.hi:.3g} ms per token: "
            "the probes scatter; a quieter machine, more --rounds or longer --prefill would tell"
        )
    model = None if decode is None else decode.predicts
    used = [id(point) for point in undisturbed(findings.points)]
    return Profile(
        l_min_ms=None if decode is None else decode.l_min_ms,
        b0=None if decode is None else decode.b0,
        alpha_ms=None if model is None else model.alpha_ms,
        h0_tokens=window.h0_tokens,
        c_ms=None if model is None else model.l_min_ms,
        a_ms=None if model is None else model.a_ms,
        kappa_ms_per_token=None if model is None else model.kappa_ms_per_token,
        prefill_ms_per_token=(
            None if model is None or prefill is None else prefill.prefill_ms_per_token
        ),
        prefill_free_tokens=None if model is None or prefill is None else prefill.free_tokens,
        warnings=tuple(warnings),
        complete=findings.complete,
        decode=decode,
        prefill=prefill,
        window=window,
        engine=EngineRecord(
            model=server.model,
            sglang_version=server.version,
            device=server.device,
            attention_backend=server.backend,
            dtype=server.dtype,
            tp_size=server.tp_size,
            kv_tokens=server.kv_tokens,
            chunk_tokens=server.chunk_tokens,
            interleaving=server.interleaving,
            policy=server.policy,
            emulated=server.emulated,
        ),
        machine=machine,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        source=source,
        decode_points=tuple(_decode_row(p, decode, id(p) in used) for p in findings.points),
        prefill_points=_prefill_rows(findings.probes, prefill, server.chunk_tokens),
    )


def _decode_row(point: DecodePoint, fit: DecodeFit | None, used: bool) -> DecodeMeasurement:
    middle, held = median(point.steps.step_ms), median(point.steps.kv_tokens)
    residual = None
    if fit is not None and fit.model is not None:
        residual = 100.0 * (middle / fit.model.step_ms(float(point.batch), held) - 1.0)
    return DecodeMeasurement(
        batch=point.batch,
        context_tokens=point.context_tokens,
        round=point.round,
        n=point.steps.step_ms.size,
        median_ms=middle,
        iqr_ms=iqr(point.steps.step_ms),
        kv_tokens=held,
        residual_percent=residual,
        used=used,
    )


def _prefill_rows(
    probes: Sequence[PrefillProbe], fit: PrefillFit | None, chunk: int | None
) -> tuple[PrefillMeasurement, ...]:
    rows = []
    for tokens in sorted({probe.tokens for probe in probes}):
        same = [probe for probe in probes if probe.tokens == tokens]
        times = np.array([probe.prefill_ms for probe in same])
        expected = 0.0
        if fit is not None:
            expected = fit.expected_ms(tokens, same[0].chunks, chunk)
        rows.append(
            PrefillMeasurement(
                tokens=tokens,
                chunks=same[0].chunks,
                decoding=same[0].decoding,
                n=len(same),
                median_ms=median(times),
                iqr_ms=iqr(times),
                residual_percent=100.0 * (median(times) / expected - 1.0) if expected else None,
            )
        )
    return tuple(rows)
