"""Parses `srun …` as Slurm 22.05 does: each task is a launcher on its node, or a rank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.flag_parser import FlagGrammar, ParsedFlags, parse_flags
from aboard.core.launchers.flag_table import FlagValueKind, list_flags, obey_flag, refuse_flag, skip_flag
from aboard.core.launchers.launcher_command import JobScript, LauncherCommand, LauncherContext
from aboard.core.launchers.slurm.job_flags import NOTHING, OPTIONAL, OWN_LOGS, list_common_flags
from aboard.core.launchers.slurm.job_request import JobRequest, build_flag_error, read_job_request
from aboard.core.launchers.slurm.task_layout import TaskLayout, is_in_job, plan_tasks
from aboard.core.launchers.wrapped_commands import find_front_end, find_text_launcher, read_script
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import build_rank_program
from aboard.core.text.input_text import find_env_name_error
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

NAME = "srun"
SLURM_COMMANDS = ("srun", "sbatch")

_OWN_BINDING = "is not needed: each rank sees all cores of its node; aboard launch --bind pins ranks"
_OWN_STOP = "is not needed: Aboard stops all ranks when one fails"
_OTHER_PROGRAM = "Aboard runs no other programs before or after a rank"
_COPIED = "files are copied by aboard launch --sync"
_SET = ("true",)
_SET_UP = pasted_commands.FLAG.fix("setup")
_CONTAINER = "Aboard doesn't start containers of a Slurm plug-in"

GRAMMAR = FlagGrammar(
    launcher=NAME,
    flags=(
        *list_common_flags(NAME),
        obey_flag("--jobid"),
        *list_flags(skip_flag, "--disable-status|-X --quit-on-interrupt", takes=NOTHING, note=_OWN_STOP, accepted=_SET),
        *list_flags(skip_flag, "--msg-timeout --threads|-T --wait|-W", note=_OWN_STOP),
        *list_flags(skip_flag, "--label|-l --unbuffered|-u", takes=NOTHING, note=OWN_LOGS, accepted=_SET),
        skip_flag("--accel-bind", note=_OWN_BINDING),
        skip_flag("--cpu-bind", "--cpu_bind", note=_OWN_BINDING, accepted=("none", "no")),
        skip_flag("--exact", takes=NOTHING, note=_OWN_BINDING),
        skip_flag("--immediate", "-I", takes=OPTIONAL, note="is not used: the job waits for its nodes"),
        skip_flag("--kill-on-bad-exit", "-K", takes=OPTIONAL, note=_OWN_STOP, accepted=("", "1")),
        skip_flag("--mpi", note="is not used: torch's ranks don't start with MPI", accepted=("none",)),
        skip_flag("--overlap", takes=NOTHING, note=_OWN_BINDING, accepted=_SET),
        skip_flag("--preserve-env", "-E", takes=NOTHING, note="is not used: flags decide", accepted=_SET),
        skip_flag("--resv-ports", takes=OPTIONAL, note="is not needed: Aboard chooses a free port"),
        skip_flag("--slurmd-debug", note=OWN_LOGS),
        *list_flags(refuse_flag, "--bcast --compress --send-libs", takes=OPTIONAL, note=_COPIED),
        refuse_flag("--bcast-exclude", note=_COPIED),
        *list_flags(refuse_flag, "--prolog --task-prolog", note=_OTHER_PROGRAM, fix=_SET_UP),
        refuse_flag("--epilog", note=_OTHER_PROGRAM, accepted=("none",)),
        refuse_flag("--task-epilog", note=_OTHER_PROGRAM),
        refuse_flag("--het-group", note="ranks on a part of a heterogeneous job are not supported"),
        refuse_flag("--multi-prog", takes=NOTHING, note="all ranks run the same program"),
        refuse_flag("--no-allocate", "-Z", takes=NOTHING, note="Aboard runs inside a job only"),
        refuse_flag("--pty", takes=NOTHING, note="ranks have no terminal"),
        refuse_flag("--relative", "-r", note="nodes are chosen by name", fix=pasted_commands.FLAG.fix("nodelist")),
        refuse_flag("--x11", takes=OPTIONAL, note="ranks have no display"),
    ),
)
# Of the plug-in pyxis, which guides show.
PLUGIN_FLAGS = tuple(
    # Without the flag alone, ranks would run outside the container.
    refuse_flag(name, takes=takes, note=_CONTAINER, fix=pasted_commands.FLAG.fix("container", flag=name))
    for name, takes in (
        ("--container-image", FlagValueKind.TEXT),
        ("--container-mounts", FlagValueKind.TEXT),
        ("--container-name", FlagValueKind.TEXT),
        ("--container-workdir", FlagValueKind.TEXT),
        ("--no-container-mount-home", NOTHING),
    )
)
_ALL_FLAGS = FlagGrammar(launcher=NAME, flags=(*GRAMMAR.flags, *PLUGIN_FLAGS))


@dataclass(frozen=True, kw_only=True)
class Step:
    """What srun would start: the command of each task with its own variables, its directory, and on which nodes."""

    command: tuple[str, ...]
    layout: TaskLayout
    exclude: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str | None

    def select_names(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of the job's nodes that it would use."""
        rest = [name for name in nodes if name not in self.exclude]
        return tuple(self.layout.names or rest[: self.layout.nodes])


def parse_step(words: Sequence[str], environ: Mapping[str, str]) -> Step:
    """Parses `srun WORDS`, but not the command of its tasks."""
    flags, _request, layout = _read(words, environ)
    exclude = flags.text("exclude")
    return Step(
        command=(flags.target, *flags.args),
        layout=layout,
        exclude=expand_node_set(exclude, where="--exclude") if exclude else (),
        env=_read_exports(flags, environ),
        workdir=flags.text("chdir"),
    )


def find_step_command(words: Sequence[str]) -> Sequence[str]:
    """What `srun WORDS` starts."""
    flags = parse_flags(_ALL_FLAGS, words)
    return (flags.target, *flags.args)


def find_task_script(words: Sequence[str], read: Callable[[str], str | None], environ: Mapping[str, str]) -> str:
    """The launcher that a task calls by a shell or a front end; "" for other commands. `read` reads scripts."""
    return find_front_end(words) or find_text_launcher(read_script(words, read, environ))


def _read(words: Sequence[str], environ: Mapping[str, str]) -> tuple[ParsedFlags, JobRequest, TaskLayout]:
    flags = parse_flags(_ALL_FLAGS, words)
    request = read_job_request(flags)
    _check_job(flags, environ)
    return flags, request, plan_tasks(flags, request, environ)


def parse_srun(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses `srun WORDS`: the job it would ask for, or its nodes inside a job, and what it starts there."""
    environ = context.environ
    flags, request, layout = _read(words, environ)
    command = _parse_tasks(flags, layout, context)
    in_job = is_in_job(environ)
    exclude = flags.text("exclude") if in_job else None
    env = {**command.env, **_read_exports(flags, environ)}
    return replace(
        command,
        launcher=NAME,
        per_node=False,
        request=replace(command.request, nodes=_agree_on_nodes(flags, layout, command), env=env),
        include="@".join(layout.names) if in_job else "",
        exclude=exclude.replace(",", "@") if exclude else "",
        slurm=None if in_job else request.build_settings(),
        workdir=flags.text("chdir") or command.workdir,
        notes=(*flags.notes, *_note_job_flags(flags, request, in_job=in_job), *command.notes),
    )


def _check_job(flags: ParsedFlags, environ: Mapping[str, str]) -> None:
    job = flags.text("jobid")
    if job is not None and job not in (environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOBID")):
        seen = f"job {escape_text(job)} is not the job that this command runs in"
        raise build_flag_error(flags, "--jobid", seen, pasted_commands.FLAG.fix("leave-out", flag="--jobid"))


def _parse_tasks(flags: ParsedFlags, layout: TaskLayout, context: LauncherContext) -> LauncherCommand:
    """What each task starts: a launcher, which starts the ranks of its node, a script that calls one, or a rank."""
    words = (flags.target, *flags.args)
    files = context.files
    is_script = find_task_script(words, lambda path: files.read(path) if files.exists(path) else None, context.environ)
    inner = None if is_script else context.parse_inner(words, context)
    started = inner.launcher if inner is not None else is_script
    if layout.tasks_per_node > 1 and started and started not in RUNTIMES:
        seen = f"it would start {started} {layout.tasks_per_node} times on each node, and each starts all ranks"
        raise build_flag_error(flags, "--ntasks-per-node", seen, pasted_commands.FLAG.fix("one-task"))
    if inner is None:
        request = LaunchRequest(program=build_rank_program(words), ranks=layout.tasks_per_node, slurm_tasks=True)
        script = JobScript(words=words) if is_script else None
        return LauncherCommand(launcher=NAME, request=request, script=script)
    if inner.launcher in RUNTIMES:  # a rank in a container
        return replace(inner, request=replace(inner.request, ranks=layout.tasks_per_node, slurm_tasks=True))
    return inner


def _agree_on_nodes(flags: ParsedFlags, layout: TaskLayout, command: LauncherCommand) -> int | None:
    if command.nodes is None or layout.nodes is None or command.nodes == layout.nodes:
        return layout.nodes if command.nodes is None else command.nodes
    seen = f"srun starts {command.launcher} on {layout.nodes} of {command.nodes} nodes, so it would wait for the others"
    raise build_flag_error(flags, "--nodes", seen, pasted_commands.FLAG.fix("nodes-of", count=command.nodes))


def _read_exports(flags: ParsedFlags, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--export=ALL,NAME=VALUE`; without ALL, ranks would lose the others."""
    text = flags.text("export")
    if text is None or text == "ALL":
        return {}
    first, *items = text.split(",")
    if first != "ALL":
        seen = f"--export={escape_text(text)} hides all other variables from the ranks"
        raise build_flag_error(flags, "--export", seen, pasted_commands.FLAG.fix("export"))
    env: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if trouble := find_env_name_error(name):
            raise InputError.of(pasted_commands.FLAG, f"{NAME} --export", trouble, "export")
        if equals or name in environ:
            env[name] = value if equals else environ[name]
    return env


def _note_job_flags(flags: ParsedFlags, request: JobRequest, *, in_job: bool) -> tuple[str, ...]:
    names = [f"--{name}" for name in ("partition", "account", "time", "qos", "constraint") if flags.text(name)]
    names += [each.partition("=")[0] for each in request.extra]
    return (f"{', '.join(names)}: the running job is not changed.",) if in_job and names else ()
