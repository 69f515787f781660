"""What a Slurm job's state means for its run: why it waits, or how Slurm ended it."""

import re
from datetime import datetime

from aboard.core.slurm.job_state import JobPhase, JobStatus, describe_job
from aboard.diagnoses import Diagnosis, Finding
from aboard.diagnoses.fixes import Value
from aboard.diagnoses.runs import death
from aboard.diagnoses.slurm import jobs
from aboard.doctor.host import diagnoses as host
from aboard.doctor.logs import launcher_messages as job_launchers

# The first that matches, and the variant of its fix. Codes as in squeue(1); spaces or underscores in the long ones.
_WAITING: tuple[tuple[str, Diagnosis, str], ...] = (
    (r"JobHeldUser|job.requeued.in.held.state", jobs.HELD, "release"),
    (r"JobHeldAdmin", jobs.HELD, "administrator"),
    (r"launch.failed.requeued.held|JobLaunchFailure", jobs.HELD, "failed"),
    (r"DependencyNeverSatisfied", jobs.IMPOSSIBLE, "dependency"),
    (r"Partition(?:Time|Node)Limit", jobs.IMPOSSIBLE, "partition"),
    (r"BadConstraints", jobs.IMPOSSIBLE, "constraint"),
    (r"Invalid(?:Account|QOS)", jobs.IMPOSSIBLE, "account"),
    (r"ReqNodeNotAvail.*|NodeDown|nodes.required.for.job.are.down.*", jobs.UNAVAILABLE, ""),
    (r"Partition(?:Down|Inactive)", jobs.PARTITION_CLOSED, ""),
    (r"QOS.*|Assoc.*", jobs.LIMIT, ""),
)
_ENDED = {
    "TIMEOUT": (job_launchers.TIME_LIMIT, ""),
    "PREEMPTED": (job_launchers.PREEMPTED, ""),
    "CANCELLED": (job_launchers.CANCELLED, ""),
    "NODE_FAIL": (death.NODE_GONE, "log"),
    "OUT_OF_MEMORY": (host.OOM_KILLS, "log"),
}
_UNAVAILABLE_NODES = re.compile(r"UnavailableNodes:([\w.,\[\]-]+)")


def judge_job(status: JobStatus, now: datetime) -> Finding | None:
    """Why a job waits or how it ended; None for one that runs or that completed."""
    seen = f"job {status.id} {describe_job(status, now)}"
    if status.phase is JobPhase.PENDING:
        return _judge_waiting_job(status, seen)
    if status.phase is not JobPhase.ENDED or status.state == "COMPLETED":
        return None
    diagnosis, variant = _ENDED.get(status.state, (jobs.ENDED, ""))
    nodes = () if diagnosis is not death.NODE_GONE or not status.nodes else (status.nodes,)
    values: dict[str, Value] = {
        "job": status.id,
        "node": status.nodes or "NODE",
        "output": status.output or f"slurm-{status.id}.out",
    }
    return diagnosis.finding(nodes=nodes, seen=seen, fix=diagnosis.fix(variant, **values))


def _judge_waiting_job(status: JobStatus, seen: str) -> Finding:
    reason = status.reason.raw()
    for pattern, diagnosis, variant in _WAITING:
        if re.fullmatch(pattern, reason, re.IGNORECASE):
            named = _UNAVAILABLE_NODES.search(reason)
            nodes = named[1] if named else "NODE"
            return diagnosis.finding(nodes=(), seen=seen, fix=diagnosis.fix(variant, job=status.id, nodes=nodes))
    return jobs.WAITING.finding(nodes=(), seen=seen, fix=jobs.WAITING.fix(job=status.id))
