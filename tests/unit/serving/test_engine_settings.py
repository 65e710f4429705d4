"""What interleaves prompts with decode steps, on engines that differ in what they know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twp_sglang.serving.engine_settings import choose


def arguments(**values: Any) -> SimpleNamespace:
    """As much of SGLang's arguments as is looked at."""
    given = {"chunked_prefill_size": None, "enable_mixed_chunk": False}
    return SimpleNamespace(**{**given, **values})


def test_on_an_accelerator_chunks_ride_in_decode_steps() -> None:
    asked = arguments(prefill_decode_interval=None)
    assert choose(asked, None, on_cpu=False).chunk_tokens == 512
    assert asked.enable_mixed_chunk
    assert asked.prefill_decode_interval is None


def test_on_a_cpu_a_decode_step_follows_each_chunk() -> None:
    asked = arguments(prefill_decode_interval=None)
    assert choose(asked, None, on_cpu=True).chunk_tokens == 64
    assert not asked.enable_mixed_chunk
    assert asked.prefill_decode_interval == 1


def test_a_policy_that_sizes_its_chunks_is_said_once() -> None:
    for given, bound in ((None, "--twp-chunk-tokens"), (4096, "at most 4096 prompt tokens")):
        asked = arguments(prefill_decode_interval=None)
        asked.chunked_prefill_size = given
        plain = choose(asked, None, on_cpu=True)
        sized = choose(asked, None, on_cpu=True, sized=True)
        assert sized.chunk_tokens == plain.chunk_tokens
        assert "by its objective" in sized.notes[0]
        assert bound in sized.notes[0]
        assert "64 prompt tokens" not in " ".join(sized.notes)


def test_an_engine_without_the_interval_mixes_everywhere() -> None:
    for on_cpu in (True, False):
        asked = arguments()
        choose(asked, None, on_cpu=on_cpu)
        assert asked.enable_mixed_chunk
        assert not hasattr(asked, "prefill_decode_interval")


def test_what_the_person_set_stays() -> None:
    asked = arguments(prefill_decode_interval=3)
    choose(asked, None, on_cpu=False)
    assert not asked.enable_mixed_chunk
    assert asked.prefill_decode_interval == 3


def test_an_engine_that_lets_nobody_choose_is_told_of() -> None:
    class Resolved:
        chunked_prefill_size = None

        @property
        def enable_mixed_chunk(self) -> bool:
            return False

    chosen = choose(Resolved(), None, on_cpu=False)
    assert chosen.chunk_tokens == 512
    assert "give the flag" in chosen.notes[-1]
