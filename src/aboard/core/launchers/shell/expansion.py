"""Expands words: variables, arithmetic, output of commands, and the splitting into fields."""

import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import translate

from aboard.core.launchers.shell.arithmetic import evaluate_arithmetic
from aboard.core.launchers.shell.syntax import FailedScriptError, Part, UnknownNumberError, UnreadableScriptError, Word
from aboard.core.launchers.shell.tokens import parse_text
from aboard.core.launchers.shell.variables import Variables, find_unknown, mark_unknown

_PARAMETER = re.compile(
    r"(?P<length>#(?=[A-Za-z_]))?(?P<name>[A-Za-z_]\w*|[0-9]{1,9}|[@*#?$!])(?:\[(?P<index>[^\]]*)\])?"
    r"(?P<operator>:[-=?+]|[-=?+]|##|#|%%|%|//|/|:(?=[\s0-9$]))?(?P<argument>.*)",
    re.DOTALL,
)
# What may be an assignment in an arithmetic expression.
_CHANGES = re.compile(r"=|\+\+|--")
_GLOB = re.compile(r"[*?]|\[[^\[\]]*\]")
CapturedOutput = Callable[[str, int], str]
# What all expansions of a script may cost, in characters: a value that is doubled 40 times has a million million.
_BUDGET = 20_000_000
# Comparing a pattern with every part of a text costs the square of its length, divided by this.
_PARTS_PER_CHARACTER = 20


class Expander:
    """Expands words with the variables of a shell; `capture` returns what a command prints."""

    def __init__(self, variables: Variables, capture: CapturedOutput) -> None:
        self._variables = variables
        self._capture = capture
        self._budget = _BUDGET

    def expand_text(self, word: Word, line: int) -> str:
        """The word as one text, as in an assignment."""
        return "".join(
            part.text if part.kind == "text" else " ".join(self._expand_part(part.kind, part.text, line))
            for part in self._with_home(word)
        )

    def expand_fields(self, word: Word, line: int, *, globs: bool = False) -> list[str]:
        """The fields that the word becomes; refuses a file name pattern, which depends on the node's files."""
        if [part.text for part in word] == ["", "@"]:  # "$@", which is nothing without arguments
            return list(self._variables.arguments)
        fields: list[str] = []
        is_open = False
        for part in self._with_home(word):
            if part.kind == "text":
                if not part.quoted and not globs and _has_pattern(part.text):
                    raise UnreadableScriptError(
                        line, f"the pattern '{part.text}', which depends on the files of the node"
                    )
                pieces, starts, ends = [part.text], True, True
            elif part.quoted:
                pieces, starts, ends = self._expand_part(part.kind, part.text, line), True, True
                if not pieces:
                    continue
            else:
                text = " ".join(self._expand_part(part.kind, part.text, line))
                pieces = text.split()
                starts, ends = not text[:1].isspace(), not text[-1:].isspace()
                if not pieces:
                    is_open = is_open and starts
                    continue
            if is_open and starts:
                fields[-1] += pieces[0]
                pieces = pieces[1:]
            fields += pieces
            is_open = ends
        return fields

    def expand_arithmetic(self, text: str, line: int) -> int:
        expanded = self.expand_text(parse_text(text, line), line)
        if (unknown := find_unknown(expanded)) is not None:
            raise UnknownNumberError(line, f"arithmetic with {unknown}, which is known only at run time")
        return evaluate_arithmetic(expanded, lambda name: self._variables.get(name) or "", self._variables.set, line)

    def _with_home(self, word: Word) -> Word:
        """Replaces a leading `~` by the home directory."""
        first = word[0] if word else None
        if first is None or first.kind != "text" or first.quoted or not re.match(r"~(/|$)", first.text):
            return word
        home = Part(kind="text", text=self._variables.get("HOME") or "~", quoted=True)
        return (home, *((replace(first, text=first.text[1:]),) if first.text[1:] else ()), *word[1:])

    def _spend(self, characters: int, line: int) -> None:
        self._budget -= characters
        if self._budget < 0:
            raise UnreadableScriptError(line, f"values of more than {_BUDGET:,} characters")

    def _expand_part(self, kind: str, text: str, line: int) -> list[str]:
        values = self._compute_part(kind, text, line)
        self._spend(sum(map(len, values)), line)
        return values

    def _compute_part(self, kind: str, text: str, line: int) -> list[str]:
        if kind == "arithmetic":
            try:
                return [str(self.expand_arithmetic(text, line))]
            except UnknownNumberError:
                if _CHANGES.search(text):
                    raise
                return [mark_unknown(f"(({text.strip()}))")]
        if kind == "command":
            return [self._capture(text, line).rstrip("\n")]
        match = _PARAMETER.fullmatch(text)
        if not match or (match["argument"] and not match["operator"]):
            raise UnreadableScriptError(line, f"the expansion ${{{text}}}")
        values = self._read_values(match["name"], match["index"], line)
        if match["length"]:
            return [self._measure(values, match["name"], match["index"], line)]
        if not match["operator"]:
            return _join_values(values, match["index"] or match["name"])
        return self._apply_operator(values, match, line)

    def _read_values(self, name: str, index: str | None, line: int) -> list[str]:
        """One value, none if unset, or several for `$@` and `${name[@]}`."""
        if name in {"@", "*"}:
            return list(self._variables.arguments)
        if name == "#":
            return [str(len(self._variables.arguments))]
        if name in {"?", "$", "!"}:
            raise UnreadableScriptError(line, f"the variable ${name}")
        if name.isdecimal():
            arguments = [self._variables.script, *self._variables.arguments]
            return arguments[int(name) : int(name) + 1]
        if index is None:
            value = self._variables.get(name)
            return [] if value is None else [value]
        held = self._variables.arrays.get(name)
        if held is None:
            value = self._variables.get(name)
            held = [] if value is None else [value]
        if index in {"@", "*"}:
            return list(held)
        at = self.expand_arithmetic(index, line)
        return held[at : at + 1] if at >= 0 else held[at:][:1]

    def _measure(self, values: list[str], name: str, index: str | None, line: int) -> str:
        if index in {"@", "*"}:
            return str(len(values))
        text = "".join(values)
        if find_unknown(text) is not None:
            raise UnreadableScriptError(line, f"the length of {name}, which is known only at run time")
        return str(len(text))

    def _apply_operator(self, values: list[str], match: "re.Match[str]", line: int) -> list[str]:
        sign, name = match["operator"], match["name"]
        argument = self.expand_text(parse_text(_strip_quotes(match["argument"]), line), line)
        is_set = any(values) if sign.startswith(":") else bool(values)
        if sign in {":-", "-", ":=", "="}:
            if not is_set and sign.endswith("="):
                self._variables.set(name, argument)
            return values if is_set else [argument]
        if sign in {":+", "+"}:
            return [argument] if is_set else []
        if sign in {":?", "?"}:
            if not is_set:
                raise FailedScriptError(line, f"{name}: {argument or 'not set'}")
            return values
        if any(find_unknown(value) is not None for value in values):
            raise UnreadableScriptError(line, f"${{{name}{sign}…}}, but {name} is known only at run time")
        if sign == ":":
            first, _, count = argument.partition(":")
            start = self.expand_arithmetic(first, line)
            return [value[start:][: self.expand_arithmetic(count, line) if count else None] for value in values]
        self._spend(sum(len(value) ** 2 for value in values) // _PARTS_PER_CHARACTER, line)
        if sign in {"/", "//"}:
            pattern, _, new = argument.partition("/")
            found = _compile_pattern(pattern)
            return [found.sub(lambda _: new, value, count=1 if sign == "/" else 0) for value in values]
        return [_strip_pattern(value, sign, argument) for value in values]


def match_pattern(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern of `case` or `[[ == ]]`."""
    return re.fullmatch(translate(pattern), text) is not None


def _join_values(values: list[str], index: str) -> list[str]:
    """`$*` and `${name[*]}` are one text."""
    return [" ".join(values)] if index == "*" and values else values


def _has_pattern(text: str) -> bool:
    """Whether a shell would expand it: stars, sets of characters, and braces with a comma or two dots."""
    inner = (part.partition("{")[2] for part in text.split("}")[:-1])
    return _GLOB.search(text) is not None or any("," in part or ".." in part for part in inner)


def _strip_quotes(text: str) -> str:
    return re.sub(r"^(['\"])(.*)\1$", r"\2", text, flags=re.DOTALL)


def _compile_pattern(pattern: str) -> "re.Pattern[str]":
    """Of the texts between stars, only the last may stand in several places: as far right as possible."""
    first, *others = ("".join("." if char == "?" else re.escape(char) for char in part) for part in pattern.split("*"))
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(first + middle + "".join(f".*{part}" for part in others[-1:]), re.DOTALL)


def _strip_pattern(text: str, sign: str, pattern: str) -> str:
    """`${name#pattern}` and `${name%pattern}`; doubled, the longest match."""
    cuts = range(len(text) + 1)
    if sign.startswith("#"):
        order = reversed(cuts) if sign == "##" else cuts
        return next((text[cut:] for cut in order if match_pattern(text[:cut], pattern)), text)
    order = cuts if sign == "%%" else reversed(cuts)
    return next((text[:cut] for cut in order if match_pattern(text[cut:], pattern)), text)
