"""Words that a line must contain for a pattern to match: searching for a word is a hundred times as fast."""

from functools import cache

_SHORTEST = 3
_QUANTIFIERS = "?*+{"


# Each scanner needs all of them, and extracting them takes longer than reading most logs.
@cache
def extract_keywords(source: str) -> tuple[str, ...]:
    """One word for each alternative of the pattern; empty where an alternative has none."""
    if source.startswith("(?i)"):
        return ()
    words = [_find_longest_literal(part) for part in _split_alternatives(source)]
    return tuple(dict.fromkeys(words)) if all(len(word) >= _SHORTEST for word in words) else ()


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


def _find_longest_literal(part: str) -> str:
    """The longest run of plain characters outside of any group."""
    runs, run, depth, place = [], "", 0, 0
    while place < len(part):
        char = part[place]
        after = part[place + 1 : place + 2]
        literal = ""
        if char == "\\":
            literal = "" if after.isalnum() else after
            place += 1
        elif char == "[":
            place = _find_class_end(part, place)
        elif char in "()":
            depth += 1 if char == "(" else -1
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
    return max((*runs, run), key=len)


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
