"""Encodes word by word: a byte-level tokenizer gives a word the same tokens wherever it occurs.

Most words of a text were seen before, so a lookup is several times as fast as `tokenizers` itself. The tokens are the
same: texts are split as it splits them, and new words go to its own model. Tokenizers that split in another way, and
texts with unknown characters, are left to it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from aboard.trainer.data.rows import Ids
from aboard.trainer.data.tokens.token_byte_lengths import TokenByteLengths
from aboard.trainer.data.tokens.word_splitter import WordSplitter, find_split_pattern

# Some 200 bytes each.
CACHE_WORDS = 1 << 17
_MAX_CACHED_WORD = 100


class WordEncoder:
    """Encodes texts as token ids; None for a text that it can't encode reliably."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        spelling: TokenByteLengths,
        splits: WordSplitter,
        added: Mapping[str, int],
        *,
        cache_size: int = CACHE_WORDS,
    ) -> None:
        self._spelling = spelling
        self._splits = splits
        self._memory = _WordCache(tokenizer, cache_size)
        self._added = {token: _pack_ids([number]) for token, number in added.items()}
        # The longest first, as in tokenizers.
        words = sorted(added, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, words))})").split if words else lambda text: [text]

    def __call__(self, text: str) -> Ids | None:
        if not self._spelling.fits(text):
            return None
        parts: list[bytes] = []
        added = False
        for piece in self._cut(text):  # a text, an added token, a text, …
            if added:
                parts.append(self._added[piece])
            elif piece:
                words = self._splits(piece)
                if words is None:
                    return None
                parts.extend(map(self._memory.__getitem__, words))
            added = not added
        return np.frombuffer(b"".join(parts), np.uint32)


def build_word_encoder(
    content: Mapping[str, Any],
    tokenizer: Tokenizer,
    spelling: TokenByteLengths | None,
    *,
    cache_size: int = CACHE_WORDS,
) -> WordEncoder | None:
    """Built from tokenizer.json; None if tokens depend on more than the word."""
    pattern = find_split_pattern(content.get("pre_tokenizer"))
    added = content.get("added_tokens", ())
    if spelling is None or pattern is None or content["model"].get("dropout"):
        return None
    # Those that absorb spaces, match only between words, or are matched in a second round.
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    if any(token[name] for token in added for name in flags) or not all(token["content"] for token in added):
        return None
    numbers = {token["content"]: token["id"] for token in added}
    return WordEncoder(tokenizer, spelling, WordSplitter(pattern), numbers, cache_size=cache_size)


class _WordCache(dict[str, bytes]):
    """The tokens of words; when full it is cleared, and quickly has the frequent ones again."""

    def __init__(self, tokenizer: Tokenizer, cache_size: int) -> None:
        super().__init__()
        self._model = tokenizer.model
        self._size = cache_size

    def __missing__(self, word: str) -> bytes:
        spelled = word.encode().decode("latin-1").translate(_LETTERS)
        tokens = _pack_ids(token.id for token in self._model.tokenize(spelled))
        if len(word) <= _MAX_CACHED_WORD:
            if len(self) >= self._size:
                self.clear()
            self[word] = tokens
        return tokens


def _pack_ids(ids: Iterable[int]) -> bytes:
    return np.fromiter(ids, np.uint32).tobytes()


def _map_byte_letters() -> dict[int, str]:
    """ByteLevel's characters: printable bytes map to themselves, the others to characters from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


_LETTERS = _map_byte_letters()
