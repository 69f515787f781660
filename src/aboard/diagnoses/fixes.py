"""Fix templates with named blanks, and the only way to fill them.

People paste a fix with sudo. A value that fills a blank of a `FixCommand` becomes one word, quoted for the shell,
whatever it contains; no value can add a command, an option or a line.

    {name}          one word: a string, a path, a number, or a shell fragment quoted as one word (`ssh n1 '…'`)
    {name:words}    several words
    {name:--set}    the option before each of several words: `--set a=1 --set b=2`
    {name:shell}    a shell fragment from another template, inserted unchanged; pages that show the template itself
                    print the text after `shell` in its place: `{check:shell aboard check NODES}`
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from string import Formatter
from typing import Self, TypeAlias

from aboard.diagnoses.untrusted import LONGEST_WORD, Untrusted, encode_text, escape_lines, escape_text, quote_word
from aboard.lazy_dataclass import dataclass


class Shell(str):
    """A shell fragment that a template made: each value in it is already quoted."""

    __slots__ = ()


class Fix(Shell):
    """The filled-in fix of a failure, with its variant and its values; `is_advice` is for one without any command."""

    variant: str
    values: "Mapping[str, Value]"
    is_advice: bool

    def __new__(
        cls, text: str, *, variant: str = "", values: "Mapping[str, Value] | None" = None, is_advice: bool = False
    ) -> Self:
        # A typed command keeps its words as they are; a control character in one of them must not reach a screen.
        fix = super().__new__(cls, escape_lines(text))
        fix.variant = variant
        fix.values = values or {}
        fix.is_advice = is_advice
        return fix


NO_FIX = Fix("")

Value: TypeAlias = str | int | float | PathLike[str] | Untrusted | Iterable[str | Untrusted]


@dataclass(frozen=True)
class FixCommand:
    """A template of a command to run."""

    text: str

    def fill(self, values: Mapping[str, Value]) -> str:
        return _fill_blanks(self.text, values, _format_shell_value)


@dataclass(frozen=True)
class Advice:
    """A template of a fix that is not a command: a line of aboard.yaml, a sentence."""

    text: str

    def fill(self, values: Mapping[str, Value]) -> str:
        return _fill_blanks(self.text, values, _format_text_value)


_SINGLE = (str, int, float, PathLike, Untrusted)

FixTemplate: TypeAlias = FixCommand | Advice
# In a declaration, a plain string is a command.
FixTemplates: TypeAlias = Mapping[str, str | FixTemplate]


def format_shell(text: str, **values: Value) -> Shell:
    """A shell fragment for the `{name:shell}` blank of a template."""
    return Shell(FixCommand(text).fill(values))


def chain_commands(*commands: Shell) -> Shell:
    """Chains commands with `&&`; empty ones are skipped."""
    return Shell(" && ".join(filter(None, commands)))


def join_lines(*commands: Shell) -> Shell:
    """Joins commands, one per line; empty ones are skipped."""
    return Shell("\n".join(filter(None, commands)))


def join_fixes(*fixes: Fix) -> Fix:
    """Joins fixes, one per line; empty ones are skipped. The variant is that of the first."""
    some = [fix for fix in fixes if fix]
    if not some:
        return NO_FIX
    is_advice = all(fix.is_advice for fix in some)
    return Fix("\n".join(some), variant=some[0].variant, values=some[0].values, is_advice=is_advice)


def list_blanks(template: FixTemplate) -> set[str]:
    """The names of the blanks that need a value."""
    return {name for _, name, _, _ in Formatter().parse(template.text) if name is not None}


def name_blanks(text: str) -> str:
    """The text of a template, with each blank replaced by its example or by its name in capitals."""
    parts = ((literal, name or "", (how or "").partition(" ")[2]) for literal, name, how, _ in Formatter().parse(text))
    return "".join(literal + (example or name.upper()) for literal, name, example in parts)


def _fill_blanks(text: str, values: Mapping[str, Value], format_value: "Callable[[Value, str], str]") -> str:
    parts = []
    for literal, name, how, _ in Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            parts.append(format_value(values[name], how or ""))
    return "".join(parts)


def _format_shell_value(value: Value, how: str) -> str:
    if how.partition(" ")[0] == "shell":
        if not isinstance(value, Shell):
            raise TypeError("the value is not a shell fragment")
        return value
    if how == "words" or how.startswith("-"):
        option = "" if how == "words" else f"{how} "
        return " ".join(option + quote_word(encode_text(each)) for each in _require_words(value))
    # A shell fragment is already truncated and escaped, and must keep its closing quotes.
    return shlex.quote(value) if isinstance(value, Shell) else quote_word(_require_word(value))


def _format_text_value(value: Value, how: str) -> str:
    parts = map(encode_text, _require_words(value)) if how == "words" else [_require_word(value)]
    return ", ".join(escape_text(part, LONGEST_WORD) for part in parts)


def _require_word(value: Value) -> str:
    if isinstance(value, _SINGLE):
        return encode_text(value)
    raise TypeError("several words for a blank that takes one")


def _require_words(value: Value) -> Iterable[str | Untrusted]:
    if isinstance(value, _SINGLE):
        raise TypeError("one word for a blank that takes several")
    return value
