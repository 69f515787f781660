"""What simple commands do in a script that is followed: set variables, prepare the environment, start programs."""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy

from aboard.core.launchers.shell.captured_output import JobNodes, format_echo, predict_output
from aboard.core.launchers.shell.conditions import evaluate_condition
from aboard.core.launchers.shell.expansion import Expander
from aboard.core.launchers.shell.parser import parse_script
from aboard.core.launchers.shell.syntax import (
    Assignment,
    Block,
    FailedScriptError,
    SimpleCommand,
    UnreadableScriptError,
)
from aboard.core.launchers.shell.variables import Variables, find_unknown, format_unknown, mark_unknown
from aboard.lazy_dataclass import dataclass

# They only print, or wait, so they have no effect on the run.
PRINTING = frozenset(
    {
        *("cat", "clear", "date", "df", "echo", "env", "free", "hostname", "id", "ls", "lscpu", "nproc", "nvidia-smi"),
        *("printenv", "printf", "ps", "pwd", "rocm-smi", "sacct", "scontrol", "sinfo", "sleep", "squeue", "type"),
        *("uname", "uptime", "wait", "which", "whoami"),
    }
)
# Some of them do more than print with other arguments.
_ONLY_PRINTING = {
    "env": re.compile(""),
    "printf": re.compile(r"(?!-v).*", re.DOTALL),
    "scontrol": re.compile("show .*", re.DOTALL),
    "nvidia-smi": re.compile(r"|(-L|-q|--query|topo|nvlink|--list).*"),
    "rocm-smi": re.compile(r"|--show.*"),
}
_WITHOUT_EFFECT = frozenset({"true", ":", "shopt"})
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READING = frozenset({"read", "mapfile", "readarray"})
_PREPARING = frozenset(
    {"module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "mkdir", "ulimit", "umask"}
)
_WITHOUT_VARIABLES = frozenset({"mkdir", "ulimit", "umask"})
# What activating an environment changes.
_CHANGED = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CONDA_PREFIX", "VIRTUAL_ENV", "CUDA_HOME"})
_ENVIRONMENT_NAMES = re.compile(
    r".*(PATH|HOME|ROOT|DIR|PREFIX|ENV|BIN|LIB|VERSION)|(CONDA|CUDA|EB|MODULE|LMOD|LOADED).*"
)
_ANY_NAME = re.compile(".*")
ENVIRONMENT_FILE = re.compile(
    r"(.*/)?(activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules?\.sh|init\.sh)|/etc/.*"
)
# Aboard itself waits for the ranks, and handles what Slurm sends before a job's time is up; EXIT is another matter.
_SIGNAL = re.compile(r"(SIG)?(USR[12]|TERM|INT|HUP|QUIT|CONT)|10|12|15")
_NO_FILES = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "1", "2"})


@dataclass(frozen=True, kw_only=True)
class StartedProgram:
    """A program that the script starts; `env` holds what the script exported."""

    line: int
    words: tuple[str, ...]
    env: dict[str, str]
    cwd: str


class ScriptExitError(Exception):
    """The script ends here, successfully."""


class ReturnError(Exception):
    """The function or sourced file ends here."""

    def __init__(self, *, succeeded: bool) -> None:
        super().__init__()
        self.succeeded = succeeded


class LoopControlError(Exception):
    """`break`, or `continue` if `goes_on`, in the innermost loop."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self.goes_on = goes_on


class ShellCommands:
    """Follows simple commands, and collects programs, setup lines and written files."""

    def __init__(
        self, variables: Variables, nodes: JobNodes, *, cwd: str, starts_program: Callable[[Sequence[str]], bool]
    ) -> None:
        self._variables = variables
        self._nodes = nodes
        self._starts_program = starts_program
        self._printed = ""
        self.expander = Expander(variables, self._capture)
        self.cwd = cwd
        self.has_changed_directory = False
        self.programs: list[StartedProgram] = []
        self.setup: list[str] = []
        self.files: dict[str, str] = {}

    def run(self, words: list[str], command: SimpleCommand) -> bool:
        """Whether the command succeeds; `words` are its expanded words."""
        name = words[0] if words else ""
        if name in {"[", "[[", "test"}:
            return evaluate_condition(words, command.line)
        if name == "false":
            return False
        if not name:
            self._refuse_redirects(command)
            for assignment in command.assignments:
                self._assign(assignment, command.line)
        elif name in _DECLARING:
            self._declare(words, command)
        elif name in _READING:
            self._read_values(words, command)
        elif only_prints(words) and not command.assignments:
            self._print(name, words, command)
        elif name in _PREPARING:
            self._prepare(words, command)
        elif not self._run_builtin(words, command):
            self._start(words, command)
        return True

    def save(self) -> dict[str, object]:
        """The state to `restore` if a part of the script can't be followed."""
        collected = {name: copy(value) for name, value in vars(self).items() if isinstance(value, (list, dict))}
        return {**collected, "cwd": self.cwd, "has_changed_directory": self.has_changed_directory}

    def restore(self, saved: Mapping[str, object]) -> None:
        vars(self).update(saved)

    def _run_builtin(self, words: list[str], command: SimpleCommand) -> bool:
        name, *rest = words
        if name == "return":
            raise ReturnError(succeeded=rest in ([], ["0"]))
        if name == "exit":
            if rest in ([], ["0"]):
                raise ScriptExitError
            detail = f": {format_unknown(self._printed).strip()}" if self._printed.strip() else ""
            raise FailedScriptError(command.line, f"{' '.join(words)}{detail}")
        if name in {"break", "continue"} and not rest:
            raise LoopControlError(goes_on=name == "continue")
        if name == "shift":
            count = int(rest[0]) if rest and rest[0].isdecimal() else 1
            self._variables.arguments = self._variables.arguments[count:]
        elif name == "unset":
            for each in rest:
                self._variables.unset(each)
        elif name in {"cd", "pushd"}:
            self._change_directory(words, command.line)
        else:
            return self._has_no_effect(name, rest)
        return True

    def _has_no_effect(self, name: str, rest: list[str]) -> bool:
        if name == "rm" and rest[:1] == ["-f"] and not any(each.startswith("-") for each in rest[1:]):
            # Usually a hostfile that a loop then writes.
            for each in rest[1:]:
                self.files.pop(each, None)
            return True
        if name == "trap":
            return bool(rest[1:]) and all(map(_SIGNAL.fullmatch, rest[1:]))
        return name in _WITHOUT_EFFECT or (name == "set" and _are_shell_options(rest))

    def _start(self, words: list[str], command: SimpleCommand) -> None:
        words = words[1:] if words[0] == "exec" and words[1:] else words
        name = words[0].rpartition("/")[2]
        if not self._starts_program([name, *words[1:]]):
            raise UnreadableScriptError(command.line, f"the command '{format_unknown(' '.join(words[:3]))}'")
        if any(each.operator in {"<", "<<", "<<<"} for each in command.redirects):
            raise UnreadableScriptError(command.line, f"the input of {name}")
        env = {each.name: self.expander.expand_text(each.values[0], command.line) for each in command.assignments}
        env = {**self._variables.exported, **env}
        self.programs.append(StartedProgram(line=command.line, words=tuple(words), env=env, cwd=self.cwd))

    def _assign(self, assignment: Assignment, line: int) -> None:
        name = assignment.name
        if name == "IFS":
            raise UnreadableScriptError(line, "a change of IFS")
        if assignment.is_array:
            fields = [field for word in assignment.values for field in self.expander.expand_fields(word, line)]
            held = self._variables.arrays.get(name, []) if assignment.appends else []
            self._variables.set_array(name, [*held, *fields])
            return
        before = (self._variables.get(name) or "") if assignment.appends else ""
        self._variables.set(name, before + self.expander.expand_text(assignment.values[0], line))

    def _declare(self, words: list[str], command: SimpleCommand) -> None:
        self._refuse_redirects(command)
        flags = [word for word in words[1:] if word.startswith("-")]
        if any(flag not in {"-x", "-r", "-g", "-i", "-a", "-rx"} for flag in flags):
            raise UnreadableScriptError(command.line, f"'{' '.join(words[:2])}'")
        names = [word for word in words[1:] if not word.startswith("-")]
        for assignment in command.assignments:
            self._assign(assignment, command.line)
            names.append(assignment.name)
        if words[0] == "export" or any("x" in flag for flag in flags):
            for name in names:
                self._variables.export(name)

    def _read_values(self, words: list[str], command: SimpleCommand) -> None:
        """`IFS=, read -ra NAME <<< TEXT` and `mapfile -t NAME <<< TEXT`."""
        given = [each.target for each in command.redirects if each.operator == "<<<"]
        name, *flags = words[-1], *words[1:-1]
        has_array = words[0] != "read" or any("a" in flag for flag in flags)
        separators = [each for each in command.assignments if each.name == "IFS"]
        if not given or not has_array or not {*flags} <= {"-r", "-a", "-ra", "-ar", "-t"}:
            raise UnreadableScriptError(command.line, f"the command '{' '.join(words)}'")
        text = self.expander.expand_text(given[-1], command.line)
        line = text.partition("\n")[0]
        separator = self.expander.expand_text(separators[0].values[0], command.line).strip() if separators else ""
        if words[0] != "read":
            self._variables.set_array(name, text.splitlines())
        elif separator:
            self._variables.set_array(name, line.split(separator[0]) if line else [])
        else:
            self._variables.set_array(name, line.split())

    def _print(self, name: str, words: list[str], command: SimpleCommand) -> None:
        """Keeps the last message, and a file that `cat` or `echo` writes."""
        targets = [each for each in command.redirects if each.operator in {">", ">>", ">|"}]
        text = format_echo(name, words[1:]) if name in {"echo", "printf"} else None
        self._printed = text or self._printed
        target = self.expander.expand_text(targets[-1].target, command.line) if targets else "1"
        if target in _NO_FILES:
            return
        given = [each.target for each in command.redirects if each.operator == "<<"]
        if given and words == ["cat"]:
            text = self.expander.expand_text(given[-1], command.line)
        if text is None:
            raise UnreadableScriptError(command.line, f"'{words[0]}', which writes a file")
        before = self.files.get(target, "") if targets[-1].operator == ">>" else ""
        self.files[target] = before + text

    def _change_directory(self, words: list[str], line: int) -> None:
        target = words[1] if words[1:] else self._variables.get("HOME") or ""
        if not target or target.startswith("-") or (find_unknown(target) or "").startswith("("):
            raise UnreadableScriptError(line, f"'{format_unknown(' '.join(words))}'")
        self.cwd = target if target.startswith("/") else f"{self.cwd}/{target}"
        self.has_changed_directory = True
        self._variables.set("PWD", self.cwd)

    def _prepare(self, words: list[str], command: SimpleCommand) -> None:
        """A command that every node runs before its ranks; what it sets is unknown here."""
        self._refuse_redirects(command)
        for word in words:
            if (unknown := find_unknown(word)) is not None:
                raise UnreadableScriptError(command.line, f"'{words[0]}' with {unknown}")
        self.setup.append(shlex.join(words))
        if words[0] in {"source", "."} and not (words[1:] and ENVIRONMENT_FILE.fullmatch(words[1])):
            self._variables.forget(_CHANGED, _ANY_NAME)
        elif words[0] not in _WITHOUT_VARIABLES:
            self._variables.forget(_CHANGED, _ENVIRONMENT_NAMES)

    def _refuse_redirects(self, command: SimpleCommand) -> None:
        for each in command.redirects:
            target = self.expander.expand_text(each.target, command.line)
            if target not in _NO_FILES:
                raise UnreadableScriptError(command.line, f"the redirection to '{format_unknown(target)}'")

    def _capture(self, text: str, line: int) -> str:
        """The output of the commands in `$( … )`."""
        block = parse_script(text, first_line=line)
        if (directory := self._read_directory(block, line)) is not None:
            return directory
        output = ""
        for command in block[0].pipeline.commands if len(block) == 1 else ():
            if not isinstance(command, SimpleCommand) or not command.words:
                break
            given = [each.target for each in command.redirects if each.operator == "<<<"]
            output = self.expander.expand_text(given[-1], line) + "\n" if given else output
            words = [field for word in command.words for field in self.expander.expand_fields(word, line, globs=True)]
            output = predict_output(words, output, self._nodes, self.cwd)
        else:
            if len(block) == 1:
                return output
        return mark_unknown(f"({text.strip()})")

    def _read_directory(self, block: Block, line: int) -> str | None:
        """The output of `cd DIRECTORY && pwd`, by which a script finds its own directory."""
        commands = [command for step in block for command in step.pipeline.commands]
        if len(block) != 2 or len(commands) != 2 or block[1].joined == "||":  # noqa: PLR2004 - cd and pwd
            return None
        simple = [each for each in commands if isinstance(each, SimpleCommand) and not each.assignments]
        words = [[field for word in each.words for field in self.expander.expand_fields(word, line)] for each in simple]
        match words:
            case [["cd", target], ["pwd"]] if find_unknown(target) is None and target[:1] not in {"", "-", "~"}:
                return posixpath.normpath(posixpath.join(self.cwd, target)) + "\n"
        return None


def only_prints(words: Sequence[str]) -> bool:
    """Whether a command has no effect but its output."""
    pattern = _ONLY_PRINTING.get(words[0])
    return words[0] in PRINTING and (pattern is None or pattern.fullmatch(" ".join(words[1:])) is not None)


def _are_shell_options(words: list[str]) -> bool:
    return bool(words) and all((word[:1] in {"-", "+"} and word != "--") or word == "pipefail" for word in words)
