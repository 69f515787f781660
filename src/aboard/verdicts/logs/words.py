"""Blanks in sentences and commands, filled with words of a log."""

import re
from collections.abc import Mapping

from aboard.core.words import visible

# What stands in a command's blank when the log doesn't tell.
_BLANK = {"python": "python3"}
# What a log says ends up in commands that people paste: nothing that a shell obeys may come through.
_UNSAFE = re.compile(r"[^\w.:/@%+,=\[\] -]")


class _Words(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return _BLANK.get(name, name.upper())


def filled(text: str, words: Mapping[str, str]) -> str:
    """The text with each `{name}` filled in, or its name in capitals where there is nothing to fill in."""
    safe = {name: _UNSAFE.sub("?", visible(value)).lstrip("-") for name, value in words.items() if value}
    return text.format_map(_Words(safe))
