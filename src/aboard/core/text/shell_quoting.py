r"""The one place that writes an argv for a remote login shell, which may be sh, bash, zsh, csh, tcsh or fish.

What the shells disagree on, and what is therefore never left inside single quotes:

    '   ends them everywhere
    \   is an escape inside them in fish, and not in the others
    !   is history inside them in csh and tcsh, even in a script

A backslash before each of these, outside of quotes, means the same in all six. A newline has no such spelling
(csh and tcsh refuse it between quotes, sh drops it after a backslash), and csh was never at home in 8-bit text, so
an argv with anything but printable ASCII goes as octal digits to an `sh`, which every node has.
"""

import re
import shlex
from typing import TYPE_CHECKING

from aboard.diagnoses import InputError, Shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Stricter than shlex: zsh expands a leading `=`; csh expands `^`, `%`, `@` and `{}` in places.
_BARE = re.compile(r"[A-Za-z0-9_./:,+-]+")
_PIECES = re.compile(r"[^'\\!]+|['\\!]")
_PRINTABLE = re.compile(r"[ -~]*")
_DECODE = 'eval "exec $(printf %b "$1")"'


def join_argv(argv: "Sequence[str]") -> Shell:
    """The command line that every login shell splits back into exactly this argv."""
    for word in argv:
        if "\0" in word:
            seen = f"'{escape_text(word)}' contains a NUL byte, which no argument can contain"
            raise InputError.of(configuration.SHELL_NUL, "command", seen)
    if all(_PRINTABLE.fullmatch(word) for word in argv):
        return Shell(" ".join(map(quote_word, argv)))
    return Shell(" ".join(["sh", "-c", quote_word(_DECODE), "sh", f"'{_encode_octal(shlex.join(argv))}'"]))


def quote_typed_words(words: "Iterable[str]") -> Shell:
    """Quotes the user's own command for retyping: unlike values in a fix, its words may be options.

    Only for words that were typed on this machine, never for external text.
    """
    return Shell(shlex.join(words))


def quote_word(word: str) -> str:
    """Quotes a word of printable ASCII for every login shell."""
    if _BARE.fullmatch(word):
        return word
    pieces = _PIECES.findall(word)
    return "".join(f"\\{piece}" if piece in "'\\!" else f"'{piece}'" for piece in pieces) or "''"


def _encode_octal(text: str) -> str:
    r"""Encodes text for printf's %b: safe characters stay, other bytes become `\0ooo`."""
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if _BARE.fullmatch(chr(byte)) else f"\\0{byte:03o}" for byte in data)
