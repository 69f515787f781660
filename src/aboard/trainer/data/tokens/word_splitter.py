r"""Splits a text into words as byte-level tokenizers do, for the patterns that most of them use.

What is a letter, a number or a space (\p{L}, \p{N}, \s) is determined by the tokenizer's own regular expressions, for
each character, and written out for Python's. So the two agree even if they were built for different Unicode versions.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tokenizers import Regex, pre_tokenizers

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
