"""Reads `bash -c TEXT`, with which a task starts its launcher."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import MAX_NAMES, expand_node_set
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext, LauncherFiles
from aboard.core.launchers.shell.captured_output import JobNodes
from aboard.core.launchers.shell.evaluation import ScriptReader, ScriptReading
from aboard.core.launchers.shell.syntax import UnreadableScriptError
from aboard.core.launchers.shell.variables import Variables, find_unknown, list_unknown, mark_unknown
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

_LAUNCHER = re.compile(r"\b(torchrun|deepspeed|accelerate|torch\.distributed)\b")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_COMMAND_FLAGS = frozenset({"-c", "-lc", "-ec", "-xc", "-exc"})
# They differ by task.
TASK_VARIABLES = frozenset(
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURMD_NODENAME", "HOSTNAME", "RANDOM"}
)
_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PWD", "OLDPWD"}
)
_MASTER = frozenset({"MASTER_ADDR", "MASTER_PORT"})


@dataclass(frozen=True, kw_only=True)
class TaskCommand:
    """The words that a task runs at last, the variables set for them, the files written before, and the directory.

    `workdir` is None if the task stays where it starts.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    context: LauncherContext
    written: Mapping[str, str]
    workdir: str | None = None


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """The head's files, and those that a script would write before its launcher reads them."""

    files: LauncherFiles
    written: Mapping[str, str]

    def exists(self, path: str) -> bool:
        return path in self.written or self.files.exists(path)

    def read(self, path: str) -> str:
        return self.written[path] if path in self.written else self.files.read(path)

    def settings(self, path: str) -> Mapping[str, object]:
        if path in self.written:
            return self.parse_settings(self.written[path], path)
        return self.files.settings(path)

    def parse_settings(self, text: str, path: str) -> Mapping[str, object]:
        return self.files.parse_settings(text, path)


def list_job_nodes(environ: Mapping[str, str]) -> JobNodes:
    """The job's nodes; unknown names before it starts."""
    written = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if written and find_unknown(written) is None:
        found = expand_node_set(written)
        return JobNodes(names=found, written=written, here=found[0])
    written_count = environ.get("SLURM_NNODES", "1")[:9]
    # No job has more nodes than a node set can name.
    count = min(max(int(written_count), 1), MAX_NAMES) if written_count.isdecimal() else 1
    names = tuple(mark_unknown(f"node{number}") for number in range(count))
    return JobNodes(names=names, written=mark_unknown("SLURM_JOB_NODELIST"), here=names[0])


def read_task_shell(words: Sequence[str], context: LauncherContext) -> TaskCommand:
    """Follows `bash -c TEXT`, or a script that starts a launcher, to its one program; other words stay as they are."""
    found = find_task_script(words, context)
    if found is None:
        return TaskCommand(words=tuple(words), env={}, context=context, written={})
    try:
        reading = follow_task_script(*found, context)
    except UnreadableScriptError as error:
        raise _build_error(words, f"{error.reason}, which Aboard can't follow") from None
    if len(reading.programs) != 1 or reading.setup:
        raise _build_error(words, f"{len(reading.programs)} programs, or commands that prepare something for them")
    program = reading.programs[0]
    files = WrittenFiles(files=context.files, written=reading.files)
    env = drop_rank_variables(program.env)
    script = () if find_command_text(words) is not None else (words[-len(found[1]) - 1],)
    return TaskCommand(
        words=program.words,
        env=env,
        context=replace(context, files=files, cwd=program.cwd, scripts=(*context.scripts, *script)),
        written=reading.files,
        workdir=program.cwd if reading.changes_directory else None,
    )


def drop_rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that Aboard sets for each rank, and without an address that it chooses."""
    return {
        name: value
        for name, value in env.items()
        if name not in _RANK_VARIABLES and (name not in _MASTER or find_unknown(value) is None)
    }


def find_task_script(words: Sequence[str], context: LauncherContext) -> tuple[str, Sequence[str]] | None:
    """The text that a shell would run in each task, and its arguments; None for other programs.

    A script without a launcher is a rank's own program, which needs no reading.
    """
    is_shell = words[0].rpartition("/")[2] in _SHELLS
    if (text := find_command_text(words)) is not None:
        return text, words[4:]
    script = words[1:2] if is_shell else words[:1]
    if not script or not script[0].endswith((".sh", ".bash")) or not context.files.exists(script[0]):
        return None
    text = context.files.read(script[0])
    return (text, words[2:] if is_shell else words[1:]) if _LAUNCHER.search(text) else None


def find_command_text(words: Sequence[str]) -> str | None:
    """The text of `bash -c TEXT`; None for another command."""
    is_shell = words[0].rpartition("/")[2] in _SHELLS
    return words[2] if is_shell and words[2:] and words[1] in _COMMAND_FLAGS else None


def follow_task_script(
    text: str, arguments: Sequence[str], context: LauncherContext, task: int | None = None
) -> ScriptReading:
    """What the text does in each task, or in the one with this number, of which each node has one."""
    own = {} if task is None else {"SLURM_PROCID": str(task), "SLURM_NODEID": str(task), "SLURM_LOCALID": "0"}
    variables = Variables({**context.environ, "PWD": context.cwd, **own}, arguments, TASK_VARIABLES - own.keys())
    nodes = replace(list_job_nodes(context.environ), here=mark_unknown("HOSTNAME"))
    return ScriptReader(variables, nodes, cwd=context.cwd, starts_program=lambda _: True).read(text)


def find_unknown_value(command: LauncherCommand, known: frozenset[str | None] = frozenset()) -> str | None:
    """A value that only a running script knows, in what the ranks run, or in their container; `known` ones are fine."""
    request, container = command.request, command.container
    texts = [request.program.target, *request.program.args, *request.env.values()]
    if container is not None:
        texts += [container.image, container.workdir or "", *container.binds, *container.options]
        texts += container.env.values()
    return next((name for text in texts for name in list_unknown(text) if name not in known), None)


def _build_error(words: Sequence[str], seen: str) -> InputError:
    where = escape_text(" ".join(words[:2]))
    problem = Problem(where=where, seen=f"it has {escape_text(seen)}", fix=pasted_commands.WRAPPED.fix("bash"))
    return InputError(pasted_commands.WRAPPED, [problem])
