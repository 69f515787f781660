"""Evaluates `[ … ]`, `[[ … ]]` and `test`."""

from collections.abc import Sequence

from aboard.core.launchers.shell.expansion import match_pattern
from aboard.core.launchers.shell.syntax import UnreadableScriptError
from aboard.core.launchers.shell.variables import find_unknown

_NUMBERS = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}


def evaluate_condition(words: Sequence[str], line: int) -> bool:
    """Whether the test holds; refuses a test of files or of a value that is known only at run time."""
    name, rest = words[0], list(words[1:])
    if name != "test":
        if rest[-1:] != [{"[": "]", "[[": "]]"}[name]]:
            raise UnreadableScriptError(line, f"a {name} without its end")
        rest.pop()
    for word in rest:
        if (unknown := find_unknown(word)) is not None:
            raise UnreadableScriptError(line, f"a test of {unknown}, which is known only at run time")
    return _evaluate(rest, line, extended=name == "[[")


def _evaluate(words: list[str], line: int, *, extended: bool) -> bool:
    for signs, decide in ((("||", "-o"), any), (("&&", "-a"), all)):
        at = next((index for index, word in enumerate(words) if index and word in signs), None)
        if at is not None:
            return decide([_evaluate(part, line, extended=extended) for part in (words[:at], words[at + 1 :])])
    if words[:1] == ["!"]:
        return not _evaluate(words[1:], line, extended=extended)
    holds: bool | None = None
    match words:
        case [] | ["-n"]:
            holds = bool(words)
        case [text] | ["-n", text]:
            holds = bool(text)
        case ["-z", text]:
            holds = not text
        case [left, "=" | "==" | "!=" as sign, right]:
            holds = (match_pattern(left, right) if extended else left == right) == (sign != "!=")
        case [left, sign, right] if sign in _NUMBERS and left.strip().isdecimal() and right.strip().isdecimal():
            holds = bool(_NUMBERS[sign](int(left), int(right)))
    if holds is None:
        raise UnreadableScriptError(line, f"the test '{' '.join(words)}'")
    return holds
