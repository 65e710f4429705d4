"""What TWP sets on SGLang so that prompts enter in chunks between decode steps.

``--chunked-prefill-size`` alone does not interleave: SGLang runs prefill first, chunk after
chunk. A mixed step does, or a decode step after every chunk. torch's native attention pads
every row of a mixed step to the longest, so on a CPU the decode step after each chunk is
the cheaper way; on a GPU it is the mixed step.
"""

from __future__ import annotations

from typing import Any

CHUNK_TOKENS_CPU = 64
"""The paper's C."""

CHUNK_TOKENS_ACCELERATOR = 512
"""At 64 prompt tokens per step an H100 cannot keep up with ordinary prompts; 512 is the
smallest budget at which prefill is compute-bound on current accelerators."""


def apply(arguments: Any, chunk_tokens: int | None, on_cpu: bool) -> list[str]:
    """Set what interleaving needs on ``arguments`` unless the person did; say what and why."""
    notes = []
    if arguments.chunked_prefill_size is None:
        chunk = chunk_tokens or (CHUNK_TOKENS_CPU if on_cpu else CHUNK_TOKENS_ACCELERATOR)
        page = getattr(arguments, "page_size", None) or 1
        # A chunk must end on a page; rounding down could round to nothing.
        arguments.chunked_prefill_size = -(-chunk // page) * page
        notes.append(
            f"--chunked-prefill-size {arguments.chunked_prefill_size} (prompt tokens per step)"
        )
    elif arguments.chunked_prefill_size <= 0:
        notes.append(
            "prefill is not chunked, as asked: whole prompts will run between decode steps and "
            "hold up every stream"
        )
        return notes
    if arguments.enable_mixed_chunk or arguments.prefill_decode_interval is not None:
        notes.append("interleaving as given on the command line")
    elif on_cpu:
        arguments.prefill_decode_interval = 1
        notes.append("--prefill-decode-interval 1 (a decode step after every chunk)")
    else:
        arguments.enable_mixed_chunk = True
        notes.append("--enable-mixed-chunk (chunks ride in decode steps)")
    return notes
