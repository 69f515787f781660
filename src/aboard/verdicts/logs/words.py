"""Blanks in sentences and commands, filled with words of a log."""

from collections.abc import Mapping

from aboard.diagnoses import Advice, Command, Fix
from aboard.diagnoses.fixes import blanks

# What stands in a command's blank when the log doesn't tell.
_BLANK = {"python": "python3"}


def filled(text: str, words: Mapping[str, str]) -> str:
    """A sentence with each `{name}` filled in, or its name in capitals where there is nothing to fill in."""
    sentence = Advice(text)
    return sentence.fill({name: words.get(name) or name.upper() for name in blanks(sentence)})


def fill_fix(command: Command, words: Mapping[str, str]) -> Fix:
    """A command, as above: each word that a log said is one word of it."""
    values = {name: words.get(name) or _BLANK.get(name, name.upper()) for name in blanks(command)}
    return Fix(command.fill(values))
