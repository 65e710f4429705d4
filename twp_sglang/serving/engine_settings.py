"""How prompts enter in chunks between decode steps: C, and what interleaves.

``--chunked-prefill-size`` alone does not interleave: SGLang runs prefill first, chunk after
chunk. A mixed step does, or a decode step after every chunk. torch's native attention pads
every row of a mixed step to the longest, so on a CPU the decode step after each chunk is
the cheaper way; on a GPU it is the mixed step.

C bounds the chunk while somebody decodes. It is applied per step by the hooks, and SGLang's
own chunk size, for which SGLang plans its memory, stays the upper bound: with nobody
decoding there is nobody to protect, and first tokens come as early as in stock SGLang.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CHUNK_TOKENS_CPU = 64
"""The paper's C."""

CHUNK_TOKENS_ACCELERATOR = 512
"""At 64 prompt tokens per step an H100 cannot keep up with ordinary prompts; 512 is the
usual token budget per step of chunked prefill (Sarathi-Serve) on such machines."""


_INTERVAL = "prefill_decode_interval"
"""Of SGLang's arguments; 0.5.17 has none, and mixed steps interleave there everywhere."""


class Interleaving(NamedTuple):
    """What was chosen, and the lines that tell so."""

    chunk_tokens: int | None
    """C, or None where the person set SGLang's own chunk size."""
    notes: tuple[str, ...]


def choose(
    arguments: Any, chunk_tokens: int | None, on_cpu: bool, *, sized: bool = False
) -> Interleaving:
    """Set what interleaves on ``arguments`` unless the person did, and choose C.

    Args:
        arguments: of SGLang, changed in place.
        chunk_tokens: C where it is stated or known for the machine.
        on_cpu: whether the engine runs on a CPU.
        sized: whether the policy sizes every chunk itself, so that C decides nothing.
    """
    notes = []
    chunk: int | None = None
    given = arguments.chunked_prefill_size
    if given is not None and given <= 0:
        return Interleaving(
            None,
            (
                "prefill is not chunked, as asked: whole prompts will run between decode steps "
                "and hold up every stream",
            ),
        )
    if given is None or chunk_tokens is not None:
        chunk = chunk_tokens or (CHUNK_TOKENS_CPU if on_cpu else CHUNK_TOKENS_ACCELERATOR)
        notes.append(
            "policy slo sizes each step's chunk by its objective while somebody decodes "
            "(--twp-chunk-tokens would bound it)"
            if sized
            else f"{chunk} prompt tokens per step while somebody decodes (--twp-chunk-tokens)"
        )
    else:
        notes.append(
            f"at most {given} prompt tokens per step, as given (--chunked-prefill-size); policy "
            "slo sizes each step's chunk by its objective"
            if sized
            else f"{given} prompt tokens per step, as given (--chunked-prefill-size)"
        )
    if arguments.enable_mixed_chunk or getattr(arguments, _INTERVAL, None) is not None:
        notes.append("interleaving as given on the command line")
    elif on_cpu and hasattr(arguments, _INTERVAL):
        arguments.prefill_decode_interval = 1
        notes.append("--prefill-decode-interval 1 (a decode step after every chunk)")
    else:
        notes.append(_mix(arguments))
    return Interleaving(chunk, tuple(notes))


def _mix(arguments: Any) -> str:
    try:
        arguments.enable_mixed_chunk = True
    except AttributeError:
        # 0.5.17 has resolved its arguments by now, and lets nobody change them.
        return (
            "this SGLang does not let --enable-mixed-chunk be chosen for it: give the flag, or "
            "chunk after chunk runs before the next decode step"
        )
    return "--enable-mixed-chunk (chunks ride in decode steps)"
