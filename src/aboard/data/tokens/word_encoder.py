"""Encoding word by word: a byte-level tokenizer makes the same tokens of a word wherever it stands.

Most words of a text were seen before, so that looking them up is several times as fast as `tokenizers` itself. The
tokens are the same: words are cut where it cuts them, and a new word goes to its own model. Tokenizers that cut in
another way, and texts with characters that aren't known here, are left to it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from aboard.data.rows import Ids
from aboard.data.tokens.token_byte_lengths import TokenByteLengths
from aboard.data.tokens.word_splitter import WordSplitter, find_split_pattern

# Some 200 bytes each.
CACHE_WORDS = 1 << 17
_MAX_CACHED_WORD = 100


class WordEncoder:
    """Texts in, token ids out; None for a text that it can't be sure of."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        spelling: TokenByteLengths,
        splits: WordSplitter,
        added: Mapping[str, int],
        *,
        kept: int = CACHE_WORDS,
    ) -> None:
        self._spelling = spelling
        self._splits = splits
        self._memory = _WordCache(tokenizer, kept)
        self._added = {token: _pack_ids([number]) for token, number in added.items()}
        # The longest first, as tokenizers takes them.
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
    content: Mapping[str, Any], tokenizer: Tokenizer, spelling: TokenByteLengths | None, *, kept: int = CACHE_WORDS
) -> WordEncoder | None:
    """By what a tokenizer.json says; None for one whose tokens depend on more than the word."""
    pattern = find_split_pattern(content.get("pre_tokenizer"))
    added = content.get("added_tokens", ())
    if spelling is None or pattern is None or content["model"].get("dropout"):
        return None
    # Those that take spaces with them, stand only between words, or are looked for in a second round.
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    if any(token[name] for token in added for name in flags) or not all(token["content"] for token in added):
        return None
    numbers = {token["content"]: token["id"] for token in added}
    return WordEncoder(tokenizer, spelling, WordSplitter(pattern), numbers, kept=kept)


class _WordCache(dict[str, bytes]):
    """The tokens of words; when it is full it begins anew, and has the frequent ones again at once."""

    def __init__(self, tokenizer: Tokenizer, kept: int) -> None:
        super().__init__()
        self._model = tokenizer.model
        self._kept = kept

    def __missing__(self, word: str) -> bytes:
        spelled = word.encode().decode("latin-1").translate(_LETTERS)
        tokens = _pack_ids(token.id for token in self._model.tokenize(spelled))
        if len(word) <= _MAX_CACHED_WORD:
            if len(self) >= self._kept:
                self.clear()
            self[word] = tokens
        return tokens


def _pack_ids(ids: Iterable[int]) -> bytes:
    return np.fromiter(ids, np.uint32).tobytes()


def _map_byte_letters() -> dict[int, str]:
    """How ByteLevel spells each byte: as itself where that can be seen, else by the next letters from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


_LETTERS = _map_byte_letters()
