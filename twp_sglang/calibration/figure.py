"""The PNG of a profile: step time over the batch, and the cost of prefill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twp_sglang.calibration.profile import Profile

# Okabe-Ito: told apart by colour-blind readers.
_DATA, _FIT, _KNEE, _RATE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_CURVE_POINTS = 400


def draw(profile: Profile, path: Path) -> None:
    """Draw ``profile``.

    Left: median step time of every visit with its quartiles, the fit with the band that
    holds half of all single steps about it, l_min and the knee; and tokens/s. Right:
    what prompts took from the decoding requests.

    Raises:
        OSError: ``path`` cannot be written.
    """
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _decode(left, profile)
    _prefill(right, profile)
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
    figure.suptitle(_title(profile), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png")


def _decode(axis: Axes, profile: Profile) -> None:
    points, fit = profile.decode_points, profile.decode
    axis.set(
        title="Decode step time", xlabel="batch size B, requests", ylabel="step time (ITL), ms"
    )
    if not points:
        axis.text(0.5, 0.5, "nothing measured", ha="center", transform=axis.transAxes)
        return
    shortest = min(p.context_tokens for p in points)
    longer = [p for p in points if p.used and p.context_tokens > shortest]
    points = tuple(p for p in points if p.context_tokens == shortest)
    kept = [p for p in points if p.used]
    batch = np.array([p.batch for p in kept], dtype=np.float64)
    middle = np.array([p.median_ms for p in kept])
    half = np.array([p.iqr_ms for p in kept]) / 2
    axis.errorbar(
        batch, middle, half, fmt="o", ms=4, lw=1, capsize=2, color=_DATA, alpha=0.75,
        label=f"visits: median, IQR ({sum(p.n for p in kept):,} steps)",
    )  # fmt: skip
    disturbed = [p for p in points if not p.used]
    top = 1.15 * max([float((middle + half).max()), *(p.median_ms for p in longer)])
    if longer:
        axis.plot(
            [p.batch for p in longer], [p.median_ms for p in longer], "s", mfc="none", ms=5,
            color=_DATA, label=f"at {longer[0].context_tokens} prompt tokens and more",
        )  # fmt: skip
    if disturbed:
        axis.plot(
            [p.batch for p in disturbed], [min(p.median_ms, 0.99 * top) for p in disturbed], "x",
            color="0.5", ms=5, label=f"disturbed visits, left out ({len(disturbed)})",
        )  # fmt: skip
    if fit is not None:
        if fit.model is not None:
            grid = np.linspace(1.0, batch.max(), _CURVE_POINTS)
            curve = fit.model.step_ms(grid, grid * fit.context_tokens)
            # Half the steps of a normal scatter lie within 0.674 standard deviations.
            band = 0.674 * (fit.noise_percent or 0.0) / 100.0
            axis.fill_between(
                grid, curve * (1 - band), curve * (1 + band), color=_FIT, alpha=0.2, lw=0,
                label="half of the single steps",
            )  # fmt: skip
            axis.plot(grid, curve, color=_FIT, lw=1.8, label=_fit_label(profile))
        name = f"knee B0 = {fit.b0}" if fit.shape == "knee" else f"b0 = {fit.b0} ({fit.shape})"
        interval = fit.intervals.get("b0")
        if fit.shape == "knee" and interval is not None:
            axis.axvspan(interval.lo, interval.hi, color=_KNEE, alpha=0.12, lw=0)
            name += f" (95 % {interval.lo:.1f} to {interval.hi:.1f})"
        axis.axvline(fit.b0, color=_KNEE, ls="--", lw=1.4, label=name)
        axis.axhline(
            fit.l_min_ms, color=_KNEE, ls=":", lw=1.4, label=f"l_min = {fit.l_min_ms:.3g} ms at b0"
        )
    axis.set_xlim(0, 1.04 * batch.max())
    axis.set_ylim(0, top)
    rate = axis.twinx()
    sizes = np.unique(batch)
    rate.plot(
        sizes, [1e3 * b / np.median(middle[batch == b]) for b in sizes], color=_RATE, lw=1.2,
        ls="-.", marker=".", label="tokens/s (right)",
    )  # fmt: skip
    rate.set_ylabel("decode throughput, tokens/s", color=_RATE)
    rate.tick_params(colors=_RATE)
    rate.set_ylim(bottom=0)
    handles, labels = (a + b for a, b in zip(
        axis.get_legend_handles_labels(), rate.get_legend_handles_labels(), strict=True
    ))  # fmt: skip
    rate.legend(handles, labels, fontsize=8, framealpha=0.9, loc="lower right")


def _fit_label(profile: Profile) -> str:
    fit = profile.decode
    assert fit is not None
    parts = [] if fit.alpha_ms is None else [f"alpha = {fit.alpha_ms:.3g} ms/request"]
    if fit.shape == "knee" and fit.below_ms:
        parts.append(f"below the knee {fit.below_ms:.3g}")
    return "fit" + (": " if parts else "") + ", ".join(parts)


def _prefill(axis: Axes, profile: Profile) -> None:
    points, fit = profile.prefill_points, profile.prefill
    axis.set(
        title="Prefill beside decoding requests", xlabel="prompt, tokens",
        ylabel="time taken from decoding, ms",
    )  # fmt: skip
    if not points:
        axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
        return
    tokens = np.array([p.tokens for p in points], dtype=np.float64)
    axis.errorbar(
        tokens, [p.median_ms for p in points], [p.iqr_ms / 2 for p in points], fmt="o", ms=5, lw=1,
        capsize=2, color=_DATA,
        label=f"median, IQR of {sum(p.n for p in points)} probes, {points[0].decoding} decoding",
    )  # fmt: skip
    if fit is not None:
        chunk_tokens = profile.engine.chunk_tokens
        expected = [fit.expected_ms(p.tokens, p.chunks, chunk_tokens) for p in points]
        free = fit.free_tokens
        beside = f"beyond {free:.0f} tokens" if free else f"+ {fit.chunk_ms:.3g} ms/chunk"
        axis.plot(
            tokens, expected, color=_FIT, lw=1.8, marker="_", ms=10,
            label=f"fit: {fit.prefill_ms_per_token:.3g} ms/token (95 % {fit.lo:.3g} to "
            f"{fit.hi:.3g}) {beside}",
        )  # fmt: skip
    chunk = profile.engine.chunk_tokens
    if chunk is not None and chunk <= 1.05 * tokens.max():
        axis.axvline(chunk, color=_KNEE, ls="--", lw=1.2, label=f"chunk size C = {chunk}")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, framealpha=0.9, loc="upper left")


def _title(profile: Profile) -> str:
    engine, machine = profile.engine, profile.machine
    # A hub name keeps its owner, a folder its last part.
    model = Path(engine.model).name if engine.model.startswith("/") else engine.model
    where = ", ".join(machine.gpus) if engine.device != "cpu" else (machine.cpu or "unknown CPU")
    cores = f", {machine.cores} cores" if engine.device == "cpu" and machine.cores else ""
    text = (
        f"{model} · {engine.dtype} · {engine.attention_backend} · {where or 'unknown machine'}"
        f"{cores} · SGLang {engine.sglang_version} · from {profile.source}"
    )
    return ("EMULATED · " if engine.emulated else "") + text
