"""Whether the engine can ever hold a request, whoever else waits.

A request that cannot would wait for ever: no admission policy and no amount of memory given
back by others lets it in.
"""

from __future__ import annotations


def never_fits(
    prompt_tokens: int, max_new_tokens: int, capacity_tokens: int, page_size: int = 1
) -> str | None:
    """Why a request can never run, or None where it can.

    The engine takes whole pages and keeps one in reserve, so a request needs its prompt, all
    of the output that it may produce and a page.

    Args:
        prompt_tokens: of the request.
        max_new_tokens: its own limit, after what the engine clips it to.
        capacity_tokens: KV tokens of the whole pool.
        page_size: KV tokens per page.

    Returns:
        A reason in words, to follow "the request", or None.
    """
    if prompt_tokens + page_size >= capacity_tokens:
        return (
            f"needs {prompt_tokens} KV tokens for its prompt and a page of a pool of "
            f"{capacity_tokens}: it can never run; shorten the prompt"
        )
    total = prompt_tokens + max_new_tokens
    if total + page_size >= capacity_tokens:
        most = max(0, capacity_tokens - page_size - prompt_tokens - 1)
        return (
            f"needs {total} KV tokens and a page of a pool of {capacity_tokens}: it can never "
            f"run; ask for at most {most} new tokens"
        )
    return None
