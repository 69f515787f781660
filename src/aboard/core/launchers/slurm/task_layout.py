"""Which nodes and how many tasks an srun would use."""

from collections.abc import Mapping

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.launchers.flag_parser import ParsedFlags
from aboard.core.launchers.slurm.job_request import JobRequest, build_flag_error
from aboard.core.text.input_text import format_count
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class TaskLayout:
    """The number of nodes (None: all of the job), the tasks on each, and the nodes if they were named."""

    nodes: int | None
    tasks_per_node: int
    names: tuple[str, ...] = ()


def is_in_job(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID"))


def plan_tasks(flags: ParsedFlags, request: JobRequest, environ: Mapping[str, str]) -> TaskLayout:
    """The layout that srun chooses from its flags, and from the variables of the job where flags are missing."""
    nodes = request.count_nodes()
    is_counted = nodes is not None
    if nodes is None and is_in_job(environ) and not flags.text("exclude"):
        nodes = _read_number(environ, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    tasks = request.count_tasks()
    if nodes is None and not is_in_job(environ):
        nodes = tasks if tasks == 1 else None if tasks else 1
        if nodes is None:
            seen = "the number of nodes is not given, so Slurm would choose it"
            raise build_flag_error(flags, "--ntasks", seen, pasted_commands.FLAG.fix("nodes"))
    if tasks is None:
        each = request.tasks_per_node or _read_number(environ, "SLURM_NTASKS_PER_NODE")
        # srun inherits the number of tasks from the job, and the number on each node if the job has one.
        tasks = nodes * each if nodes and each else _read_number(environ, "SLURM_NTASKS")
    names = _read_names(flags, nodes, is_counted=is_counted)
    if nodes is None or tasks is None:
        return TaskLayout(nodes=nodes, tasks_per_node=request.tasks_per_node or 1, names=names)
    nodes = min(nodes, tasks)  # srun does the same
    if tasks % nodes:
        seen = f"{tasks} tasks can't be divided evenly among {nodes} nodes"
        raise build_flag_error(flags, "--ntasks", seen, pasted_commands.FLAG.fix("tasks-per-node"))
    return TaskLayout(nodes=nodes, tasks_per_node=tasks // nodes, names=names)


def _read_names(flags: ParsedFlags, nodes: int | None, *, is_counted: bool) -> tuple[str, ...]:
    """The nodes of --nodelist, unless srun would use others besides them."""
    text = flags.text("nodelist")
    if text is None:
        return ()
    names = tuple(dict.fromkeys(expand_node_set(text, where="--nodelist")))
    if nodes is None or len(names) == nodes:
        return names
    if not is_counted:
        return ()  # srun uses all nodes of the job
    seen = f"it has {format_count(len(names), 'name')}, but --nodes is {nodes}"
    raise build_flag_error(flags, "--nodelist", seen, pasted_commands.FLAG.fix("number", flag="--nodes"))


def _read_number(environ: Mapping[str, str], *names: str) -> int | None:
    found = (environ[name] for name in names if environ.get(name, "").isdecimal())
    return next((int(text) for text in found if int(text) > 0), None)
