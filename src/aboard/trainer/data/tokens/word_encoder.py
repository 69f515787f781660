"""Encodes word by word: a byte-level tokenizer gives a word the same tokens wherever it occurs.

Most words of a text were seen before, so a lookup is several times as fast as `tokenizers` itself. The tokens are the
same: texts are split as it splits them, and new words go to its own model. Tokenizers that split in another way, and
texts with unknown characters, are left to it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, pre_tokenizers

from aboard.trainer.data.rows import Ids
from aboard.trainer.data.tokens.token_byte_lengths import TokenByteLengths

# Of ByteLevel itself (GPT-2, GPT-NeoX, SmolLM), of Llama 3 and GPT-4, of Qwen 2 to 3.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN = _GPT4.replace("{1,3}", "")
KNOWN_PATTERNS = (_GPT2, _GPT4, _QWEN)

_SPACE = r"\s"
_CLASSES = (r"\p{L}", r"\p{N}", _SPACE)
# Letters beyond these planes are rare enough to be left to the tokenizer.
_PLANES = 0x20000
_SURROGATES = range(0xD800, 0xE000)
_BEYOND_PLANES = re.compile(f"[\\U{_PLANES:08x}-\\U0010ffff]")
_BLOCK = 0x4000


def find_split_pattern(step: Mapping[str, Any] | None) -> str | None:
    """The pattern by which a pre-tokenizer splits, if it is a known one and the only one."""
    steps = step.get("pretokenizers", [step]) if step else []
    match steps:
        case [{"type": "ByteLevel", "use_regex": True}]:
            return _GPT2
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False},
        ] if pattern in KNOWN_PATTERNS:
            return str(pattern)
    return None


class WordSplitter:
    """Splits texts into words that cover every character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._ascii = _compile_splitter(pattern, 0x80)
        self._any: Callable[[str], list[str]] | None = None

    def __call__(self, text: str) -> list[str] | None:
        """The words in order; None if the text has unknown characters."""
        if text.isascii():
            return self._ascii(text)
        if len(text.encode("utf-16-le")) > 2 * len(text) and _BEYOND_PLANES.search(text):
            return None
        if self._any is None:
            self._any = _compile_splitter(self._pattern, _PLANES)
        return self._any(text)


def _compile_splitter(pattern: str, top: int) -> Callable[[str], list[str]]:
    """The pattern for characters below `top`, in Python's syntax."""
    for name in _CLASSES:
        inside = _list_character_ranges(name, top)
        # Inside brackets it becomes part of theirs, alone it is a class of its own.
        parts = re.split(rf"(?<=\[)([^]]*){re.escape(name)}", pattern)
        within = "".join(part + inside * (at % 2) for at, part in enumerate(parts))
        pattern = within.replace(name, f"[{inside}]")
    return re.compile(pattern.replace(r"\S", f"[^{_list_character_ranges(_SPACE, top)}]")).findall


@cache
def _list_character_ranges(name: str, top: int) -> str:
    """The ranges of a character class, as written between brackets."""
    others = pre_tokenizers.Split(Regex(name), "removed")
    ranges: list[range] = []
    for start in range(0, top, _BLOCK):
        block = [code for code in range(start, min(start + _BLOCK, top)) if code not in _SURROGATES]
        inside = set(block)
        for _, (first, behind) in others.pre_tokenize_str("".join(map(chr, block))):
            inside.difference_update(block[first:behind])
        for code in sorted(inside):
            if ranges and ranges[-1].stop == code:
                ranges[-1] = range(ranges[-1].start, code + 1)
            else:
                ranges.append(range(code, code + 1))
    return "".join(f"\\U{each.start:08x}-\\U{each.stop - 1:08x}" for each in ranges)


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
