"""Reads the commands of a batch script into one run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.containers.parse_container import drop_outside_variables
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext
from aboard.core.launchers.shell.captured_output import JobNodes
from aboard.core.launchers.shell.commands import StartedProgram, only_prints
from aboard.core.launchers.shell.evaluation import ScriptReader, ScriptReading
from aboard.core.launchers.shell.syntax import FailedScriptError, UnreadableScriptError
from aboard.core.launchers.shell.variables import (
    Variables,
    find_unknown,
    format_unknown,
    has_marker_characters,
    shows_unknown,
)
from aboard.core.launchers.slurm.node_loops import merge_programs, split_srun
from aboard.core.launchers.slurm.srun import NAME as SRUN
from aboard.core.launchers.slurm.task_shell import (
    WrittenFiles,
    drop_rank_variables,
    find_task_script,
    find_unknown_value,
    follow_task_script,
    list_job_nodes,
)
from aboard.diagnoses import Fix, InputError, Problem, Shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

# Known only once the job runs.
JOB_VARIABLES = frozenset(
    {
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NAME"),
        *("SLURM_JOB_PARTITION", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_ON_NODE", "SLURM_TASKS_PER_NODE"),
        *("SLURM_RESTART_COUNT", "SLURM_TMPDIR"),
    }
)
_STARTERS = frozenset(
    {
        *("srun", "torchrun", "deepspeed", "ds", "accelerate", "accelerate-launch", "python", "python3"),
        *("bash", "sh", "env", "mpirun", "mpiexec", "singularity", "apptainer", "docker", "podman"),
    }
)
# Slots of the run, if they are numbers.
_DEVICES = "CUDA_VISIBLE_DEVICES"
_SRUN = re.compile(r"^\s*(exec\s+|time\s+)?srun\b")


@dataclass(frozen=True, kw_only=True)
class BatchScript:
    """A batch script, and the command line with which its user submits it."""

    name: str
    text: str
    typed: Shell


def parse_batch_commands(script: BatchScript, arguments: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """The one run that the commands start; the InputError names the line that can't be followed, with the way out.

    Before the job starts, values that only the job knows are shown as `$NAME`; the job reads the script again.
    """
    job_nodes = list_job_nodes(context.environ)
    context = replace(context, scripts=(*context.scripts, script.name))
    try:
        reading = _follow(script.text, arguments, job_nodes, context)
        reading = _expand_task_shells(reading, context)
        program = merge_programs(reading.programs, job_nodes, context)
    except UnreadableScriptError as error:
        raise _build_error(script, error) from None
    devices = [f"{_DEVICES}={program.env[_DEVICES]}"] if _DEVICES in program.env else []
    program = replace(program, env={name: value for name, value in program.env.items() if name != _DEVICES})
    environ = {**context.environ, **program.env}
    inner_context = replace(context, environ=environ, files=WrittenFiles(files=context.files, written=reading.files))
    try:
        command = _parse_program([*devices, *program.words], inner_context)
    except InputError as error:
        if not any(shows_unknown(f"{problem} {problem.fix}") for problem in error.problems):
            raise
        words = [word for word in (*program.words, *program.env.values()) if find_unknown(word) is not None]
        reason = f"'{(words or program.words)[0]}', whose value only the running script knows"
        raise _build_error(script, UnreadableScriptError(program.line, reason)) from None
    if command is None:
        reason = f"'{program.words[0]}' without srun, which starts it on the first node only"
        raise _build_error(script, UnreadableScriptError(program.line, reason))
    _refuse_written_files(command, reading.files, script, program.line)
    command = _drop_written_binds(command, reading.files)
    env = {**program.env, **command.env}
    command = replace(
        command,
        request=replace(command.request, env=_select_variables(env)),
        setup=(*reading.setup, *command.setup),
        workdir=program.cwd if reading.changes_directory else command.workdir,
        notes=(
            *command.notes,
            *(f"{escape_text(format_unknown(path))} is read, but not written to the nodes." for path in reading.files),
        ),
    )
    command = drop_outside_variables(command)
    known = JOB_VARIABLES.union(map(find_unknown, job_nodes.names))
    if (unknown := find_unknown_value(command, known)) is not None:
        reason = f"{unknown} in the command or the variables of the ranks"
        raise _build_error(script, UnreadableScriptError(program.line, reason))
    return _show_unknown_values(command)


def _parse_program(words: Sequence[str], context: LauncherContext) -> LauncherCommand | None:
    """The command of srun; without srun, it runs on the first node alone, and can't wait for others."""
    command = context.parse_inner(words, context)
    if command is None or command.launcher in RUNTIMES:
        at = next((index for index, word in enumerate(words) if not word.startswith(f"{_DEVICES}=")), 0)
        return context.parse_inner([*words[:at], "srun", "--nodes=1", "--ntasks=1", *words[at:]], context)
    if command.launcher == SRUN or command.hostfile is not None:
        return command
    return None if (command.nodes or 1) > 1 else replace(command, request=replace(command.request, nodes=1))


def _show_unknown_values(command: LauncherCommand) -> LauncherCommand:
    request, container = command.request, command.container
    program = replace(request.program, args=tuple(map(format_unknown, request.program.args)))
    command = replace(command, request=replace(request, program=program, env=_format_variables(request.env)))
    if container is None:
        return command
    shown = replace(
        container,
        image=format_unknown(container.image),
        binds=tuple(map(format_unknown, container.binds)),
        options=tuple(map(format_unknown, container.options)),
        env=_format_variables(container.env),
        workdir=None if container.workdir is None else format_unknown(container.workdir),
    )
    return replace(command, container=shown)


def _format_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: format_unknown(value) for name, value in env.items()}


def _follow(text: str, arguments: Sequence[str], nodes: JobNodes, context: LauncherContext) -> ScriptReading:
    if has_marker_characters(text) or any(map(has_marker_characters, arguments)):
        raise UnreadableScriptError(1, "a character that is reserved")
    variables = Variables({**context.environ, "PWD": context.cwd}, arguments, frozenset({"RANDOM", "SECONDS"}))
    files = context.files
    reader = ScriptReader(
        variables,
        nodes,
        cwd=context.cwd,
        starts_program=lambda words: words[0] in _STARTERS,
        read_file=lambda path: files.read(path) if files.exists(path) else None,
    )
    return reader.read(text)


def _expand_task_shells(reading: ScriptReading, context: LauncherContext) -> ScriptReading:
    """Leaves out steps that only print, and takes over files that a step writes with `bash -c`."""
    programs, files = [], dict(reading.files)
    for started in reading.programs:
        is_step = started.words[0].rpartition("/")[2] == SRUN
        program = replace(started, words=(SRUN, *started.words[1:])) if is_step else started
        _, command = split_srun(program.words)
        if is_step and only_prints([command[0].rpartition("/")[2], *command[1:]]):
            continue
        found = find_task_script(command, context) if is_step else None
        if found is not None:
            written = _list_written_files(program, found, context)
            if written is not None:
                files |= written
                continue
        programs.append(program)
    return replace(reading, programs=tuple(programs), files=files)


def _list_written_files(
    program: StartedProgram, found: tuple[str, Sequence[str]], context: LauncherContext
) -> Mapping[str, str] | None:
    """The files of a step that only writes files, in all tasks or in the first one; None for other steps."""
    context = replace(context, environ={**context.environ, **program.env})
    try:
        readings = [follow_task_script(*found, context)]
    except UnreadableScriptError as error:
        try:  # what differs by task is known for a task
            readings = [follow_task_script(*found, context, task) for task in (1, 0)]
        except UnreadableScriptError:
            readings = []
        if not readings or any(reading.programs or reading.setup for reading in readings):
            # The error's line is counted within the task's own text.
            raise UnreadableScriptError(program.line, error.reason) from None
    if any(reading.programs or reading.setup for reading in readings):
        return None
    return {path: text for reading in readings for path, text in reading.files.items()}


def _select_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Without those for srun itself."""
    own = ("SLURM_", "SRUN_", "SBATCH_")
    return {name: value for name, value in drop_rank_variables(env).items() if not name.startswith(own)}


def _refuse_written_files(command: LauncherCommand, files: Mapping[str, str], script: BatchScript, line: int) -> None:
    """A file that the script writes exists on no node, so only the launcher may have read it."""
    binds = () if command.container is None else command.container.binds
    names = [*files, *(bind.split(":")[1] for bind in binds if ":" in bind and bind.partition(":")[0] in files)]
    if command.hostfile in files:
        raise _build_error(script, UnreadableScriptError(line, "a hostfile that the script itself writes"))
    for argument in command.request.program.args:
        if path := next((path for path in names if path in argument), None):
            reason = f"{path}, which the script writes and the program reads"
            raise _build_error(script, UnreadableScriptError(line, reason))


def _drop_written_binds(command: LauncherCommand, files: Mapping[str, str]) -> LauncherCommand:
    """Leaves out binds of files that exist on no node, which the launcher has read."""
    if command.container is None:
        return command
    binds = tuple(bind for bind in command.container.binds if bind.partition(":")[0] not in files)
    return replace(command, container=replace(command.container, binds=binds))


def _build_error(script: BatchScript, error: UnreadableScriptError) -> InputError:
    where = f"{escape_text(script.name)}, line {error.line}"
    if isinstance(error, FailedScriptError):
        seen = f"the script ends here with an error ({escape_text(format_unknown(error.reason))})"
        return InputError(
            pasted_commands.BATCH, [Problem(where=where, seen=seen, fix=pasted_commands.BATCH.fix("failed"))]
        )
    seen = f"Aboard can't follow {escape_text(format_unknown(error.reason))}"
    return InputError(pasted_commands.BATCH, [Problem(where=where, seen=seen, fix=_find_way_out(script))])


def _find_way_out(script: BatchScript) -> Fix:
    """How to start the run from within the script, where the shell itself does the rest."""
    written = script.text.splitlines()
    lines = [number for number, line in enumerate(written, 1) if _SRUN.match(line)]
    in_loop = any(re.match(r"\s*(for|while)\b", line) for line in written)
    if len(lines) == 1 and not in_loop and script.name != "--wrap":
        edit = f"{lines[0]}s/srun/aboard launch -- srun/"
        return pasted_commands.BATCH.fix("line", edit=edit, script=script.name, typed=script.typed)
    return pasted_commands.BATCH.fix("lines", script=script.name, typed=script.typed)
