"""Follows a script step by step without running it, and lists the programs that it would start."""

from collections.abc import Callable, Sequence

from aboard.core.launchers.shell.captured_output import JobNodes
from aboard.core.launchers.shell.commands import (
    ENVIRONMENT_FILE,
    PRINTING,
    LoopControlError,
    ReturnError,
    ScriptExitError,
    ShellCommands,
    StartedProgram,
)
from aboard.core.launchers.shell.expansion import match_pattern
from aboard.core.launchers.shell.parser import parse_script
from aboard.core.launchers.shell.syntax import (
    Arithmetic,
    Block,
    Case,
    Choice,
    Command,
    CountingLoop,
    Function,
    Group,
    Loop,
    Pipeline,
    SimpleCommand,
    UnreadableScriptError,
)
from aboard.core.launchers.shell.variables import Variables, find_unknown
from aboard.lazy_dataclass import dataclass

# Enough for a loop over 2,000 nodes.
_MOST_STEPS = 10_000
_DEEPEST = 20
# What a pipe may lead to: it changes nothing but the output.
_FILTERS = frozenset({*PRINTING, "tee", "head", "tail", "grep", "sed", "awk", "tr", "sort"})


@dataclass(frozen=True, kw_only=True)
class ScriptReading:
    """What a script does: programs in their order, commands that prepare the environment, and files it writes."""

    programs: tuple[StartedProgram, ...]
    setup: tuple[str, ...]
    files: dict[str, str]
    changes_directory: bool


class ScriptReader:
    """Follows a script with the given variables.

    `starts_program` tells a program of interest by its words; `read_file` returns a file that the script sources, or
    None.
    """

    def __init__(
        self,
        variables: Variables,
        nodes: JobNodes,
        *,
        cwd: str,
        starts_program: Callable[[Sequence[str]], bool],
        read_file: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._variables = variables
        self._read_file = read_file
        self._commands = ShellCommands(variables, nodes, cwd=cwd, starts_program=starts_program)
        self._expander = self._commands.expander
        self._functions: dict[str, Block] = {}
        self._steps = 0
        self._depth = 0

    def read(self, text: str) -> ScriptReading:
        """Reads the whole script; raises UnreadableScriptError at the first line that it can't follow."""
        try:
            self._run_block(parse_script(text))
        except (ScriptExitError, ReturnError, LoopControlError):
            pass
        except RecursionError:
            raise UnreadableScriptError(1, "a deeply nested script") from None
        return ScriptReading(
            programs=tuple(self._commands.programs),
            setup=tuple(self._commands.setup),
            files=dict(self._commands.files),
            changes_directory=self._commands.has_changed_directory,
        )

    def _run_block(self, block: Block) -> bool:
        succeeded = True
        for step in block:
            if (step.joined == "&&" and not succeeded) or (step.joined == "||" and succeeded):
                continue
            succeeded = self._run_pipeline(step.pipeline)
        return succeeded

    def _run_pipeline(self, pipeline: Pipeline) -> bool:
        self._count_step(pipeline.line)
        first, *others = pipeline.commands
        names = ["".join(self._expand_words(each)[:1]) if isinstance(each, SimpleCommand) else "" for each in others]
        if not _FILTERS.issuperset(names):
            raise UnreadableScriptError(pipeline.line, "a pipe |")
        before = len(self._commands.programs)
        succeeded = self._run_command(first)
        if "tee" in names and len(self._commands.programs) == before:
            raise UnreadableScriptError(pipeline.line, "a file that tee writes")
        return succeeded != pipeline.negated

    def _run_command(self, command: Command) -> bool:
        if isinstance(command, SimpleCommand):
            return self._run_simple(command)
        if isinstance(command, Arithmetic):
            return self._expander.expand_arithmetic(command.text, command.line) != 0
        if isinstance(command, Function):
            self._functions[command.name] = command.body
            return True
        return self._run_compound(command)

    def _run_compound(self, command: Loop | CountingLoop | Choice | Case | Group) -> bool:
        match command:
            case Group():
                return self._run_block(command.body)
            case Choice():
                chosen = (body for condition, body in command.branches if not condition or self._run_block(condition))
                return self._run_block(next(chosen, ()))
            case Case():
                return self._run_case(command)
            case CountingLoop():
                return self._run_counting_loop(command)
            case Loop():
                return self._run_loop(command)

    def _run_case(self, command: Case) -> bool:
        subject = self._expander.expand_text(command.subject, command.line)
        if (unknown := find_unknown(subject)) is not None:
            raise UnreadableScriptError(command.line, f"a choice by {unknown}, which is known only at run time")
        for patterns, body in command.branches:
            if any(match_pattern(subject, self._expander.expand_text(each, command.line)) for each in patterns):
                return self._run_block(body)
        return True

    def _run_counting_loop(self, loop: CountingLoop) -> bool:
        self._expander.expand_arithmetic(loop.first, loop.line)
        while self._expander.expand_arithmetic(loop.condition, loop.line) and self._run_body(loop):
            self._expander.expand_arithmetic(loop.step, loop.line)
        return True

    def _run_loop(self, loop: Loop) -> bool:
        if loop.name:
            for value in [field for word in loop.words for field in self._expander.expand_fields(word, loop.line)]:
                self._variables.set(loop.name, value)
                if not self._run_body(loop):
                    break
            return True
        while self._run_block(loop.condition) != loop.negated and self._run_body(loop):
            pass
        return True

    def _run_body(self, loop: Loop | CountingLoop) -> bool:
        """Whether the loop goes on."""
        self._count_step(loop.line)
        try:
            self._run_block(loop.body)
        except LoopControlError as control:
            return control.goes_on
        return True

    def _count_step(self, line: int) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise UnreadableScriptError(line, "a loop without end")

    def _run_simple(self, command: SimpleCommand) -> bool:
        words = self._expand_words(command)
        if words[1:] and words[0] in {"source", "."} and self._follow_file(words, command.line):
            return True
        if not words or words[0] not in self._functions:
            return self._commands.run(words, command)
        return self._run_called(self._functions[words[0]], words[1:], command.line)

    def _run_called(self, body: Block, arguments: list[str], line: int) -> bool:
        """Runs a function or sourced file with arguments of its own."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableScriptError(line, "a function that calls itself")
        before, self._variables.arguments = self._variables.arguments, arguments
        try:
            return self._run_block(body)
        except ReturnError as result:
            return result.succeeded
        finally:
            self._variables.arguments = before
            self._depth -= 1

    def _follow_file(self, words: list[str], line: int) -> bool:
        """Whether a sourced file could be followed; if not, it is a command that each node runs."""
        text = None if ENVIRONMENT_FILE.fullmatch(words[1]) else self._read_file(words[1])
        if text is None:
            return False
        saved, commands = self._variables.save(), self._commands.save()
        try:
            self._run_called(parse_script(text), words[2:] or self._variables.arguments, line)
        except UnreadableScriptError:
            self._variables.restore(saved)
            self._commands.restore(commands)
            return False
        return True

    def _expand_words(self, command: SimpleCommand) -> list[str]:
        """The words of a command; those of a test are not split, and patterns matter only where they are used."""
        if not command.words:
            return []
        first, line = command.words[0], command.line
        name = "".join(self._expander.expand_fields(first, line, globs=True)[:1])
        if name in {"[", "[[", "test"}:
            return [self._expander.expand_text(word, line) for word in command.words]
        globs = name in PRINTING
        return [field for word in command.words for field in self._expander.expand_fields(word, line, globs=globs)]
