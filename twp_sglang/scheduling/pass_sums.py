"""What follows from one pass's view: KV held, rows that decode, the longest row."""

from __future__ import annotations

from twp_sglang.scheduling.sample import PassView


def longest_row(view: PassView) -> int:
    """KV tokens of the active request that holds most."""
    return int(view.rows().held_tokens.max(initial=0))


def kv_held(view: PassView) -> int:
    """KV tokens held now: what chunked requests owe is promised, not held."""
    return max(0, view.kv_capacity_tokens - view.kv_free_tokens - view.owed_prompt_tokens)


def decoding_rows(view: PassView) -> int:
    """Rows that decode in the step: the chunked request does not."""
    return max(0, view.batch - (view.owed_prompt_tokens > 0))
