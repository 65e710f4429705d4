"""Prompts that no prefix cache has seen.

A server keeps the KV cache of past prompts by prefix, and a prompt used twice is then
nearly free: the second run would measure the cache. So every prompt begins with
something unique. Text begins with a digest of this run's salt and the request's number
(a digest, because a written-out salt would itself be a prefix that the run's prompts
share); token-id prompts are random from the first id on. The salt is drawn anew for each
run, also under the same ``--seed``, which fixes lengths and arrivals only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Prompt = str | TokenIds

FALLBACK_VOCABULARY = 1_000
"""Where nobody says how large the vocabulary is: every served model has this many."""

# Short, frequent words: one token each in the usual vocabularies, so that without a
# tokenizer a text of n words has about n tokens. The server's own count is what is
# recorded.
_WORD_LINES = """
    time people way day man thing woman life child world school state family student
    group country problem hand part place case week company system program question
    work night point home water room mother area money story fact month lot right
    study book eye job word business issue side kind head house service friend father
    power hour game line end member law car city community name president team minute
    idea body information back parent face others level office door health person art
    war history party result change morning reason research girl guy moment air teacher
"""
_WORDS = _WORD_LINES.split()


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, special tokens included."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Text of ``token_ids``."""

    def __len__(self) -> int:
        """Vocabulary size, added tokens included."""


def load_tokenizer(path: str) -> Tokenizer:
    """Load a Hugging Face tokenizer from a folder or a hub name.

    Raises:
        ValueError: transformers is not installed, or cannot load ``path``.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            "--tokenizer needs the package transformers (it comes with the engine extras); "
            "without it leave --tokenizer at none"
        ) from None
    try:
        loaded: Tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers raises what its many loaders raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"--tokenizer {path}: cannot be loaded: {first}") from None
    return loaded


def vocabulary_size(tokenizer: Tokenizer | None, model_path: str | None) -> int:
    """Vocabulary to draw token ids from: the tokenizer's, the model's, or a safe small one.

    ``model_path`` helps only where the client sees the server's file system.
    """
    if tokenizer is not None:
        return len(tokenizer)
    if model_path:
        try:
            config: Any = json.loads((Path(model_path) / "config.json").read_text("utf-8"))
            return int(config["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return FALLBACK_VOCABULARY


class PromptMaker:
    """Makes the prompts of one run.

    Args:
        salt: unique to the run.
        vocabulary: size of the vocabulary ids are drawn from.
        tokenizer: makes text lengths exact; None makes them about one token a word.
    """

    def __init__(self, salt: str, vocabulary: int, tokenizer: Tokenizer | None) -> None:
        self._salt = salt
        self._tokenizer = tokenizer
        self._rng = np.random.default_rng(list(salt.encode()))
        # Special tokens sit at either end of the usual vocabularies.
        self._low, self._high = vocabulary // 10, max(vocabulary - vocabulary // 10, 1)

    def token_ids(self, tokens: int) -> TokenIds:
        """Random token ids, shape (tokens,)."""
        return self._rng.integers(self._low, self._high, size=tokens, dtype=np.int32)

    def question(self, index: int, text: str) -> str:
        """``text`` behind a digest of its own."""
        return f"{self._head(index)} {text}"

    def question_ids(self, index: int, text: str) -> TokenIds:
        """The salted question as token ids, for a server without a tokenizer.

        Raises:
            ValueError: no tokenizer was given.
        """
        if self._tokenizer is None:
            raise ValueError(
                "this server runs without a tokenizer and takes token ids only; name one with "
                "--tokenizer PATH, or use --workload mixture, random or csv"
            )
        return np.array(self._tokenizer.encode(self.question(index, text)), dtype=np.int32)

    def _head(self, index: int) -> str:
        return hashlib.blake2b(f"{self._salt}-{index}".encode(), digest_size=5).hexdigest()

    def words(self, index: int, tokens: int) -> str:
        """Random text of ``tokens`` tokens (with a tokenizer) or about as many (without)."""
        head = self._head(index)
        drawn = self._rng.integers(len(_WORDS), size=tokens)
        text = " ".join([head, *(_WORDS[i] for i in drawn)])
        if self._tokenizer is None:
            # Hexadecimal digits cost about a token for two.
            spare = max(tokens - len(head) // 2, 1)
            return " ".join([head, *(_WORDS[i] for i in drawn[:spare])])
        ids = self._tokenizer.encode(text)[:tokens]
        return self._tokenizer.decode(ids, skip_special_tokens=True)
