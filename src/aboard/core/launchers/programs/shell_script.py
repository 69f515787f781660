"""Reads a shell script that starts a launcher, such as LMFlow's run_finetune.sh, into that launcher's command."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext, LauncherFiles
from aboard.core.launchers.shell.commands import StartedProgram
from aboard.core.launchers.shell.evaluation import ScriptReader, ScriptReading
from aboard.core.launchers.shell.syntax import FailedScriptError, UnreadableScriptError
from aboard.core.launchers.shell.variables import (
    Variables,
    find_unknown,
    format_unknown,
    has_marker_characters,
    mark_unknown,
)
from aboard.core.launchers.slurm.task_shell import WrittenFiles, drop_rank_variables, list_job_nodes
from aboard.core.launchers.wrapped_commands import find_launcher_name
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_SHELLS = frozenset({"bash", "sh", "zsh"})
_SCRIPT = re.compile(r".*\.(sh|bash)")
_MENTION = re.compile(
    r"\b(torchrun|deepspeed|accelerate|torch\.distributed|axolotl|llamafactory|swift|trl|tune|mpirun|mpiexec|composer"
    r"|colossalai|torchx|ray|horovodrun)\b"
)
_LONGEST = 200_000
_LONGEST_COMMAND = 300


@dataclass(frozen=True, kw_only=True)
class DirectoryFiles:
    """The head's files, with relative paths from the directory that a script changed to."""

    files: LauncherFiles
    cwd: str

    def exists(self, path: str) -> bool:
        return self.files.exists(self._join(path))

    def read(self, path: str) -> str:
        return self.files.read(self._join(path))

    def settings(self, path: str) -> Mapping[str, object]:
        return self.files.settings(self._join(path))

    def parse_settings(self, text: str, path: str) -> Mapping[str, object]:
        return self.files.parse_settings(text, path)

    def _join(self, path: str) -> str:
        return path if path.startswith("~") else posixpath.normpath(posixpath.join(self.cwd, path))


def parse_shell_script(words: Sequence[str], context: LauncherContext) -> LauncherCommand | None:
    """The command of the one launcher that the script starts; None for a script that each rank runs itself."""
    is_shell = words[0].rpartition("/")[2] in _SHELLS
    script, *arguments = words[1:] if is_shell and words[1:] else words
    if not _SCRIPT.fullmatch(script) or script in context.scripts or not context.files.exists(script):
        return None
    context = replace(context, scripts=(*context.scripts, script))
    text = context.files.read(script)
    if len(text) > _LONGEST or not _MENTION.search(text):
        return None
    try:
        reading = _follow(text, script, arguments, context)
        program = _find_launcher(reading, context)
        return None if program is None else _build_command(program, reading, script, text, context)
    except UnreadableScriptError as error:
        if not any(map(find_launcher_name, text.splitlines())):
            return None
        raise _build_error(words, script, text, error) from None


def _follow(text: str, script: str, arguments: Sequence[str], context: LauncherContext) -> ScriptReading:
    if has_marker_characters(text) or any(map(has_marker_characters, (script, *arguments))):
        raise UnreadableScriptError(1, "a character that is reserved")
    environ = {**context.environ, "PWD": context.cwd}
    variables = Variables(environ, arguments, frozenset({"RANDOM", "SECONDS", "HOSTNAME"}), script=script)
    files = context.files
    reader = ScriptReader(
        variables,
        replace(list_job_nodes(context.environ), here=mark_unknown("HOSTNAME")),
        cwd=context.cwd,
        starts_program=lambda _: True,
        read_file=lambda path: files.read(path) if files.exists(path) else None,
    )
    return reader.read(text)


def _find_launcher(reading: ScriptReading, context: LauncherContext) -> StartedProgram | None:
    """The one program, if it is a launcher; raises if the script also starts others, which Aboard doesn't run."""
    launchers = [each for each in reading.programs if _is_launcher(each, context)]
    if not launchers:
        return None
    other = next((each for each in reading.programs if each is not launchers[0]), None)
    if other is not None:
        again = "a second launcher" if other in launchers else "the command"
        raise UnreadableScriptError(other.line, f"{again} '{' '.join(other.words[:3])}'")
    for word in (*launchers[0].words, *drop_rank_variables(launchers[0].env).values()):
        if (unknown := find_unknown(word)) is not None:
            raise UnreadableScriptError(launchers[0].line, f"{unknown} in the launcher's command or variables")
    return launchers[0]


def _is_launcher(program: StartedProgram, context: LauncherContext) -> bool:
    try:
        return context.parse_inner(program.words, context) is not None
    except InputError:  # a launcher with a wrong flag, which is reported when its command is built
        return True


def _build_command(
    program: StartedProgram, reading: ScriptReading, script: str, text: str, context: LauncherContext
) -> LauncherCommand | None:
    cwd = posixpath.normpath(program.cwd)
    files = DirectoryFiles(files=context.files, cwd=cwd) if reading.changes_directory else context.files
    files = WrittenFiles(files=files, written=reading.files) if reading.files else files
    env = [f"{name}={value}" for name, value in drop_rank_variables(program.env).items()]
    command = context.parse_inner([*env, *program.words], replace(context, files=files, cwd=cwd))
    if command is None:
        return None
    for path in reading.files:
        if any(path in word for word in (command.hostfile or "", *command.request.program.args)):
            raise UnreadableScriptError(program.line, f"{path}, which the script writes")
    started = escape_text(" ".join(program.words), _LONGEST_COMMAND)
    notes = [f"{escape_text(script)} is read, not run. Line {program.line} starts {started}"]
    if re.search(r"\btee\b", text):
        notes.append("The files that tee would write are not written: aboard logs has the output.")
    hostfile = command.hostfile
    if reading.changes_directory and hostfile is not None and not hostfile.startswith("~"):
        hostfile = posixpath.join(cwd, hostfile)
    return replace(
        command,
        setup=(*reading.setup, *command.setup),
        hostfile=hostfile,
        workdir=cwd if reading.changes_directory else command.workdir,
        notes=(*notes, *command.notes),
    )


def _build_error(words: Sequence[str], script: str, text: str, error: UnreadableScriptError) -> InputError:
    where = f"{escape_text(script)}, line {error.line}"
    reason = escape_text(format_unknown(error.reason))
    if isinstance(error, FailedScriptError):
        seen, fix = f"the script ends here with an error ({reason})", pasted_commands.SHELL.fix("failed")
    else:
        seen = f"Aboard can't follow {reason}"
        places = [
            (number, found) for number, line in enumerate(text.splitlines(), 1) if (found := find_launcher_name(line))
        ]
        (number, name) = places[0]
        typed = pasted_commands.quote_command_line(words)
        edit = f"{number}s/{name}/aboard launch -- {name}/"
        fix = (
            pasted_commands.SHELL.fix("line", edit=edit, script=script, typed=typed)
            if len(places) == 1
            else pasted_commands.SHELL.fix("lines", script=script)
        )
    return InputError(pasted_commands.SHELL, [Problem(where=where, seen=seen, fix=fix)])
