"""The patterns of a .gitignore file, matched as git matches them (gitignore(5)), without git."""

import re
from collections.abc import Sequence

from aboard.lazy_dataclass import dataclass

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
# Cuts the rest of a pattern into its parts.
_PARTS = re.compile(r"\\(?P<escaped>.)|(?P<stars>\*+)|(?P<any>\?)|(?P<open>\[)|(?P<other>[^\\])", re.DOTALL)

# No path is longer (PATH_MAX).
_LONGEST_PATTERN = 4096
_STAR = "[^/]*"
_DIRECTORIES = "(?:[^/]*/)*?"


@dataclass(frozen=True, kw_only=True)
class _Pattern:
    regex: re.Pattern[str]
    negated: bool
    only_directories: bool
    # Matched against the whole path, not just the name.
    anchored: bool


class IgnoreRules:
    """The patterns of one file; paths are relative to the file's directory."""

    def __init__(self, text: str) -> None:
        lines = encode_path(text).removeprefix("\xef\xbb\xbf").split("\n")
        self._patterns = [pattern for line in lines if (pattern := _parse_pattern(line)) is not None]
        self._any_name = _combine_regexes([each.regex for each in self._patterns if not each.anchored])
        self._any_path = _combine_regexes([each.regex for each in self._patterns if each.anchored])

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, path: str, name: str, *, is_directory: bool) -> bool | None:
        """True if the path is ignored, False if a later pattern re-includes it, None if no pattern matches it."""
        if not path.isascii():
            path, name = encode_path(path), encode_path(name)
        # One expression over all patterns first, since most paths match none.
        if not (self._any_name and self._any_name.fullmatch(name)) and not (
            self._any_path and self._any_path.fullmatch(path)
        ):
            return None
        for pattern in reversed(self._patterns):
            if pattern.only_directories and not is_directory:
                continue
            if pattern.regex.fullmatch(path if pattern.anchored else name):
                return not pattern.negated
        return None


def encode_path(path: str) -> str:
    """One character for each byte: git matches bytes."""
    return path.encode("utf-8", "surrogateescape").decode("latin-1")


def _combine_regexes(regexes: Sequence[re.Pattern[str]]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{each.pattern})" for each in regexes), re.DOTALL) if regexes else None


def _parse_pattern(line: str) -> _Pattern | None:
    line = line.removesuffix("\r")
    if line.startswith("#") or len(line) > _LONGEST_PATTERN:
        return None
    line = _strip_trailing_spaces(line)
    negated = line.startswith("!")
    if negated:
        line = line[1:]
    only_directories = line.endswith("/")
    line = line.removesuffix("/")
    if not line:
        return None
    anchored = "/" in line
    translated = _translate_pattern(line.removeprefix("/"))
    if translated is None:
        return None
    return _Pattern(
        regex=re.compile(translated, re.DOTALL), negated=negated, only_directories=only_directories, anchored=anchored
    )


def _strip_trailing_spaces(line: str) -> str:
    """Spaces at the end don't count, unless a backslash escapes them."""
    end = len(line)
    while end and line[end - 1] == " ":
        if end > 1 and line[end - 2] == "\\" and (end - len(line[: end - 1].rstrip("\\")) - 1) % 2:
            break
        end -= 1
    return line[:end]


def _translate_pattern(pattern: str) -> str | None:
    """The pattern as a regular expression; None for an invalid one, which matches nothing."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        found = _PARTS.match(pattern, at)
        if found is None:
            # A backslash at the end.
            return None
        end = found.end()
        if found["escaped"]:
            parts.append(re.escape(found["escaped"]))
        elif found["stars"]:
            part, end = _translate_stars(pattern, at, end)
            parts.append(part)
        elif found["any"]:
            parts.append("[^/]")
        elif found["open"]:
            bracket = _translate_bracket(pattern, end)
            if bracket is None:
                return None
            part, end = bracket
            parts.append(part)
        else:
            parts.append(re.escape(found["other"]))
        at = end
    return _join_parts(parts)


def _translate_stars(pattern: str, at: int, end: int) -> tuple[str, int]:
    """`**` spans directories only between slashes, or at either end; other stars stay within one name."""
    starts = at == 0 or pattern[at - 1] == "/"
    if end - at == 2 and starts:  # noqa: PLR2004 - two stars
        if end == len(pattern):
            return ".*" if at == 0 else ".+", end
        if pattern[end] == "/":
            return _DIRECTORIES, end + 1
    return _STAR, end


def _join_parts(parts: Sequence[str]) -> str:
    """Joins them so that matching takes linear time: what follows a star is searched once, from the left.

    A later star can take up whatever an earlier one left, so the leftmost match is as good as any: only the last star
    of a name, and the last `**/`, may try several places.
    """
    *stretches, last = _split_parts(parts, _DIRECTORIES)
    if not stretches:
        return _join_names(last)
    first, *middle = stretches
    searched = "".join(f"(?>{_DIRECTORIES}{_join_names(stretch)})" for stretch in middle if stretch)
    return f"{_join_names(first)}{searched}{_DIRECTORIES}{_join_names(last)}"


def _join_names(parts: Sequence[str]) -> str:
    return "/".join(map(_join_name, _split_parts(parts, "/")))


def _join_name(parts: Sequence[str]) -> str:
    first, *rest = map("".join, _split_parts(parts, _STAR))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{text})" for text in middle) + _STAR + last


def _split_parts(parts: Sequence[str], separator: str) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for part in parts:
        if part == separator:
            groups.append([])
        else:
            groups[-1].append(part)
    return groups


def _translate_bracket(pattern: str, at: int) -> tuple[str, int] | None:
    """A bracket expression from behind its `[`, and where it ends."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    members: list[str] = []
    first = at
    while at < len(pattern):
        letter = pattern[at]
        if letter == "]" and at > first:
            # A slash is never matched by a bracket.
            inside = "".join(members)
            one = f"(?!/)[{inside}]" if inside else "(?!)"
            return (f"[^/{inside}]" if negated else one), at + 1
        if letter == "[" and pattern[at + 1 : at + 2] == ":":
            name, closed, _rest = pattern[at + 2 :].partition(":]")
            if not closed or name not in _CLASSES:
                return None
            members.append(_CLASSES[name])
            at += len(name) + 4
            continue
        if letter == "\\":
            at += 1
            if at == len(pattern):
                return None
            letter = pattern[at]
        at += 1
        last = letter
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            at += 1
            if pattern[at] == "\\":
                at += 1
            last = pattern[at : at + 1]
            at += 1
        if last and letter <= last:
            members.append(f"{_escape_member(letter)}-{_escape_member(last)}")
    return None


def _escape_member(letter: str) -> str:
    return f"\\x{ord(letter):02x}"
