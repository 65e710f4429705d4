"""KV of finished requests, kept for reuse: SGLang's radix cache by blocks.

A block is reusable from the moment its prefill was launched. Blocks that no active
request uses stay until memory is wanted and leave oldest first, within a prompt from its
end. What a request holds beyond its named blocks stays as an anonymous block that nobody
can match: it only takes its turn in the eviction order, as it does in SGLang.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

from twp_sglang.workloads.request import PrefixBlock


class _Block:
    __slots__ = ("tokens", "users")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.users = 1


class PrefixCache:
    """Blocks by key. Token counts are whole pages; the caller accounts for the pool."""

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._blocks: dict[str, _Block] = {}
        self._unused: OrderedDict[str, int] = OrderedDict()
        self._anonymous = itertools.count()
        self.unused_tokens = 0
        """Tokens that could be evicted."""

    def paged(self, tokens: int) -> int:
        """Whole pages within ``tokens``."""
        return tokens // self._page * self._page

    def match(self, blocks: tuple[PrefixBlock, ...]) -> tuple[int, int, int]:
        """Leading blocks present: (how many, their tokens, of these unused so far)."""
        count = tokens = unused = 0
        for block in blocks:
            found = self._blocks.get(block.key)
            if found is None:
                break
            count += 1
            tokens += found.tokens
            unused += found.tokens if not found.users else 0
        return count, tokens, unused

    def lock(self, blocks: tuple[PrefixBlock, ...]) -> None:
        """Use these present blocks: they cannot be evicted meanwhile."""
        for block in blocks:
            found = self._blocks[block.key]
            if not found.users:
                self.unused_tokens -= self._unused.pop(block.key)
            found.users += 1

    def offer(self, blocks: tuple[PrefixBlock, ...]) -> tuple[int, int]:
        """Put freshly computed blocks in use; copies of blocks already here are dropped.

        Returns:
            (tokens of these blocks, tokens that became held by it: those of new blocks and
            of blocks here that nobody used).
        """
        shared = held = 0
        for block in blocks:
            found = self._blocks.get(block.key)
            if found is None:
                found = self._blocks[block.key] = _Block(self.paged(block.tokens))
                held += found.tokens
            else:
                held += 0 if found.users else found.tokens
                self.lock((block,))
            shared += found.tokens
        return shared, held

    def release(self, blocks: tuple[PrefixBlock, ...]) -> int:
        """Stop using blocks; tokens that nobody uses any more."""
        freed = 0
        # The end of a prompt first: it must leave before its beginning does.
        for block in reversed(blocks):
            found = self._blocks[block.key]
            found.users -= 1
            if not found.users:
                self._unused[block.key] = found.tokens
                freed += found.tokens
        self.unused_tokens += freed
        return freed

    def keep_anonymous(self, tokens: int) -> None:
        """Keep ``tokens`` of a finished request that no other can match."""
        if tokens > 0:
            self._unused[f"\0{next(self._anonymous)}"] = tokens
            self.unused_tokens += tokens

    def evict(self, tokens: int) -> None:
        """Drop unused blocks, oldest first, until ``tokens`` are free."""
        while tokens > 0 and self._unused:
            key, size = self._unused.popitem(last=False)
            self._blocks.pop(key, None)
            self.unused_tokens -= size
            tokens -= size
