"""What to type: templates with named blanks, and the only way to fill them.

People paste a fix with sudo. Whoever fills a blank of a `Command` gives one word of it, quoted for the shell, whatever
the word holds; no value can add a command, an option or a line.

    {name}          one word: a string, a path, a number, or a piece of shell to be quoted as one word (`ssh n1 '…'`)
    {name:words}    several words
    {name:--set}    the option before each of several words: `--set a=1 --set b=2`
    {name:shell}    a piece of shell that another template made, as it is; where the template itself is shown, what
                    follows `shell` stands for it: `{check:shell aboard check NODES}`
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from string import Formatter
from typing import Self, TypeAlias

from aboard.diagnoses.untrusted import LONGEST_WORD, Untrusted, encode_text, escape_text, quote_word
from aboard.lazy_dataclass import dataclass


class Shell(str):
    """A piece of shell that a template made: each value in it is quoted already."""

    __slots__ = ()


class Fix(Shell):
    """What to type or to do about a failure; it remembers which variant it is, and the values in it."""

    variant: str
    values: "Mapping[str, Value]"

    def __new__(cls, text: str, *, variant: str = "", values: "Mapping[str, Value] | None" = None) -> Self:
        fix = super().__new__(cls, text)
        fix.variant = variant
        fix.values = values or {}
        return fix


NO_FIX = Fix("")

Value: TypeAlias = str | int | float | PathLike[str] | Untrusted | Iterable[str | Untrusted]


@dataclass(frozen=True)
class FixCommand:
    """A template of something to type."""

    text: str

    def fill(self, values: Mapping[str, Value]) -> str:
        return _fill_blanks(self.text, values, _format_shell_value)


@dataclass(frozen=True)
class Advice:
    """A template of something to do that is no command: a line of aboard.yaml, a sentence."""

    text: str

    def fill(self, values: Mapping[str, Value]) -> str:
        return _fill_blanks(self.text, values, _format_text_value)


_SINGLE = (str, int, float, PathLike, Untrusted)

FixTemplate: TypeAlias = FixCommand | Advice


def format_shell(text: str, **values: Value) -> Shell:
    """A piece of shell, to be put into a template."""
    return Shell(FixCommand(text).fill(values))


def chain_commands(*commands: Shell) -> Shell:
    """Commands of which each runs if the one before it succeeded; empty ones are left out."""
    return Shell(" && ".join(filter(None, commands)))


def join_lines(*commands: Shell) -> Shell:
    """Commands, a line each; empty ones are left out."""
    return Shell("\n".join(filter(None, commands)))


def join_fixes(*fixes: Fix) -> Fix:
    """Several steps, a line each; empty ones are left out."""
    return Fix("\n".join(filter(None, fixes)))


def list_blanks(template: FixTemplate) -> set[str]:
    """The names that have to be given."""
    return {name for _, name, _, _ in Formatter().parse(template.text) if name is not None}


def name_blanks(text: str) -> str:
    """The text of a template with the example of each blank in its place, or its name in capitals."""
    parts = ((literal, name or "", (how or "").partition(" ")[2]) for literal, name, how, _ in Formatter().parse(text))
    return "".join(literal + (example or name.upper()) for literal, name, example in parts)


def _fill_blanks(text: str, values: Mapping[str, Value], show: "Callable[[Value, str], str]") -> str:
    parts = []
    for literal, name, how, _ in Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            parts.append(show(values[name], how or ""))
    return "".join(parts)


def _format_shell_value(value: Value, how: str) -> str:
    if how.partition(" ")[0] == "shell":
        if not isinstance(value, Shell):
            raise TypeError("the value is no piece of shell")
        return value
    if how == "words" or how.startswith("-"):
        option = "" if how == "words" else f"{how} "
        return " ".join(option + quote_word(encode_text(each)) for each in _require_words(value))
    # A piece of shell has been cut and cleaned already, and must keep its closing quotes.
    return shlex.quote(value) if isinstance(value, Shell) else quote_word(_require_word(value))


def _format_text_value(value: Value, how: str) -> str:
    parts = map(encode_text, _require_words(value)) if how == "words" else [_require_word(value)]
    return ", ".join(escape_text(part, LONGEST_WORD) for part in parts)


def _require_word(value: Value) -> str:
    if isinstance(value, _SINGLE):
        return encode_text(value)
    raise TypeError("several words where one is wanted")


def _require_words(value: Value) -> Iterable[str | Untrusted]:
    if isinstance(value, _SINGLE):
        raise TypeError("one word where several are wanted")
    return value
