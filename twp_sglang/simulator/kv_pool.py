"""The KV pool in tokens, handed out in whole pages, and who holds what."""

from __future__ import annotations

from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.prefix_cache import PrefixCache


class KvPool:
    """Pages of one engine.

    ``held`` counts the pages of active requests, a shared page once; everything else is
    free or can be evicted, which SGLang's scheduler counts alike.
    """

    def __init__(self, kv_tokens: int, page_size: int, *, prefix_cache: bool) -> None:
        self.page_size = page_size
        self.capacity_tokens = kv_tokens // page_size * page_size
        self.held = 0
        self.hit_tokens = 0
        self.cache = PrefixCache(page_size) if prefix_cache else None

    @property
    def free_tokens(self) -> int:
        """Tokens free or evictable."""
        return self.capacity_tokens - self.held

    def ceil(self, tokens: int) -> int:
        """``tokens`` rounded up to whole pages."""
        page = self.page_size
        return tokens if page == 1 else -(-tokens // page) * page

    def take(self, tokens: int) -> None:
        """Hand out whole pages that the caller knows to be there."""
        self.held += tokens
        cache = self.cache
        if cache is not None and self.held + cache.unused_tokens > self.capacity_tokens:
            cache.evict(self.held + cache.unused_tokens - self.capacity_tokens)

    def give(self, tokens: int) -> None:
        """Take whole pages back."""
        self.held -= tokens

    def hit(self, request: LiveRequest) -> tuple[int, int]:
        """(prompt tokens whose KV is there, tokens that using them makes unevictable).

        At least one token is left to compute, because the first output comes from it.
        """
        if request.carried_tokens:
            # Computed while the request still ran elsewhere; memory is taken at admission.
            return request.carried_tokens, self.ceil(request.carried_tokens)
        cache, blocks = self.cache, request.spec.prefix
        if cache is None or not blocks:
            return 0, 0
        _, tokens, unused = cache.match(blocks)
        return min(tokens, cache.paged(request.fill_tokens - 1)), unused

    def admit(self, request: LiveRequest, hit_tokens: int) -> None:
        """Lock the blocks that ``request`` found; it computes the rest itself."""
        request.computed_tokens = hit_tokens
        request.shared_tokens = 0
        request.locked_blocks = 0
        if request.carried_tokens:
            self.take(self.ceil(request.carried_tokens))
            request.carried_tokens = 0
            return
        cache, blocks = self.cache, request.spec.prefix
        if cache is None or not blocks:
            return
        count, tokens, unused = cache.match(blocks)
        cache.lock(blocks[:count])
        self.held += unused
        self.hit_tokens += hit_tokens
        request.locked_blocks = count
        request.shared_tokens = tokens

    def prefill(self, request: LiveRequest, tokens: int) -> None:
        """Give ``request`` pages for ``tokens`` more of its prompt."""
        before = self._private(request, request.computed_tokens)
        request.computed_tokens += tokens
        self.take(self._private(request, request.computed_tokens) - before)

    def share(self, request: LiveRequest) -> None:
        """Its prompt is computed: let others use its blocks."""
        cache = self.cache
        blocks = request.spec.prefix[request.locked_blocks :]
        if cache is None or not blocks:
            return
        before = self._private(request, request.computed_tokens)
        shared, held = cache.offer(blocks)
        request.locked_blocks = len(request.spec.prefix)
        request.shared_tokens += shared
        # Its own pages became the shared ones, or copies of pages that were there.
        self.held += held + self._private(request, request.computed_tokens) - before

    def release(self, request: LiveRequest, kv_tokens: int, *, keep: bool) -> None:
        """``request`` leaves with ``kv_tokens`` of KV; ``keep`` leaves them to be evicted."""
        private = self._private(request, kv_tokens)
        self.give(private)
        cache = self.cache
        if cache is None:
            return
        if keep:
            cache.keep_anonymous(private)
        if request.locked_blocks:
            self.give(cache.release(request.spec.prefix[: request.locked_blocks]))
            request.locked_blocks = 0
            request.shared_tokens = 0

    def _private(self, request: LiveRequest, kv_tokens: int) -> int:
        """Pages that ``request`` alone holds, of ``kv_tokens`` of KV."""
        return max(0, self.ceil(kv_tokens) - request.shared_tokens)
