"""Text that a rank, node, process, log, model, data file or repository wrote, and the safe ways to use it.

It may contain terminal escape sequences, a line that looks like one of ours, or the end of a quoted word in a command
that people paste with sudo. So it is not a `str`, formatting it raises, and mypy rejects it in an f-string.
"""

import re
import shlex
from collections.abc import Container
from ipaddress import ip_address
from typing import NoReturn

_DISPLAY_LIMIT = 80
# Longer than any path that a kernel accepts.
LONGEST_WORD = 4096
# As long as the longest line of a rank that is recorded.
LONGEST_SEARCHED = 65_536


def escape_text(text: str, limit: int = _DISPLAY_LIMIT) -> str:
    """The text on one line, with control characters escaped, truncated to the limit."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)


def escape_lines(text: str) -> str:
    """Escapes each line without truncating it: for our own multi-line texts, such as a fix."""
    return "\n".join(escape_text(line, len(line)) for line in text.split("\n"))


def quote_word(text: str) -> str:
    """The text quoted as one shell word, and never as an option."""
    clean = escape_text(text, LONGEST_WORD)
    if clean.startswith("-"):
        clean = f"./{clean}"
    quoted = shlex.quote(clean)
    # zsh expands a leading `=`.
    return f"'{clean}'" if quoted.startswith("=") else quoted


class Untrusted:
    """Text from outside: it can be compared and searched; `visible` is for screens, `quote` for commands."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def visible(self, limit: int = _DISPLAY_LIMIT) -> str:
        """For a screen or a field of `--json`: one line, without control characters, bounded."""
        return escape_text(self._text, limit)

    def quote(self) -> str:
        """For a shell: one word. A template does the same with each of its blanks."""
        return quote_word(self._text)

    def match(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """The first match in its first 64 KB; its groups are as safe as the pattern makes them."""
        return re.search(pattern, self._text[:LONGEST_SEARCHED])

    def as_address(self) -> str | None:
        """The text, if it is an IP address."""
        try:
            return str(ip_address(self._text.partition("%")[0]))
        except ValueError:
            return None

    def as_known(self, names: Container[str]) -> str | None:
        """The text, if it is one of these names of ours."""
        return self._text if self._text in names else None

    def lines(self) -> "tuple[Untrusted, ...]":
        return tuple(map(Untrusted, self._text.splitlines()))

    def raw(self) -> str:
        """The text unchanged, for a record or a parser; never for a screen, a log or a command."""
        return self._text

    def startswith(self, start: str | tuple[str, ...]) -> bool:
        return self._text.startswith(start)

    def endswith(self, end: str | tuple[str, ...]) -> bool:
        return self._text.endswith(end)

    def __contains__(self, part: str) -> bool:
        return part in self._text

    def __eq__(self, other: object) -> bool:
        return self._text == (other._text if isinstance(other, Untrusted) else other)

    def __lt__(self, other: "Untrusted") -> bool:
        return self._text < other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __len__(self) -> int:
        return len(self._text)

    def __repr__(self) -> str:
        return f"Untrusted({self.visible()!r})"

    def __str__(self) -> NoReturn:
        raise TypeError("use visible() to show untrusted text, and quote() in a command")

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()


NO_TEXT = Untrusted("")


def encode_text(value: object) -> str:
    """The `default` of a record's JSON encoder: untrusted text stays unchanged."""
    return value.raw() if isinstance(value, Untrusted) else str(value)
