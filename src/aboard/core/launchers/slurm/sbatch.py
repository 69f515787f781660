"""Parses `sbatch [flags] script.sh [arguments]`: the job of its #SBATCH lines, in which the script runs."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.launchers.flag_parser import FlagGrammar, ParsedFlags, parse_flags
from aboard.core.launchers.flag_table import list_flags, obey_flag, obey_switch, refuse_flag, skip_flag
from aboard.core.launchers.launcher_command import JobScript, LauncherCommand, LauncherContext
from aboard.core.launchers.slurm.job_flags import NOTHING, OPTIONAL, list_common_flags
from aboard.core.launchers.slurm.job_request import JobRequest, build_flag_error, read_job_request
from aboard.core.launchers.slurm.script_body import list_body_notes
from aboard.core.launchers.slurm.srun import PLUGIN_FLAGS
from aboard.core.launchers.slurm.task_layout import is_in_job
from aboard.core.launchers.wrapped_commands import SHELLS
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import build_rank_program
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

NAME = "sbatch"

_OWN_WAIT = "is not needed: Aboard follows the job; aboard launch -d doesn't"
_ARRAY = pasted_commands.FLAG.fix("array")
# Passed on to Aboard's own batch script.
BATCH_PASSED_FLAGS = (
    *list_flags(obey_flag, "--batch --kill-on-invalid-dep --wait-all-nodes"),
    *list_flags(obey_switch, "--no-requeue --requeue"),
)
GRAMMAR = FlagGrammar(
    launcher=NAME,
    flags=(
        *list_common_flags(NAME),
        *BATCH_PASSED_FLAGS,
        obey_flag("--wrap"),
        skip_flag("--ignore-pbs", takes=NOTHING, note="is not needed: only #SBATCH lines are read", accepted=("true",)),
        skip_flag("--parsable", takes=NOTHING, note=_OWN_WAIT),
        skip_flag("--wait", "-W", takes=NOTHING, note=_OWN_WAIT, accepted=("true",)),
        refuse_flag("--array", "-a", note="each task of an array is a run of its own", fix=_ARRAY),
        refuse_flag("--export-file", note="Aboard passes on the variables of this shell"),
        refuse_flag("--get-user-env", takes=OPTIONAL, note="Aboard passes on the variables of this shell"),
    ),
)
_ALL_FLAGS = replace(GRAMMAR, flags=(*GRAMMAR.flags, *PLUGIN_FLAGS))
_HEADER = re.compile(r"#SBATCH\s+(.*)")
_PLACEHOLDER = re.compile(r"(?<!<)<[A-Z][A-Z0-9_]{2,}>")
_LONGEST = 200_000
_WRAP = "--wrap"
_LOGIN = frozenset({"-l", "--login"})
# A login shell replaces PATH before it runs the script, which would then find Slurm's srun instead of Aboard's.
_IN_LOGIN_SHELL = 'PATH="${ABOARD_CAPTURE%/*}/capture/bin:$PATH"; . "$0"'
# Aboard's own job has others.
_TASK_VARIABLES = ("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_TASKS_PER_NODE", "SLURM_GPUS_PER_TASK")


def parse_sbatch(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses `sbatch WORDS`: the job that it asks for, and the script that runs in it.

    Inside a job, the script runs there; its #SBATCH lines are not applied again.
    """
    typed = parse_flags(_ALL_FLAGS, [*words, "wrap"] if _has_wrap(words) else words)
    script, text = _read_script(typed, context)
    header = _read_header(text, script)
    flags = (
        parse_flags(_ALL_FLAGS, [*header, *words[: len(words) - len(typed.args) - 1], typed.target])
        if header
        else typed
    )
    if (exported := flags.text("export")) not in {None, "ALL"}:
        seen = f"--export={escape_text(exported)} changes the variables that the script sees"
        raise build_flag_error(flags, "--export", seen, pasted_commands.FLAG.fix("leave-out", flag="--export"))
    # As sbatch itself chooses it: SLURM_JOB_NAME is in paths, and --dependency=singleton goes by it.
    set_outside = None if typed.text("job_name") else context.environ.get("SBATCH_JOB_NAME")
    name = set_outside or flags.text("job_name") or ("wrap" if script == _WRAP else typed.target.rpartition("/")[2])
    flags = replace(flags, values={**flags.values, "job_name": name})
    request = read_job_request(flags, BATCH_PASSED_FLAGS)
    interpreter = _read_interpreter(text)
    is_shell = any(word.rpartition("/")[2] in SHELLS for word in interpreter)
    if is_shell:
        _refuse_placeholders(text, script)
    if is_shell and _LOGIN.intersection(interpreter):
        interpreter += ("-c", _IN_LOGIN_SHELL)
    command = (*interpreter, *(("-c", text) if script == _WRAP else (typed.target, *typed.args)))
    env = _list_variables(request, flags, context)
    return LauncherCommand(
        launcher=NAME,
        request=LaunchRequest(program=build_rank_program(command), nodes=request.build_settings().nodes),
        slurm=None if is_in_job(context.environ) else request.build_settings(),
        script=JobScript(
            words=command,
            env=env,
            removed=tuple(name for name in _TASK_VARIABLES if name not in env and name in context.environ),
            cwd=flags.text("chdir"),
            is_batch=True,
        ),
        notes=(*flags.notes, *(() if is_in_job(context.environ) or not is_shell else list_body_notes(text, script))),
    )


def _read_interpreter(text: str) -> tuple[str, ...]:
    """The words of the script's first line; the kernel would pass all arguments as one."""
    first = text.partition("\n")[0]
    path, _, argument = first[2:].strip().partition(" ") if first.startswith("#!") else ("", "", "")
    return (path, *((argument.strip(),) if argument.strip() else ()))


def _has_wrap(words: Sequence[str]) -> bool:
    return any(word == "--wrap" or word.startswith("--wrap=") for word in words)


def _read_script(flags: ParsedFlags, context: LauncherContext) -> tuple[str, str]:
    if (wrapped := flags.text("wrap")) is not None:
        return _WRAP, f"#!/bin/sh\n{wrapped}\n"
    text = context.files.read(flags.target)
    if len(text) > _LONGEST or not _read_interpreter(text)[0]:
        seen = "its first line names no interpreter" if len(text) <= _LONGEST else "it is very long"
        raise InputError.of(pasted_commands.BATCH, escape_text(flags.target), seen, "shell")
    return flags.target, text


def _read_header(text: str, script: str) -> list[str]:
    """The words of the #SBATCH lines, which end at the first command."""
    words: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        match = _HEADER.match(line)
        if match and match[1].strip() in {"hetjob", "packjob"}:
            seen = "a heterogeneous job is not supported"
            raise InputError.of(pasted_commands.BATCH, f"{escape_text(script)}, line {number}", seen, "het")
        try:
            words += shlex.split(match[1], comments=True) if match else []
        except ValueError:
            where = f"{escape_text(script)}, line {number}"
            raise InputError.of(pasted_commands.BATCH, where, "a quote is not closed", "quote") from None
    return words


def _refuse_placeholders(text: str, script: str) -> None:
    """Guides write <YOUR_ACCOUNT>; a shell would read it as the redirection of a file."""
    problems = [
        Problem(
            where=f"{escape_text(script)}, line {number}",
            seen=f"{match[0]} is a placeholder",
            fix=pasted_commands.BATCH.fix("placeholder"),
        )
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#") and (match := _PLACEHOLDER.search(line))
    ]
    if problems:
        raise InputError(pasted_commands.BATCH, problems)


def _list_variables(request: JobRequest, flags: ParsedFlags, context: LauncherContext) -> Mapping[str, str]:
    """The variables that the script's own job would have; Aboard's job has one task on each node instead."""
    nodes = request.build_settings().nodes
    tasks = request.count_tasks() or nodes
    variables = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_SUBMIT_DIR": context.cwd}
    variables["SLURM_JOB_NAME"] = str(flags.values["job_name"])
    variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(tasks))
    variables |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))
    if tasks % nodes == 0:
        variables["SLURM_TASKS_PER_NODE"] = f"{tasks // nodes}" + (f"(x{nodes})" if nodes > 1 else "")
    for name, value in (
        ("SLURM_NTASKS_PER_NODE", request.tasks_per_node),
        ("SLURM_CPUS_PER_TASK", request.cpus_per_task),
        ("SLURM_GPUS_PER_NODE", flags.text("gpus_per_node")),
        ("SLURM_GPUS_PER_TASK", flags.text("gpus_per_task")),
    ):
        if value is not None:
            variables[name] = str(value)
    names = context.environ.get("SLURM_JOB_NODELIST", "")
    if names and len(found := expand_node_set(names, where="SLURM_JOB_NODELIST")) > nodes:
        variables |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(found[:nodes]))
    return variables
