"""Parses a launcher's arguments into the values of its flags, the script, and the script's arguments.

The rules are those of argparse, which all three launchers use: flags come before the script, everything after the
script belongs to it, `--flag=value` and `-Hvalue` are allowed, and a value may start with a dash only if it is a
negative number or contains a blank.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from aboard.core.launchers.flag_table import FlagHandling, FlagValueKind, LauncherFlag, Value
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import Fix, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_NUMBER = re.compile(r"[-+]?\d{1,18}")
_DECIMAL = re.compile(r"[-+]?(\d+(?:\.\d*)?|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class ParsedFlags:
    """The given flags, by `Flag.dest`, and the words after them; `given` has each flag in order, repeated ones too."""

    launcher: str
    values: Mapping[str, Value]
    given: tuple[tuple[str, Value], ...] = ()
    notes: tuple[str, ...]
    target: str
    args: tuple[str, ...]

    def text(self, dest: str) -> str | None:
        """A flag's text; None if it is empty or not given."""
        value = self.values.get(dest)
        return str(value) if value not in {None, ""} else None

    def count(self, dest: str) -> int | None:
        """A flag's number; None if not given, which launchers also write as zero or less."""
        value = self.values.get(dest)
        return value if isinstance(value, int) and value > 0 else None

    def list_texts(self, dest: str) -> tuple[str, ...]:
        """The texts of a flag that may be repeated."""
        return tuple(str(value) for name, value in self.given if name == dest)

    def on(self, dest: str) -> bool:
        return bool(self.values.get(dest))


@dataclass(frozen=True, kw_only=True)
class FlagGrammar:
    """A launcher's flags, and which variants of their spelling it accepts."""

    launcher: str
    flags: tuple[LauncherFlag, ...]
    either_dash: bool = False
    short_forms: bool = True

    def spellings(self) -> dict[str, LauncherFlag]:
        """Every accepted spelling; with `either_dash`, `_` and `-` are interchangeable."""
        known: dict[str, LauncherFlag] = {}
        for flag in self.flags:
            for name in flag.names:
                known[name] = flag
                if self.either_dash and name.startswith("--"):
                    known["--" + name[2:].replace("-", "_")] = flag
                    known["--" + name[2:].replace("_", "-")] = flag
        return known


def parse_flags(grammar: FlagGrammar, words: Sequence[str]) -> ParsedFlags:
    """Parses the flags; the InputError lists every flag that is unknown, unsupported or has a wrong value."""
    reader = _Reader(grammar, words)
    values = reader.run()
    if reader.problems:
        raise InputError(pasted_commands.FLAG, reader.problems)
    if reader.target is None:
        seen = "the command has no script to run"
        fix = "batch" if grammar.launcher == "sbatch" else "none"
        raise InputError.of(pasted_commands.SCRIPT, grammar.launcher, seen, fix, launcher=grammar.launcher)
    return ParsedFlags(
        launcher=grammar.launcher,
        values=values,
        given=tuple(reader.given),
        notes=tuple(dict.fromkeys(reader.notes)),
        target=reader.target,
        args=tuple(reader.rest),
    )


def build_program(flags: ParsedFlags, *, local_rank: str = "") -> Program:
    """The script, module or executable after the flags; `--module` and `--no-python` exclude each other."""
    if flags.on("module") and flags.on("no_python"):
        seen = "the script can't be run both as a Python module and without Python"
        raise InputError.of(pasted_commands.FLAG, f"{flags.launcher} --module", seen, "leave-one")
    without_module = ProgramKind.PROGRAM if flags.on("no_python") else ProgramKind.SCRIPT
    kind = ProgramKind.MODULE if flags.on("module") else without_module
    return Program(kind=kind, target=flags.target, args=flags.args, local_rank=local_rank)


class _Reader:
    def __init__(self, grammar: FlagGrammar, words: Sequence[str]) -> None:
        self._grammar = grammar
        self._known = grammar.spellings()
        self.rest = list(words)
        self.target: str | None = None
        self.problems: list[Problem] = []
        self.given: list[tuple[str, Value]] = []
        self.notes: list[str] = []

    def run(self) -> dict[str, Value]:
        values: dict[str, Value] = {}
        while self.rest:
            word = self.rest.pop(0)
            if word == "--" and self.rest:
                self.target = self.rest.pop(0)
                break
            if not word.startswith("-") or word == "-":
                self.target = word
                break
            name, attached = self._split(word)
            flag = self._find(name)
            if flag is None:
                self._unknown(name)
                break  # the next word could be its value or the script
            if flag.takes is FlagValueKind.NOTHING and attached and word[1] != "-" and word[2] != "=":
                self.rest.insert(0, f"-{attached}")  # several switches in one word
                attached = None
            for value in self._value(flag, name, attached):
                values[flag.dest] = value
                self.given.append((flag.dest, value))
        return values

    def _split(self, word: str) -> tuple[str, str | None]:
        if word in self._known:
            return word, None
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            return name, value if equals else None
        return word[:2], word[2:].removeprefix("=")

    def _find(self, name: str) -> LauncherFlag | None:
        if name in self._known or not self._grammar.short_forms or not name.startswith("--"):
            return self._known.get(name)
        near = {flag for spelling, flag in self._known.items() if spelling.startswith(name)}
        return near.pop() if len(near) == 1 else None

    def _unknown(self, name: str) -> None:
        launcher = self._grammar.launcher
        near = find_nearest(name, (known for known in self._known if known.startswith("--")))
        fix = pasted_commands.FLAG.fix("near", near=near) if near else pasted_commands.FLAG.fix("of-script")
        self._problem("", f"{escape_text(name)} is not a flag for {launcher}", fix)

    def _value(self, flag: LauncherFlag, name: str, attached: str | None) -> Iterator[Value]:
        """The flag's value, if it is obeyed; for other flags, adds the note or the problem."""
        text = attached
        if flag.takes is FlagValueKind.NOTHING:
            if attached:
                seen = f"it takes no value, but got '{escape_text(attached)}'"
                self._problem(name, seen, pasted_commands.FLAG.fix("alone", flag=name))
                return
            text = "true"
        elif flag.takes is FlagValueKind.OPTIONAL:
            text = attached or ""
        elif text is None:
            if not self.rest or not _is_value(self.rest[0]):
                fix = pasted_commands.FLAG.fix("value", flag=name)
                self._problem(name, "its value is missing", fix)
                return
            text = self.rest.pop(0)
        if flag.handling is FlagHandling.OURS:
            self.notes += [] if text in flag.accepted else [f"{name} {flag.note}."]
        elif flag.handling is FlagHandling.REFUSED:
            if text.lower() not in flag.accepted:
                label = name if flag.takes is FlagValueKind.NOTHING else f"{name} {escape_text(text)}"
                self._problem(label, flag.note, flag.fix)
        else:
            yield from self._convert_value(flag, name, text)

    def _convert_value(self, flag: LauncherFlag, name: str, text: str) -> Iterator[Value]:
        if flag.takes is FlagValueKind.NOTHING:
            yield True
        elif flag.takes in {FlagValueKind.TEXT, FlagValueKind.OPTIONAL}:
            yield text
        elif flag.takes is FlagValueKind.NUMBER and _NUMBER.fullmatch(text.strip()):
            yield int(text)
        elif flag.takes is FlagValueKind.DECIMAL and _DECIMAL.fullmatch(text.strip()):
            yield float(text)
        else:
            seen = f"'{escape_text(text)}' is not {flag.takes.value}"
            self._problem(name, seen, pasted_commands.FLAG.fix("number", flag=name))

    def _problem(self, shown: str, seen: str, fix: Fix) -> None:
        where = f"{self._grammar.launcher} {escape_text(shown)}".rstrip()
        self.problems.append(Problem(where=where, seen=seen, fix=fix))


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word == "-" or " " in word or bool(_NEGATIVE.fullmatch(word))
