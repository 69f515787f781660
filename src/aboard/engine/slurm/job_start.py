"""What a run has to know about its Slurm job before it starts: that it was requeued, or that one node ends it."""

from collections.abc import Mapping

from aboard.config.slurm_allocation import describe_node_failure, is_requeue_wanted
from aboard.core.cluster.node_sets import fold_names
from aboard.core.slurm.allocation import SlurmAllocation, is_batch_script
from aboard.core.slurm.batch_script import list_request_options
from aboard.core.slurm.no_kill import describe_batch_host
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import format_count
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError, InputError, Problem, Shell
from aboard.diagnoses.slurm import allocation as diagnoses
from aboard.diagnoses.usage import planning
from aboard.record.json_documents import read_document
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import read_slurm_job


def check_job_start(
    allocation: SlurmAllocation,
    command: Shell,
    environ: Mapping[str, str],
    *,
    detach: bool = False,
    resumes: bool | None = None,
    recovers: bool = False,
) -> tuple[str, ...]:
    """Notes for the user; refuses a run that would start over because Slurm requeued the job, or end at once.

    `resumes` says whether a training run continues from its newest checkpoint; None is for other programs. `recovers`
    is whether the run is restarted when a node fails.
    """
    if detach and is_batch_script(environ):
        seen = f"the batch script of job {allocation.job} would end before the run, and Slurm would end the run with it"
        raise AboardError(diagnoses.DETACHED, seen)
    notes = [_check_requeue(allocation, command, environ, resumes=resumes)]
    idle = [node.name for node in allocation.nodes if node.gpus == 0]
    if allocation.has_gpus and idle:
        notes.append(f"job {allocation.job} has no GPUs on {fold_names(idle)}: no ranks run there")
    notes.append(describe_node_failure(environ, allocation, recovers=recovers))
    if recovers and is_batch_script(environ):
        notes.append(describe_batch_host(allocation, environ["SLURMD_NODENAME"]))
    return tuple(note for note in notes if note)


def check_job_size(
    allocation: SlurmAllocation, slurm: SlurmSettings, command: Shell, *, ranks: int | None
) -> tuple[str, ...]:
    """A note if the job has more nodes than cluster.slurm asks for; refuses fewer nodes, or fewer GPUs on one of them.

    A number of ranks that the user typed comes before that of GPUs.
    """
    nodes = [node for node in allocation.nodes if node.gpus != 0] if allocation.has_gpus else list(allocation.nodes)
    names, expected = [node.name for node in nodes], slurm.gpus_per_node or 0
    gpus = [node.gpus for node in nodes if node.gpus is not None]
    if len(names) < slurm.nodes:
        seen = f"{slurm.nodes} nodes were requested by cluster.slurm, but there are {len(names)}: {fold_names(names)}"
        raise _build_size_error(allocation, slurm, command, seen, nodes=len(names))
    if ranks is None and gpus and min(gpus) < expected:
        fewest = fold_names([node.name for node in nodes if node.gpus == min(gpus)])
        seen = (
            f"{format_count(expected, 'GPU')} per node were requested by cluster.slurm,"
            f" but the job has {min(gpus)} on {fewest}"
        )
        raise _build_size_error(allocation, slurm, command, seen, gpus_per_node=min(gpus) or "null")
    if len(names) > slurm.nodes:
        asks = format_count(slurm.nodes, "node")
        return (f"job {allocation.job} has {len(names)} nodes, and all are used; cluster.slurm asks for {asks}",)
    return ()


def _build_size_error(
    allocation: SlurmAllocation, slurm: SlurmSettings, command: Shell, seen: str, **found: int | str
) -> InputError:
    ((key, count),) = found.items()
    salloc = quote_typed_words(["salloc", "--no-kill", *list_request_options(slurm)])
    fix = planning.PLAN.fix("job", salloc=salloc, command=command, key=f"cluster.slurm.{key}", count=count)
    return InputError(planning.PLAN, [Problem(where=f"Slurm job {allocation.job}", seen=seen, fix=fix)])


def _check_requeue(
    allocation: SlurmAllocation, command: Shell, environ: Mapping[str, str], *, resumes: bool | None
) -> str | None:
    if not allocation.restarts:
        return None
    again = f"Slurm requeued job {allocation.job}"
    if resumes:
        return f"{again}: training continues from its newest checkpoint, or from the beginning if none was saved"
    earlier = _find_earlier_run(Runs.of(environ), allocation.job, command)
    if earlier is None:
        return f"{again}, and no earlier start of this command is recorded here: it starts from the beginning"
    if resumes is None and is_requeue_wanted(environ, allocation):
        return (
            f"{again}, as its script asks with --requeue: the command starts again, and has to find its own checkpoint"
        )
    seen = f"{again}, and run {earlier.id} had started before: the same command would start over"
    raise AboardError(diagnoses.REQUEUED, seen, "launch" if resumes is None else "train", command=command)


def _find_earlier_run(runs: Runs, job: int, command: Shell) -> RunDirectory | None:
    """The run of this command that an earlier start of the job got as far as starting ranks."""
    for run in runs.all():
        recorded = read_slurm_job(run)
        if recorded is not None and recorded.id == job:
            plan = read_document(run.plan)
            if isinstance(plan, dict) and plan.get("command") == command:
                return run
    return None
