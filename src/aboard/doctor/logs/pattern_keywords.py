"""Words that a line must contain for a pattern to match: searching for a word is a hundred times as fast."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

_SHORTEST = 3
_QUANTIFIERS = "?*+{"
# Not that of a condition, such as (?!…) or (?<=…).
_GROUP_START = re.compile(r"^\((?:\?(?:i?:|p<\w+>))?(?!\?)")


class WordIndex:
    """Finds which of many words a text contains: only words that share a part of three characters are searched."""

    def __init__(self, words: Iterable[str]) -> None:
        known = [word for word in dict.fromkeys(words) if word]
        often = Counter(part for word in known for part in _split_parts(word))
        self._by_part: dict[str, list[str]] = {}
        for word in known:
            rarest = min(sorted(_split_parts(word)), key=lambda part: often[part])
            self._by_part.setdefault(rarest, []).append(word)

    def find(self, text: str) -> list[str]:
        by_part = self._by_part
        return [word for part in by_part.keys() & _split_parts(text) for word in by_part[part] if word in text]


def _split_parts(text: str) -> set[str]:
    return {text[start : start + _SHORTEST] for start in range(len(text) - _SHORTEST + 1)}


# Each scanner needs all of them, and extracting them takes longer than reading most logs.
@cache
def extract_keywords(source: str) -> tuple[str, ...]:
    """Words in small letters, one of which each text that matches has; empty where an alternative has none."""
    words = _list_words(source.removeprefix("(?i)").lower())
    return tuple(dict.fromkeys(words)) if all(len(word) >= _SHORTEST for word in words) else ()


def _list_words(source: str) -> list[str]:
    """For each alternative its longest word, or those of a group that it always has."""
    return [word for part in _split_alternatives(source) for word in _find_best_words(part)]


def _find_best_words(part: str) -> list[str]:
    runs, groups = _split_part(part)
    choices = [[run] for run in runs] + [_list_words(group) for group in groups]
    return max(choices, key=lambda words: (min(map(len, words)), -len(words)))


def _split_alternatives(source: str) -> list[str]:
    """The alternatives at the outermost level."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(source):
        char = source[place]
        if char == "\\":
            place += 1
        elif char == "[":
            place = _find_class_end(source, place)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(source[start:place])
            start = place + 1
        place += 1
    return [*parts, source[start:]]


def _split_part(part: str) -> tuple[list[str], list[str]]:
    """The runs of plain characters outside of any group, and the contents of groups that are not optional."""
    runs, groups, run, depth, place, opened = [], [], "", 0, 0, 0
    while place < len(part):
        char = part[place]
        after = part[place + 1 : place + 2]
        literal = ""
        if char == "\\":
            literal = "" if after.isalnum() else after
            place += 1
        elif char == "[":
            place = _find_class_end(part, place)
        elif char == "(":
            depth += 1
            opened = place if depth == 1 else opened
        elif char == ")":
            depth -= 1
            if depth == 0 and after not in tuple(_QUANTIFIERS):
                groups.append(_GROUP_START.sub("", part[opened:place]))
        elif char not in ".^$?*+{}|":
            literal = char
        elif char == "{":
            place = part.index("}", place)
        if literal and depth == 0 and part[place + 1 : place + 2] not in tuple(_QUANTIFIERS):
            run += literal
        else:
            runs.append(run)
            run = ""
        place += 1
    return [*runs, run], [group for group in groups if not group.startswith("(")]


def _find_class_end(source: str, start: int) -> int:
    """Where a character class that begins here ends."""
    place = start + 1
    if source[place] == "^":
        place += 1
    if source[place] == "]":
        place += 1
    while source[place] != "]":
        place += 2 if source[place] == "\\" else 1
    return place
