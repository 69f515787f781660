"""Text beside a label, wrapped between words only, so that paths and commands can be copied."""

import re
from collections.abc import Iterator
from textwrap import wrap

from rich.cells import cell_len
from rich.text import Text

_CODE = re.compile(r"`[^`\n]+`")
_UNBROKEN = "\0"
_WORD = re.compile(r"\s*\S+\s*|\s+")
_FURTHER = "  "
# A narrower column is unreadable; then the terminal wraps.
AT_LEAST = 30


def wrap_labelled(label: Text, text: str, width: int, *, indent: int | None = None, style: str = "") -> Iterator[Text]:
    """The label and the text, wrapped to the width; lines after the first are indented.

    Code in backticks counts as one word, and the terminal wraps a word that is too wide: print this with `crop=False`.
    """
    first = cell_len(label.plain)
    further = first if indent is None else indent
    for number, line in enumerate(_wrap_lines(text, first, further, max(width, first + AT_LEAST))):
        lead = Text(" " * further) if number else label
        rendered = Text(line, style=style)
        rendered.highlight_regex(_CODE, "green")
        yield Text.assemble(lead, rendered, no_wrap=True, overflow="ignore")


def wrap_words(text: Text, width: int) -> Iterator[Text]:
    """Styled text in lines that break between words only; further lines are indented. A wide word has its own line."""
    if cell_len(text.plain) <= width:
        yield text
        return
    breaks, used = [], 0
    for word in _WORD.finditer(text.plain):
        size = cell_len(word[0].rstrip())
        if used + size > width and used and word[0].strip():
            breaks.append(word.start())
            used = len(_FURTHER)
        used += cell_len(word[0])
    for number, line in enumerate(text.divide(breaks)):
        line.rstrip()
        yield Text.assemble(_FURTHER, line) if number else line


def _wrap_lines(text: str, first: int, further: int, width: int) -> Iterator[str]:
    """Wraps each line of the text separately; the first one leaves room for the label."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", _UNBROKEN), text)
    for number, line in enumerate(whole.splitlines() or [""]):
        lead = further if number else first
        parts = wrap(
            line,
            width,
            initial_indent=" " * lead,
            subsequent_indent=" " * further,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        yield parts[0].removeprefix(" " * lead).replace(_UNBROKEN, " ")
        yield from (part.removeprefix(" " * further).replace(_UNBROKEN, " ") for part in parts[1:])
