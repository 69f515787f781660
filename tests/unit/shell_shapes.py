"""How a shell splits a command: what no value in it may change."""

import shlex

from aboard.diagnoses.untrusted import escape_text


def shape(command: str, value: str) -> list[str]:
    """The words and operators of each line, with the value taken out; what stands behind `#` is a remark."""
    shown = escape_text(value, 4096)
    taken = f"./{shown}" if shown.startswith("-") else shown
    return [word.replace(taken, "") for line in command.split("\n") for word in split(line)]


def split(line: str) -> list[str]:
    """The words and operators of one line."""
    words = shlex.shlex(line.partition("  #")[0], posix=True, punctuation_chars=True)
    words.whitespace_split = True
    words.commenters = ""
    return list(words)
